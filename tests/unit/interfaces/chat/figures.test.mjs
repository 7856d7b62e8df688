import assert from "node:assert/strict";
import { test } from "node:test";
import { newAnswer } from "../../../../interfaces/http/pages/files/chat/answer.js";
import { figures, parseCacheHeader, progressWords, shownFigures } from "../../../../interfaces/http/pages/files/chat/figures.js";

const HEADER = "reused=768; hot=512; store=256; computed=244; reason=never-seen; diverged=790";
const answer = (fields) => ({ ...newAnswer("m"), ...fields });

test("the cache header tells nothing while its choice is queued", () => {
  assert.equal(parseCacheHeader("pending"), null);
  assert.equal(parseCacheHeader(""), null);
  assert.equal(parseCacheHeader(HEADER).get("hot"), "512");
});

test("usage is what counts, and the header says from where", () => {
  const usage = { promptTokens: 1012, completionTokens: 101, reusedTokens: 768 };
  const shown = Object.fromEntries(shownFigures(answer({ usage, cache: HEADER, firstMs: 250, lastMs: 2250, numDeltas: 90 })));
  assert.deepEqual(shown, {
    speed: "50 tokens/s",
    "first token": "250 ms",
    answer: "101 tokens",
    prompt: "1,012 tokens",
    reused: "768 from memory and store",
  });
});

test("drafted tokens are shown where there were any", () => {
  const usage = { promptTokens: 9, completionTokens: 200, reusedTokens: 0, acceptedTokens: 96, rejectedTokens: 24 };
  assert.equal(Object.fromEntries(shownFigures(answer({ usage }))).drafted, "96 of 120 tokens accepted");
});

test("an answer that was cut off is told by the header, and its tokens are about", () => {
  const told = figures(answer({ cache: HEADER, firstMs: 100, lastMs: 1100, numDeltas: 11 }));
  assert.equal(told.promptTokens, 1012);
  assert.equal(told.reusedTokens, 768);
  assert.equal(told.tokensPerS, 10);
  assert.equal(told.isCounted, false);
});

test("what was held back and came at once is no speed", () => {
  const usage = { promptTokens: 9, completionTokens: 27, reusedTokens: 0 };
  const told = figures(answer({ usage, firstMs: 499, lastMs: 500, numDeltas: 2 }));
  assert.equal(told.tokensPerS, 54);
});

test("what is not known is not shown", () => {
  assert.deepEqual(shownFigures(answer({ cache: "pending" })), []);
  assert.equal(figures(answer({ firstMs: 5, lastMs: 5, numDeltas: 1 })).tokensPerS, null);
});

test("signs of life are told as sentences", () => {
  assert.equal(progressWords("prefill 512/2000"), "Reading the prompt: 512 of 2,000 tokens");
  assert.equal(progressWords("queued"), "Waiting in the queue");
  assert.equal(progressWords("working"), "Waiting for the answer");
});
