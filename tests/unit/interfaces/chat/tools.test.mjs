import assert from "node:assert/strict";
import { test } from "node:test";
import { end, newAnswer, stop } from "../../../../interfaces/http/pages/files/chat/answer.js";
import { blankSettings, newConversation, requestBody } from "../../../../interfaces/http/pages/files/chat/conversation.js";
import { conversationOf } from "../../../../interfaces/http/pages/files/chat/kept.js";
import { EventFold, responsesBody } from "../../../../interfaces/http/pages/files/chat/responses.js";
import { MAX_RESULT_CHARS, Shelf } from "../../../../interfaces/http/pages/files/chat/shelf.js";
import { waiting, wholeText } from "../../../../interfaces/http/pages/files/chat/tool_steps.js";
import { laidOut, visible } from "../../../../interfaces/http/pages/files/chat/tool_view.js";

const ID = "resp_1_s0_call_a";

function folded(answer, ...events) {
  const fold = new EventFold();
  events.forEach((event, at) => fold.fold(answer, event, at));
  return answer;
}

const item = (what, fields) => ({ type: `response.output_item.${what}`, item: fields });
const call = (fields = {}) => ({ type: "mcp_call", id: `mcp_${ID}`, server_label: "time", name: "now", arguments: "", output: null, error: null, ...fields });
const request = (id = ID, fields = {}) => ({ type: "mcp_approval_request", id: `mcpr_${id}`, server_label: "time", name: "now", arguments: "{}", ...fields });
const text = (delta) => ({ type: "response.output_text.delta", delta });
const usage = { input_tokens: 9, output_tokens: 2, input_tokens_details: { cached_tokens: 4 }, output_tokens_details: {} };
const ended = (incomplete = null) => ({ type: "response.completed", response: { usage, incomplete_details: incomplete } });
const called = [item("added", call()), { type: "response.mcp_call_arguments.delta", item_id: `mcp_${ID}`, delta: "{}" }, { type: "response.mcp_call_arguments.done", item_id: `mcp_${ID}`, arguments: "{}" }];

function conversation(answer, settings = {}) {
  const made = newConversation("c1", { ...blankSettings(), ...settings }, 5);
  made.turns.push({ role: "user", content: "q" }, answer, { role: "user", content: "r" });
  return made;
}

test("an answer of two steps keeps what came before its call apart, and is repeated item by item", () => {
  const done = call({ arguments: "{}", output: "noon" });
  const answer = folded(newAnswer(""), { type: "response.reasoning_text.delta", delta: "hm" }, text("I look."), ...called, item("done", done), text("It is noon."), ended());
  end(answer);
  assert.equal(answer.state, "done");
  assert.deepEqual(answer.steps.map(({ reasoning, content }) => [reasoning, content]), [["hm", "I look."]]);
  assert.equal(answer.steps[0].calls[0].tookMs, 1);
  assert.equal(wholeText(answer), "I look.\n\nIt is noon.");
  assert.deepEqual([answer.usage.promptTokens, answer.usage.reusedTokens], [9, 4]);
  assert.deepEqual(responsesBody(conversation(answer), ["time__now"]).input.slice(1, -1), [
    { type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: "hm" }] },
    { role: "assistant", content: "I look." },
    { type: "mcp_call", id: `mcp_${ID}`, server_label: "time", name: "now", arguments: "{}", output: "noon" },
    { role: "assistant", content: "It is noon." },
  ]);
  assert.deepEqual(requestBody(conversation(answer)).messages.slice(1, -1).map(({ role, content }) => [role, content]), [["assistant", "I look."], ["tool", "noon"], ["assistant", "It is noon."]]);
});

test("calls of one step stand together, of another apart", () => {
  const other = (id) => item("added", call({ id: `mcp_${id}` }));
  const answer = folded(newAnswer(""), ...called, other("resp_1_s0_call_b"), other("resp_1_s1_call_a"));
  assert.deepEqual(answer.steps.map(({ calls }) => calls.length), [2, 1]);
});

test("a call without an end is lost, and told only where its arguments are whole", () => {
  const answer = folded(newAnswer(""), ...called);
  stop(answer);
  assert.equal(answer.steps[0].calls[0].state, "lost");
  const told = () => responsesBody(conversation(answer), []).input[1];
  assert.match(told().error, /may have run/);
  answer.steps[0].calls[0].arguments = '{"a';
  assert.equal(told().content, "r");
  assert.equal(requestBody(conversation(answer)).messages.length, 2);
});

test("a call that was approved and has no end waits again, and is told as one that may have run", () => {
  const answer = folded(newAnswer(""), item("added", request()), item("done", request()), ended());
  end(answer);
  assert.equal(waiting(answer).length, 1);
  assert.deepEqual(responsesBody(conversation(answer), []).input.slice(1, -1), [request()]);
  Object.assign(answer, { state: "streaming" });
  answer.steps[0].calls[0].state = "approved";
  assert.deepEqual(responsesBody(conversation(answer), []).input[2], { type: "mcp_approval_response", approval_request_id: `mcpr_${ID}`, approve: true });
  stop(answer);
  assert.equal(waiting(answer).length, 1);
  assert.match(responsesBody(conversation(answer), []).input[1].error, /may have run/);
});

