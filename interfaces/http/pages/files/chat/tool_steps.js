// The steps of an answer that called tools of servers: plain data, kept with the answer.
//
// A step is `{reasoning, content, calls}`, what came before its calls; the answer's own text is what came after the last
// step. A call's `state`: `running`; `asked` where the reader has to allow it, then `approved` or `refused`; `done` or
// `failed`, with its `output`; `lost` where no result came. Its `id` is the item's, as the server made it.

const STATES = ["running", "asked", "approved", "refused", "done", "failed", "lost"];
const STEP = /^[a-z]+_(.+_s\d+)_(.+)$/;

export const NO_RESULT = "No result came. The call may have run.";
const NOT_APPROVED = "The user did not approve this call.";

/** As the model knows a tool. */
export const fullName = ({ server, name }) => `${server}__${name}`;
export const serverOf = (name) => name.slice(0, name.indexOf("__"));

const stepOf = (id) => STEP.exec(id)?.[1] ?? id;
const tailOf = (id) => STEP.exec(id)?.[2] ?? id;

/** Whether the server asked for this call to be allowed. */
export const isAsked = ({ id }) => id.startsWith("mcpr_");

/** The id of the item of a call that was run. */
export const runId = ({ id }) => id.replace(/^mcpr_/, "mcp_");

export const everyCall = ({ steps }) => steps.flatMap(({ calls }) => calls);

/** The calls that wait for the reader. */
export const waiting = (answer) => everyCall(answer).filter(({ state }) => state === "asked");

/** Adds the call that an item begins, in its step, and returns it. One that was approved is there already. */
export function addCall(answer, item) {
  const known = everyCall(answer).find((call) => call.id === (item.approval_request_id ?? item.id));
  if (known !== undefined) return Object.assign(known, { state: "running", arguments: item.arguments });
  const last = answer.steps.at(-1);
  const isSame = last !== undefined && answer.content + answer.reasoning === "" && stepOf(last.calls[0].id) === stepOf(item.id);
  const step = isSame ? last : { reasoning: answer.reasoning, content: answer.content, calls: [] };
  if (!isSame) {
    answer.steps.push(step);
    Object.assign(answer, { reasoning: "", content: "" });
  }
  const call = { id: item.id, server: item.server_label, name: item.name, arguments: item.arguments, state: "running", output: "", tookMs: null };
  step.calls.push(call);
  return call;
}

/** No more comes: what has no result can be allowed once more, if it had to be, or is lost. */
export function settle(answer) {
  for (const call of everyCall(answer)) {
    if (!["running", "approved"].includes(call.state)) continue;
    Object.assign(call, isAsked(call) ? { state: "asked", output: NO_RESULT } : { state: "lost", output: NO_RESULT });
  }
}

/** All text of an answer, that before its calls too. */
export function wholeText({ steps, content }) {
  return [...steps.map((step) => step.content), content].filter((text) => text.trim() !== "").join("\n\n");
}

/** Whether the model reads `output` as the end of the call; else it has none, for the reader did not allow it. */
const isEnded = ({ state, output }) => ["done", "failed", "lost"].includes(state) || output !== "";

/** The messages of a chat that stand for a step. */
export function stepMessages({ reasoning, content, calls }) {
  const told = calls.filter(isTold);
  const message = { role: "assistant", content: content === "" ? null : content };
  if (reasoning !== "") message.reasoning_content = reasoning;
  if (told.length === 0) return content === "" ? [] : [message];
  message.tool_calls = told.map((call) => ({
    id: tailOf(call.id),
    type: "function",
    function: { name: fullName(call), arguments: call.arguments },
  }));
  const results = told.map((call) => ({ role: "tool", tool_call_id: tailOf(call.id), content: isEnded(call) ? call.output : NOT_APPROVED }));
  return [message, ...results];
}

/** The items of a call in the input of a response. */
export function callItems(call) {
  if (!isTold(call)) return [];
  const { id, server, name, arguments: text, state, output } = call;
  const item = { server_label: server, name, arguments: text };
  if (state === "done") return [{ type: "mcp_call", id: runId(call), ...item, output }];
  if (isEnded(call)) return [{ type: "mcp_call", id: runId(call), ...item, error: output }];
  const request = { type: "mcp_approval_request", id, ...item };
  if (state === "asked") return [request];
  return [request, { type: "mcp_approval_response", approval_request_id: id, approve: state === "approved" }];
}

/** A call whose arguments broke off is told to nobody. */
function isTold({ state, arguments: text }) {
  if (state !== "lost") return true;
  try {
    return typeof JSON.parse(text) === "object";
  } catch {
    return false;
  }
}

/** The steps in data that is not believed. Without a call, a step would be text that nobody divided. */
export function stepsOf(value) {
  if (!Array.isArray(value)) return [];
  return value.filter(isStep).map(({ reasoning, content, calls }) => ({ reasoning, content, calls: calls.map(callOf) }));
}

const isStep = (step) =>
  typeof step?.reasoning === "string" && typeof step.content === "string" && Array.isArray(step.calls) && step.calls.length > 0 && step.calls.every(isCall);

const isCall = (call) => STATES.includes(call?.state) && ["id", "server", "name", "arguments", "output"].every((name) => typeof call[name] === "string");

function callOf({ id, server, name, arguments: text, state, output, tookMs }) {
  return { id, server, name, arguments: text, state, output, tookMs: Number.isFinite(tookMs) ? tookMs : null };
}
