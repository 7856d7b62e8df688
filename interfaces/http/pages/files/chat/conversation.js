// A conversation: its title, how it is asked, and turns of questions and answers. Plain data, kept in the browser.
//
// Turns alternate: a question, with `pictures` if it has any, then its answer. `settings` are blank (null, "") where the server's own apply.

export const MAX_TITLE = 80;

/** @typedef {{model: string, system: string, temperature: number | null, topP: number | null,
 *   maxTokens: number | null, seed: number | null, tools: string}} Settings `tools`: JSON, as in a request */

/** @returns {Settings} */
export function blankSettings() {
  return { model: "", system: "", temperature: null, topP: null, maxTokens: null, seed: null, tools: "" };
}

/** @param {string} id @param {Settings} settings @param {number} nowMs since the epoch */
export function newConversation(id, settings, nowMs) {
  return { id, title: "", createdMs: nowMs, changedMs: nowMs, settings: { ...settings }, turns: [] };
}

export function titleOf(conversation) {
  if (conversation.title !== "") return conversation.title;
  const [first] = conversation.turns;
  const asked = first?.content.trim().replace(/\s+/g, " ") ?? "";
  if (asked === "") return first?.pictures === undefined ? "New conversation" : "Images";
  return asked.length > MAX_TITLE ? `${asked.slice(0, MAX_TITLE - 1)}…` : asked;
}

/** Adds a question. With `at`, in place of the question there and all that followed it. */
export function ask(conversation, content, at = conversation.turns.length, pictures = []) {
  const turn = { role: "user", content };
  if (pictures.length > 0) turn.pictures = pictures;
  conversation.turns.splice(at, Infinity, turn);
}

/** The body of the request that the last turns ask for: an answer, or more of the last one. */
export function requestBody({ settings, turns }) {
  const messages = joinedQuestions(turns.filter((turn) => turn.role === "user" || isTold(turn)).map(wireMessage));
  if (settings.system.trim() !== "") messages.unshift({ role: "system", content: settings.system });
  const body = { messages };
  if (settings.model !== "") body.model = settings.model;
  if (settings.temperature !== null) body.temperature = settings.temperature;
  if (settings.topP !== null) body.top_p = settings.topP;
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens;
  if (settings.seed !== null) body.seed = settings.seed;
  if (settings.tools.trim() !== "") body.tools = JSON.parse(settings.tools);
  if (messages.at(-1)?.role === "assistant") body.continue_final_message = true;
  return body;
}

/** Whether there is anything of an answer to tell the model. */
function isTold(turn) {
  return turn.content !== "" || turn.calls.length > 0;
}

/** Questions whose answers never came are one: many chat templates refuse two in a row. */
function joinedQuestions(messages) {
  const joined = [];
  for (const message of messages) {
    const before = joined.at(-1);
    if (message.role === "user" && before?.role === "user") before.content = joinedContent(before.content, message.content);
    else joined.push(message);
  }
  return joined;
}

function joinedContent(first, second) {
  if (typeof first === "string" && typeof second === "string") return `${first}\n\n${second}`;
  return [...parts(first), textPart("\n\n"), ...parts(second)];
}

const parts = (content) => (typeof content === "string" ? [textPart(content)] : content);

const textPart = (text) => ({ type: "text", text });

function question({ content, pictures }) {
  if (pictures === undefined) return content;
  const shown = pictures.map((one) => (one.gone ? textPart("[an image that is no longer kept]\n") : { type: "image_url", image_url: { url: one.url } }));
  return content.trim() === "" ? shown : [...shown, textPart(content)];
}

function wireMessage(turn) {
  if (turn.role === "user") return { role: "user", content: question(turn) };
  const message = { role: "assistant", content: turn.content };
  if (turn.reasoning !== "") message.reasoning_content = turn.reasoning;
  if (turn.calls.length > 0) {
    message.content = turn.content === "" ? null : turn.content;
    message.tool_calls = turn.calls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }
  return message;
}
