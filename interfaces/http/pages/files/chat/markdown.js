// Markdown as a model writes it, as blocks of tokens. Runs without a DOM; token_nodes.js makes nodes of them.
//
// Marks are found in quadratic time where a model (or somebody through it) piles them up. So what is very long is left
// as it stands, a block or the text in it; so is what is nested deeper than the stack.
import { Lexer } from "../vendor/marked.esm.js";
import { formulaExtensions } from "./formula_marks.js";

/** Longer paragraphs, cells and the like have no marks. */
export const MAX_INLINE_CHARS = 10_000;

/** Longer lists, quotations and the like are plain text. Code is never too long: nothing is looked for in it. */
export const MAX_BLOCK_CHARS = 50_000;

/**
 * The blocks of `text`, in order; their `raw` joined is the text. A block of type `plain` has no marks.
 * @returns {Array<{type: string, raw: string}> & {definesLinks: boolean}} `definesLinks`: for text elsewhere, too
 */
export function blocks(text) {
  const lexer = new Lexer({ gfm: true, extensions: formulaExtensions });
  try {
    lexer.blockTokens(text, lexer.tokens);
    for (const { src, tokens } of lexer.inlineQueue) inline(lexer, src, tokens);
  } catch {
    return withLinks([plain(text)], false);
  }
  const isWhole = lexer.tokens.map((token) => token.raw).join("") === text;
  const found = isWhole ? lexer.tokens.map(bounded) : [plain(text)];
  return withLinks(found, Object.keys(lexer.tokens.links).length > 0);
}

export function plain(raw) {
  return { type: "plain", raw };
}

function withLinks(found, definesLinks) {
  return Object.assign([...found], { definesLinks });
}

function inline(lexer, src, tokens) {
  if (src.length <= MAX_INLINE_CHARS) lexer.inlineTokens(src, tokens);
  else tokens.push({ type: "text", raw: src, text: src });
}

function bounded(block) {
  return block.type === "code" || block.raw.length <= MAX_BLOCK_CHARS ? block : plain(block.raw);
}
