import assert from "node:assert/strict";
import { test } from "node:test";
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
