// Where formulas are in Markdown: `$…$` and `\(…\)` in a line, `$$…$$` and `\[…\]` on lines of their own. Bounded, for a
// mark that nothing closes is looked for from each place anew. Sums of money are none: a digit or letter follows the end.

const BLOCK = /^ {0,3}(?:\$\$[^$]{1,4000}\$\$|\\\[[\s\S]{1,4000}?\\\])[ \t]*(?:\n+|$)/;
const INLINE = [
  { mark: /^\$\$[^$]{1,1000}\$\$/, display: true },
  { mark: /^\\\[[\s\S]{1,1000}?\\\]/, display: true },
  { mark: /^\\\([\s\S]{1,1000}?\\\)/, display: false },
  { mark: /^\$(?!\s)(?:\\[^\n]|[^\\$\n]){0,500}?(?:\\[^\n]|[^\\$\s])\$(?![\w$])/, display: false },
];

/** For marked's Lexer. */
export const formulaExtensions = {
  block: [(src) => token(BLOCK.exec(src)?.[0], true)],
  inline: [
    (src) => {
      const found = INLINE.find(({ mark }) => mark.test(src));
      return found && token(found.mark.exec(src)[0], found.display);
    },
  ],
  startInline: [(src) => src.search(/\$|\\[([]/)],
  childTokens: {},
  renderers: {},
};

function token(raw, display) {
  return raw === undefined ? undefined : { type: "formula", raw, text: raw, display };
}

/** A formula without its marks. */
export function sourceOf(raw) {
  return raw.trim().replace(/^(?:\$\$?|\\[([])/, "").replace(/(?:\$\$?|\\[)\]])$/, "");
}
