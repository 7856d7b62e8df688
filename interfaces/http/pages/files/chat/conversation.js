// A conversation: its title, how it is asked, and turns of questions and answers. Plain data, kept in the browser.
//
// Turns alternate: a question, with `pictures` and `files` if it has any, then its answer; branches.js tells what can
// stand beside them. `settings` are blank (null, "") where the server's own apply.

import { hasNoLast, isEmpty } from "./answer.js";
import { fork } from "./branches.js";
import { stepMessages } from "./tool_steps.js";

export const MAX_TITLE = 80;

/** @typedef {{model: string, system: string, temperature: number | null, topP: number | null,
 *   maxTokens: number | null, seed: number | null, tools: string, serverTools: string[]}} Settings `tools`: JSON, as in
 *   a request; `serverTools`: names `server__tool` of those that are switched on */

/** @returns {Settings} */
export function blankSettings() {
  return { model: "", system: "", temperature: null, topP: null, maxTokens: null, seed: null, tools: "", serverTools: [] };
}

/** @param {string} id @param {Settings} settings @param {number} nowMs since the epoch */
export function newConversation(id, settings, nowMs) {
  return { id, title: "", createdMs: nowMs, changedMs: nowMs, settings: { ...settings }, turns: [] };
}

export function titleOf(conversation) {
  if (conversation.title !== "") return conversation.title;
  const [first] = conversation.turns;
  const asked = first?.content.trim().replace(/\s+/g, " ") ?? "";
  if (asked === "" && first?.files !== undefined) return first.files[0].name.slice(0, MAX_TITLE);
  if (asked === "") return first?.pictures === undefined ? "New conversation" : "Images";
  return asked.length > MAX_TITLE ? `${asked.slice(0, MAX_TITLE - 1)}…` : asked;
}

/**
 * Adds a question. With `at`, in place of the question there and all that followed it, which become a branch beside it.
 * @param {{pictures?: object[], files?: object[]}} attached
 */
export function ask({ turns }, content, at = turns.length, { pictures = [], files = [] } = {}) {
  const turn = { role: "user", content };
  if (pictures.length > 0) turn.pictures = pictures;
  if (files.length > 0) turn.files = files;
  fork(turns, at, turn);
}

/** The body of the request that the last turns ask for: an answer, or more of the last one. */
export function requestBody({ settings, turns }) {
  const messages = sentTurns(turns).flatMap(wireMessages);
  if (settings.system.trim() !== "") messages.unshift({ role: "system", content: settings.system });
  const body = { messages, ...settingsFields(settings) };
  if (messages.at(-1)?.role === "assistant") body.continue_final_message = true;
  return body;
}

/** The settings that are not blank, by their names in a chat completion. */
export function settingsFields(settings) {
  const body = {};
  if (settings.model !== "") body.model = settings.model;
  if (settings.temperature !== null) body.temperature = settings.temperature;
  if (settings.topP !== null) body.top_p = settings.topP;
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens;
  if (settings.seed !== null) body.seed = settings.seed;
  if (settings.tools.trim() !== "") body.tools = JSON.parse(settings.tools).filter((tool) => tool?.type !== "mcp"); // those of servers have switches
  return body;
}

/**
 * The turns that the model gets. A question whose answer never began (it was refused, or the server was not reached)
 * is left out with it, so that what failed once does not refuse all that follows; the last question is asked.
 */
export function sentTurns(turns) {
  return turns.filter((turn, at) => {
    const answer = turn.role === "user" ? turns[at + 1] : turn;
    return answer === undefined || !isEmpty(answer);
  });
}

/** Whether a turn is left out of every later request. */
export function isLeftOut(turns, at) {
  const turn = turns[at];
  return turn.role === "assistant" && at < turns.length - 1 && isEmpty(turn);
}

const textPart = (text) => ({ type: "text", text });

/** Text files come before the words, each as a block with its name. */
function withFiles(content, files) {
  const shown = files.filter(({ text }) => text !== undefined).map(({ name, text }) => `File ${name}:\n\n${fenced(text, "")}`);
  return [...shown, content].filter((part) => part.trim() !== "").join("\n\n");
}

/** Between more backticks than the text has in a row. */
export function fenced(text, language) {
  const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

export function questionContent({ content: words, pictures = [], files = [] }) {
  const content = files.length === 0 ? words : withFiles(words, files);
  const shown = [...pictures.map(picturePart), ...files.filter(({ text }) => text === undefined).map(pdfPart)];
  if (shown.length === 0) return content;
  return content.trim() === "" ? shown : [...shown, textPart(content)];
}

function picturePart({ url, gone }) {
  return gone ? textPart("[an image that is no longer kept]\n") : { type: "image_url", image_url: { url } };
}

function pdfPart({ name, url, gone }) {
  return gone ? textPart(`[the file ${name}, which is no longer kept]\n`) : { type: "file", file: { filename: name, file_data: url } };
}

/** The messages of a chat that a turn is. */
function wireMessages(turn) {
  if (turn.role === "user") return [{ role: "user", content: questionContent(turn) }];
  const steps = turn.steps.flatMap(stepMessages);
  return turn.steps.length > 0 && hasNoLast(turn) ? steps : [...steps, lastMessage(turn)];
}

function lastMessage(turn) {
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
