import assert from "node:assert/strict";
import { test } from "node:test";
import { canGoOn, end, fail, foldChunk, newAnswer, reopen, stop } from "../../../../interfaces/http/pages/files/chat/answer.js";

const delta = (delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] });
const finish = (reason) => ({ choices: [{ index: 0, delta: {}, finish_reason: reason }] });

function folded(...chunks) {
  const answer = newAnswer("");
  chunks.forEach((chunk, at) => foldChunk(answer, chunk, 100 * (at + 1)));
  return answer;
}

const USAGE = { prompt_tokens: 9, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 4 } };
const DRAFTED = { accepted_prediction_tokens: 2, rejected_prediction_tokens: 1 };

test("text, reasoning and usage are folded, and the times of first and last piece are kept", () => {
  const answer = folded(
    { model: "m", ...delta({ role: "assistant", content: "" }) },
    delta({ reasoning_content: "hm" }),
    delta({ content: "a" }),
    delta({ content: "b" }),
    finish("stop"),
    { choices: [], usage: { ...USAGE, completion_tokens_details: DRAFTED } },
  );
  end(answer);
  const { content, reasoning, model, state, firstMs, lastMs, usage } = answer;
  assert.deepEqual({ content, reasoning, model, state, firstMs, lastMs }, {
    content: "ab", reasoning: "hm", model: "m", state: "done", firstMs: 200, lastMs: 400,
  });
  const drafted = { acceptedTokens: 2, rejectedTokens: 1 };
  assert.deepEqual(usage, { promptTokens: 9, completionTokens: 3, reusedTokens: 4, ...drafted });
});

test("pieces of tool calls are put together by index, and none can leave a hole", () => {
  const piece = (index, id, name, text) => ({ index, id, function: { name, arguments: text } });
  const answer = folded(
    delta({ tool_calls: [piece(0, "c0", "look", '{"a')] }),
    delta({ tool_calls: [piece(0, undefined, undefined, '":1}'), piece(1, "c1", "go", "{}")] }),
    delta({ tool_calls: [piece(99, "c9", "nobody", ""), piece(-1, "c8", "nobody", "")] }),
  );
  assert.deepEqual(answer.calls, [
    { id: "c0", name: "look", arguments: '{"a":1}' },
    { id: "c1", name: "go", arguments: "{}" },
  ]);
});

test("an error in the stream keeps what came, in the server's words", () => {
  const answer = folded(delta({ content: "half" }), { error: { message: "computing failed", code: "compute_failed" } });
  end(answer);
  assert.equal(answer.state, "broken");
  assert.equal(answer.content, "half");
  assert.equal(answer.problem.message, "computing failed");
  assert.ok(canGoOn(answer));
});

test("a stream that never said why it ended is broken", () => {
  const answer = folded(delta({ content: "half" }));
  end(answer);
  assert.equal(answer.state, "broken");
});

test("the first end is the end", () => {
  const answer = folded(delta({ content: "half" }));
  stop(answer);
  fail(answer, { message: "late" });
  end(answer);
  assert.equal(answer.state, "stopped");
  assert.equal(answer.problem, null);
});

test("one can go on where text was cut, and nowhere else", () => {
  const cut = folded(delta({ content: "x" }), finish("length"));
  end(cut);
  assert.ok(canGoOn(cut));
  reopen(cut);
  assert.ok(!canGoOn(cut));
  const whole = folded(delta({ content: "x" }), finish("stop"));
  end(whole);
  assert.ok(!canGoOn(whole));
  const empty = folded(delta({ reasoning_content: "x" }));
  stop(empty);
  assert.ok(!canGoOn(empty));
});
