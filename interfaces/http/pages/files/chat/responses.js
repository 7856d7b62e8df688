// A conversation that may call tools of servers, as a request to `/v1/responses`, and the events of its answer.
//
// Nothing of it is stored on the server: all items are repeated. The request asks for no approval of its own, so that
// the operator's rule is the one that holds.
import { fail } from "./answer.js";
import { questionContent, sentTurns, settingsFields } from "./conversation.js";
import { addCall, callItems, isAsked, serverOf } from "./tool_steps.js";

/** @param {string[]} tools of servers, `server__tool` */
export function responsesBody({ settings, turns }, tools) {
  const { max_tokens, tools: functions = [], ...fields } = settingsFields(settings);
  const body = { ...fields, input: sentTurns(turns).flatMap(items), tools: [...functions.map(flat), ...servers(tools)], store: false };
  if (settings.system.trim() !== "") body.instructions = settings.system;
  if (max_tokens !== undefined) body.max_output_tokens = max_tokens;
  return body;
}

/** Tools by server. */
function servers(tools) {
  return [...new Set(tools.map(serverOf))].map((server_label) => ({
    type: "mcp",
    server_label,
    allowed_tools: tools.filter((name) => serverOf(name) === server_label).map((name) => name.slice(server_label.length + 2)),
    require_approval: "never",
  }));
}

/** A tool as this dialect has it: its fields beside its type. */
function flat(tool) {
  const { type, ...rest } = tool ?? {};
  return { type, ...(rest[type] ?? rest) };
}

function items(turn) {
  if (turn.role === "user") {
    const content = questionContent(turn);
    return [{ role: "user", content: typeof content === "string" ? content : content.map(part) }];
  }
  const last = turn.calls.map((call) => ({ type: "function_call", call_id: call.id, name: call.name, arguments: call.arguments }));
  return [...turn.steps.flatMap((step) => [...said(step), ...step.calls.flatMap(callItems)]), ...said(turn), ...last];
}

function said({ reasoning, content }) {
  const found = [];
  if (reasoning !== "") found.push({ type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: reasoning }] });
  if (content !== "") found.push({ role: "assistant", content });
  return found;
}

function part({ type, text, image_url: image, file }) {
  if (type === "image_url") return { type: "input_image", image_url: image.url };
  return type === "file" ? { type: "input_file", ...file } : { type: "input_text", text };
}

/** Folds the events of one response into its answer. */
export class EventFold {
  #calls = new Map();

  /** @param {number} atMs */
  fold(answer, event, atMs) {
    const { type, delta } = event;
    if (typeof delta === "string") {
      answer.firstMs ??= atMs;
      answer.lastMs = atMs;
      answer.numDeltas += 1;
    }
    if (type === "response.created") answer.model = event.response.model;
    else if (type === "response.output_text.delta") answer.content += delta;
    else if (type === "response.reasoning_text.delta") answer.reasoning += delta;
    else if (typeof delta === "string" && this.#calls.has(event.item_id)) this.#calls.get(event.item_id).arguments += delta;
    else if (type === "response.mcp_call_arguments.done") this.#whole(this.#calls.get(event.item_id), atMs);
    else if (type === "response.output_item.added") this.#begin(answer, event.item);
    else if (type === "response.output_item.done") this.#end(answer, event.item, atMs);
    else if (type === "response.completed" || type === "response.incomplete") finish(answer, event.response);
    else if (type === "response.failed") failed(answer, event.response.error);
    else if (type === "error") failed(answer, event.error ?? event);
  }

  #begin(answer, item) {
    if (item.type === "mcp_call" || item.type === "mcp_approval_request") this.#calls.set(item.id, addCall(answer, item));
    if (item.type !== "function_call" && item.type !== "custom_tool_call") return;
    const call = { id: item.call_id, name: item.name, arguments: "" };
    answer.calls.push(call);
    this.#calls.set(item.id, call);
  }

  /** A call that was approved has run since the request was sent, or waited. */
  #whole(call, atMs) {
    call.beganMs = isAsked(call) ? 0 : atMs;
  }

  #end(answer, item, atMs) {
    const call = this.#calls.get(item.id);
    if (item.type === "mcp_list_tools" && item.error !== null) answer.callProblems.push(`The tools of ${item.server_label} cannot be used: ${item.error.message}`);
    if (item.type === "mcp_approval_request") call.state = "asked";
    if (item.type !== "mcp_call") return;
    const { beganMs = 0 } = call;
    delete call.beganMs;
    Object.assign(call, { state: item.error === null ? "done" : "failed", output: item.output ?? errorText(item.error), tookMs: Math.max(0, atMs - beganMs) });
  }
}

function errorText(error) {
  return error?.content?.map(({ text }) => text).join("\n") ?? String(error?.message ?? "");
}

function finish(answer, { usage, incomplete_details: incomplete }) {
  answer.finish = incomplete === null ? "stop" : (incomplete.limit ?? "length");
  answer.usage = {
    promptTokens: usage.input_tokens,
    completionTokens: usage.output_tokens,
    reusedTokens: usage.input_tokens_details.cached_tokens,
    acceptedTokens: usage.output_tokens_details.accepted_prediction_tokens ?? 0,
    rejectedTokens: usage.output_tokens_details.rejected_prediction_tokens ?? 0,
  };
}

function failed(answer, { message, code }) {
  fail(answer, { message: String(message ?? "The server failed."), status: 0, code: code ?? "", retryAfterS: null });
}