test("limits, failures and servers without tools are told", () => {
  const limited = folded(newAnswer(""), ended({ reason: "max_output_tokens", limit: "max_steps" }));
  assert.equal(limited.finish, "max_steps");
  const error = { type: "mcp_tool_execution_error", content: [{ type: "text", text: "no zone" }] };
  const failed = folded(newAnswer(""), ...called, item("done", call({ error })), { type: "response.failed", response: { error: { code: "server_error", message: "lost" } } });
  assert.deepEqual([failed.steps[0].calls[0].state, failed.steps[0].calls[0].output, failed.problem.message], ["failed", "no zone", "lost"]);
  const dead = folded(newAnswer(""), item("done", { type: "mcp_list_tools", server_label: "git", tools: [], error: { type: "http_error", code: 503, message: "it is dead" } }));
  assert.deepEqual(dead.callProblems, ["The tools of git cannot be used: it is dead"]);
});

test("tools of servers come from their switches only, functions of the settings in this dialect's form", () => {
  const tools = JSON.stringify([{ type: "function", function: { name: "look" } }, { type: "mcp", server_label: "git" }, null]);
  assert.equal(requestBody(conversation(newAnswer(""), { tools })).tools.length, 2);
  const body = responsesBody(conversation(newAnswer(""), { tools, system: "be brief", maxTokens: 7 }), ["time__now", "time__to__utc", "git__log"]);
  assert.deepEqual(body.tools, [
    { type: "function", name: "look" },
    { type: undefined },
    { type: "mcp", server_label: "time", allowed_tools: ["now", "to__utc"], require_approval: "never" },
    { type: "mcp", server_label: "git", allowed_tools: ["log"], require_approval: "never" },
  ]);
  assert.deepEqual([body.instructions, body.max_output_tokens, body.store, "max_tokens" in body], ["be brief", 7, false, false]);
});

test("images and files have this dialect's parts", () => {
  const asked = { role: "user", content: "Why?", pictures: [{ url: "data:image/png;base64,AA" }, { gone: true }], files: [{ name: "a.pdf", url: "data:application/pdf;base64,AA" }] };
  const [first] = responsesBody({ settings: blankSettings(), turns: [asked] }, ["time__now"]).input;
  assert.deepEqual(first.content.map(({ type }) => type), ["input_image", "input_text", "input_file", "input_text"]);
  assert.equal(first.content[0].image_url, "data:image/png;base64,AA");
  assert.deepEqual(first.content[2], { type: "input_file", filename: "a.pdf", file_data: "data:application/pdf;base64,AA" });
});

test("kept steps are not believed, and long results are cut for the browser", () => {
  const answer = folded(newAnswer(""), ...called, item("done", call({ output: "x".repeat(MAX_RESULT_CHARS + 1) })), ended());
  end(answer);
  const storage = new Map();
  const shelf = new Shelf({ length: 0, key: () => null, getItem: (key) => storage.get(key), setItem: (key, value) => storage.set(key, value), removeItem: (key) => storage.delete(key) });
  shelf.save(conversation(answer, { serverTools: ["time__now"] }));
  const kept = conversationOf(JSON.parse([...storage.values()][0]));
  assert.ok(kept.turns[1].steps[0].calls[0].output.endsWith("[the rest is no longer kept]"));
  assert.deepEqual(kept.settings.serverTools, ["time__now"]);
  for (const steps of [7, [{}], [{ reasoning: "", content: "", calls: [] }], [{ reasoning: "", content: "", calls: [{ id: "a", state: "odd" }] }]]) {
    assert.deepEqual(conversationOf({ ...kept, turns: [kept.turns[0], { ...kept.turns[1], steps }] }).turns[1].steps, []);
  }
});

test("what is approved is shown as it was written, with what cannot be seen", () => {
  assert.equal(laidOut('{ "a":  "x, {y}\\"", "n": 9007199254740993, "e": [ ], "a":{"b":[1,2]}}'), '{\n  "a": "x, {y}\\"",\n  "n": 9007199254740993,\n  "e": [],\n  "a": {\n    "b": [\n      1,\n      2\n    ]\n  }\n}');
  assert.equal(laidOut('{"a": "unended'), '{\n  "a": "unended');
  assert.equal(visible("a\u202eb\u200bc\r\n\u0000\ufe0f"), "a\\u{202e}b\\u{200b}c\n\\u{0}\\u{fe0f}");
  laidOut(`"${"\\\\".repeat(500_000)}`);
  laidOut("[".repeat(10_000));
});
