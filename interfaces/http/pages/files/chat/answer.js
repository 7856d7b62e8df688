// An answer: plain data that chunks are folded into, and that is kept in the browser as it stands.
//
// `state`: `streaming` while chunks come; `done` where the server said why it ended; `stopped` by the reader; `broken`
// by an error, or by a page that went away. Only `streaming` changes. Times are milliseconds since the question was
// sent, null until known. `steps` are those of tool_steps.js; text and calls are what came after the last of them.
import { settle } from "./tool_steps.js";

/** @typedef {"streaming" | "done" | "stopped" | "broken"} AnswerState */
/** @typedef {{id: string, name: string, arguments: string}} ToolCall */
/** @typedef {{message: string, status: number, code: string, retryAfterS: number | null}} Problem */

/** @param {string} model */
export function newAnswer(model) {
  return {
    role: "assistant",
    state: "streaming",
    model,
    content: "",
    reasoning: "",
    calls: [],
    steps: [],
    callProblems: [],
    finish: null,
    usage: null,
    cache: "",
    problem: null,
    firstMs: null,
    lastMs: null,
    numDeltas: 0,
  };
}

/** Folds one `chat.completion.chunk`, or an error in its place, into `answer`. @param {number} atMs */
export function foldChunk(answer, chunk, atMs) {
  if (chunk.error) return fail(answer, problemOf(chunk.error));
  if (typeof chunk.model === "string") answer.model = chunk.model;
  if (chunk.usage) answer.usage = usageOf(chunk.usage);
  for (const problem of chunk.x_cairn?.tool_call_problems ?? []) answer.callProblems.push(String(problem.detail));
  const choice = chunk.choices?.[0];
  if (!choice) return;
  if (foldDelta(answer, choice.delta ?? {})) {
    answer.firstMs ??= atMs;
    answer.lastMs = atMs;
    answer.numDeltas += 1;
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

/** The stream is over. One that never said why it ended is broken. */
export function end(answer) {
  if (answer.state !== "streaming") return;
  settle(answer);
  if (answer.finish !== null) answer.state = "done";
  else fail(answer, { message: "The stream ended before the answer did.", status: 0, code: "broken", retryAfterS: null });
}

export function stop(answer) {
  if (answer.state !== "streaming") return;
  settle(answer);
  answer.state = "stopped";
}

/** @param {Problem} problem */
export function fail(answer, problem) {
  if (answer.state !== "streaming") return;
  settle(answer);
  answer.state = "broken";
  answer.problem = problem;
}

export function isEmpty(answer) {
  return hasNoLast(answer) && answer.steps.length === 0;
}

/** Whether nothing came after the last step. */
export function hasNoLast(answer) {
  return answer.content === "" && answer.reasoning === "" && answer.calls.length === 0;
}

/** Whether the server can be asked to write on where the text ends. */
export function canGoOn(answer) {
  const isCut = answer.state === "stopped" || answer.state === "broken" || answer.finish === "length";
  return answer.state !== "streaming" && isCut && answer.content !== "" && answer.calls.length === 0;
}

/** Ready to take what comes after its text. Figures are those of the last part. */
export function reopen(answer) {
  Object.assign(answer, { state: "streaming", finish: null, usage: null, cache: "", problem: null });
  Object.assign(answer, { firstMs: null, lastMs: null, numDeltas: 0 });
}

function foldDelta(answer, delta) {
  const text = delta.content ?? "";
  const reasoning = delta.reasoning_content ?? "";
  answer.content += text;
  answer.reasoning += reasoning;
  for (const piece of delta.tool_calls ?? []) foldCall(answer.calls, piece);
  return text !== "" || reasoning !== "" || (delta.tool_calls ?? []).length > 0;
}

function foldCall(calls, piece) {
  const at = piece.index ?? calls.length;
  if (!Number.isInteger(at) || at < 0 || at > calls.length) return; // a hole would be a call that nobody made
  calls[at] ??= { id: "", name: "", arguments: "" };
  if (piece.id) calls[at].id = piece.id;
  if (piece.function?.name) calls[at].name += piece.function.name;
  calls[at].arguments += piece.function?.arguments ?? "";
}

function usageOf(usage) {
  return {
    promptTokens: usage.prompt_tokens,
    completionTokens: usage.completion_tokens,
    reusedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
    acceptedTokens: usage.completion_tokens_details?.accepted_prediction_tokens ?? 0,
    rejectedTokens: usage.completion_tokens_details?.rejected_prediction_tokens ?? 0,
  };
}

function problemOf(error) {
  return { message: String(error.message ?? "The server failed."), status: 0, code: error.code ?? "", retryAfterS: null };
}
