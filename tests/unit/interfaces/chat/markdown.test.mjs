import assert from "node:assert/strict";
import { test } from "node:test";
import { sourceOf } from "../../../../interfaces/http/pages/files/chat/formula_marks.js";
import { blocks, MAX_BLOCK_CHARS, MAX_INLINE_CHARS } from "../../../../interfaces/http/pages/files/chat/markdown.js";

const raws = (text) => blocks(text).map(({ raw }) => raw).join("");

test("the blocks are the text", () => {
  const text = "# a\n\nb *c*\n\n- d\n- e\n\n```py\nf\n```\n\n> g\n\n<div>\nh\n</div>\n\n| i |\n|---|\n| j |\n\n[k]: http://l\n";
  assert.equal(raws(text), text);
  assert.ok(blocks(text).definesLinks);
});

test("what is nested deeper than the stack is left as it stands", () => {
  const text = "> ".repeat(20_000);
  assert.equal(raws(text), text);
});

test("no marks are looked for in what is very long", () => {
  const [paragraph] = blocks("*a* ".repeat(MAX_INLINE_CHARS / 4 + 1));
  assert.deepEqual(paragraph.tokens.map(({ type }) => type), ["text"]);
  assert.equal(blocks("- a\n".repeat(MAX_BLOCK_CHARS / 4 + 1))[0].type, "plain");
  assert.equal(blocks(`\`\`\`\n${"x\n".repeat(MAX_BLOCK_CHARS)}`)[0].type, "code");
});

test("formulas are found in lines and on lines of their own, and sums of money are none", () => {
  const formulas = (text) => {
    const found = [];
    const look = (tokens) => tokens?.forEach((token) => (token.type === "formula" ? found.push(sourceOf(token.raw).trim()) : look(token.tokens)));
    look(blocks(text));
    return found;
  };
  assert.deepEqual(formulas("Mass $m_1 + b_2$ and \\(x^2\\)."), ["m_1 + b_2", "x^2"]);
  assert.deepEqual(formulas("$$\na\n\nb\n$$\n\nnext \\[c\\]"), ["a\n\nb", "c"]);
  for (const text of ["$5 and $6", "US$5-$6", "$HOME/$USER", "\\$5 or \\$6", "`$a$`", "open $x and \\( y", "$ a $"]) assert.deepEqual(formulas(text), [], text);
});
