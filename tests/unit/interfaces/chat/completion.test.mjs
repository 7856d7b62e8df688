import assert from "node:assert/strict";
import { test } from "node:test";
import { newAnswer } from "../../../../interfaces/http/pages/files/chat/answer.js";
import { complete } from "../../../../interfaces/http/pages/files/chat/completion.js";

const CHUNK = 'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n';
const END = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n';

/** What became of an answer that this response, or this failure, was for. */
async function answered(respond) {
  const answer = newAnswer("");
  const controller = new AbortController();
  const requests = [];
  const progress = [];
  await complete({
    fetch: async (url, request) => {
      requests.push(request);
      return respond(controller);
    },
    now: () => 0,
    url: "/x",
    headers: { authorization: "Bearer k" },
    body: { messages: [] },
    signal: controller.signal,
    answer,
    onChange: () => {},
    onProgress: (words) => progress.push(words),
  });
  return { answer, request: requests[0], progress };
}

function stream(...texts) {
  return new ReadableStream({
    start(controller) {
      for (const text of texts) controller.enqueue(new TextEncoder().encode(text));
      controller.close();
    },
  });
}

test("a stream is asked for with its usage, and folded", async () => {
  const headers = { "x-cairn-cache": "reused=3; hot=3; computed=4" };
  const { answer, request, progress } = await answered(() => new Response(stream(": queued\n\n", CHUNK, END), { headers }));
  assert.deepEqual(JSON.parse(request.body), { messages: [], stream: true, stream_options: { include_usage: true } });
  assert.equal(request.headers.authorization, "Bearer k");
  assert.deepEqual([answer.state, answer.content, answer.cache], ["done", "hi", "reused=3; hot=3; computed=4"]);
  assert.deepEqual(progress, ["queued"]);
});

test("a refusal is told in the server's words, with when to come back", async () => {
  const body = JSON.stringify({ error: { message: "too many", code: "rate_limit_exceeded" } });
  const { answer } = await answered(() => new Response(body, { status: 429, headers: { "retry-after": "12" } }));
  assert.equal(answer.state, "broken");
  assert.deepEqual(answer.problem, { message: "too many", status: 429, code: "rate_limit_exceeded", retryAfterS: 12 });
});

test("a refusal that is not the server's has its status", async () => {
  const { answer } = await answered(() => new Response("<html>", { status: 502, statusText: "Bad Gateway" }));
  assert.equal(answer.problem.message, "The server answered 502 Bad Gateway");
});

test("a server that is not there, a stream that breaks off and one that ends too soon are told apart", async () => {
  const gone = await answered(() => Promise.reject(new TypeError("fetch failed")));
  assert.equal(gone.answer.problem.message, "The server could not be reached. Check that it runs, then try again.");
  const reads = [new TextEncoder().encode(CHUNK)];
  const breaking = new ReadableStream({
    pull: (controller) => (reads.length > 0 ? controller.enqueue(reads.pop()) : controller.error(new TypeError("network"))),
  });
  const broken = await answered(() => new Response(breaking));
  assert.deepEqual([broken.answer.content, broken.answer.problem.message], ["hi", "The connection broke off."]);
  const short = await answered(() => new Response(stream(CHUNK)));
  assert.equal(short.answer.problem.message, "The stream ended before the answer did.");
});

test("who stops gets no error", async () => {
  const { answer } = await answered((controller) => {
    controller.abort();
    return Promise.reject(controller.signal.reason);
  });
  assert.deepEqual([answer.state, answer.problem], ["stopped", null]);
});
