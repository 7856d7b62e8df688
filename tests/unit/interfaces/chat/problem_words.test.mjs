import assert from "node:assert/strict";
import { test } from "node:test";
import { problemWords } from "../../../../interfaces/http/pages/files/chat/problem_words.js";

const problem = (fields) => ({ message: "api", status: 400, code: "invalid_request", retryAfterS: null, ...fields });

test("a refusal is one sentence with what to do, and the server's text is behind it", () => {
  const { words, detail } = problemWords(problem({ message: "12,000 of 8,192", code: "context_length_exceeded" }));
  assert.match(words, /too long for this model\. Shorten the question/);
  assert.equal(detail, "12,000 of 8,192\n400 context_length_exceeded");
  assert.match(problemWords(problem({ code: "images_unseen" })).words, /Choose a model that sees images/);
  assert.match(problemWords(problem({ code: "file_unreadable" })).words, /remove it, or attach its text/);
  assert.match(problemWords(problem({})).words, /Correct the settings or the question/);
  assert.match(problemWords(problem({ status: 401, code: "authentication" })).words, /Enter your key/);
  assert.match(problemWords(problem({ status: 502, code: "" })).words, /server failed/);
});

test("the seconds to wait are in the sentence", () => {
  const told = problemWords(problem({ status: 429, code: "rate_limit_exceeded", retryAfterS: 30 }));
  assert.equal(told.words, "The limit of your key is reached. Try again in 30 s.");
  assert.match(problemWords(problem({ status: 503, code: "models_busy", retryAfterS: 2 })).words, /Try again in 2 s, or choose/);
});

test("words of the page itself have nothing behind them", () => {
  assert.deepEqual(problemWords(problem({ message: "Gone.", status: 0, code: "" })), { words: "Gone.", detail: "" });
});
