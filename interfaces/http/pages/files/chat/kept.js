// Conversations out of text: what the browser kept, or a file that somebody gives. Nothing of it is believed: what has
// not the form of a conversation is none, and a part that has not its form is left out.
import { fail, newAnswer } from "./answer.js";
import { changedTurns } from "./branches.js";
import { blankSettings } from "./conversation.js";
import { stepsOf } from "./tool_steps.js";

const CLOSED = { message: "The page was closed before the answer ended.", status: 0, code: "closed", retryAfterS: null };

/** A conversation out of its text; null for anything else. An answer that was streaming is broken now. */
export function read(text) {
  try {
    return conversationOf(JSON.parse(text));
  } catch {
    return null;
  }
}

/** The same of parsed data. */
export function conversationOf(value) {
  try {
    JSON.stringify(value);
    return formed(value);
  } catch {
    return null; // nested deeper than the stack: it could not be kept
  }
}

function formed(value) {
  if (typeof value?.id !== "string" || typeof value.title !== "string" || !Number.isFinite(value.changedMs)) return null;
  if (!isBranch(value.turns)) return null;
  const { id, title, changedMs } = value;
  const createdMs = Number.isFinite(value.createdMs) ? value.createdMs : changedMs;
  return { id, title, createdMs, changedMs, settings: settingsOf(value.settings), turns: changedTurns(value.turns, turnOf) };
}

function isBranch(turns) {
  return Array.isArray(turns) && turns.every(isTurn);
}

function isTurn(turn) {
  if (typeof turn?.content !== "string" || !hasPlace(turn)) return false;
  if (turn.role === "user") return isListOf(turn.pictures, isPicture) && isListOf(turn.files, isFile);
  return turn.role === "assistant" && Array.isArray(turn.calls) && typeof turn.reasoning === "string";
}

function hasPlace({ role, others, place }) {
  if (others === undefined) return true;
  if (!Array.isArray(others) || !Number.isInteger(place) || place < 0 || place > others.length) return false;
  return others.every((branch) => isBranch(branch) && branch[0]?.role === role && branch[0].others === undefined);
}

const isListOf = (value, isOne) => value === undefined || (Array.isArray(value) && value.every(isOne));

/** Whether data is a file, of text or PDF, that a page may show and send. */
function isFile(value) {
  if (typeof value?.name !== "string") return false;
  if (value.text !== undefined) return typeof value.text === "string";
  return Number.isFinite(value.size) && (value.gone === true || (typeof value.url === "string" && value.url.startsWith("data:application/pdf;base64,")));
}

/** Whether data is a picture that a page may show. */
function isPicture(value) {
  if (value?.gone === true) return true;
  return typeof value?.url === "string" && /^data:image\/(png|jpeg);base64,/.test(value.url) && Number.isFinite(value.width) && Number.isFinite(value.height);
}

function turnOf(turn) {
  if (turn.role === "user") return turn;
  const made = newAnswer("");
  const { others, place } = turn;
  for (const [name, blank] of Object.entries(made)) if (isLike(turn[name], blank, NULLABLE[name])) made[name] = turn[name];
  made.calls = turn.calls.filter((call) => ["id", "name", "arguments"].every((name) => typeof call?.[name] === "string"));
  made.callProblems = made.callProblems.map(String);
  made.steps = stepsOf(turn.steps);
  if (typeof made.problem?.message !== "string") made.problem = null;
  if (!STATES.includes(made.state)) made.state = "streaming";
  if (made.state === "broken") made.problem = { ...CLOSED, code: "", ...made.problem };
  fail(made, CLOSED);
  return others === undefined ? made : { ...made, others, place };
}

const STATES = ["streaming", "done", "stopped", "broken"];

/** The type of what is null until it is known. */
const NULLABLE = { finish: "string", usage: "object", problem: "object", firstMs: "number", lastMs: "number" };

function isLike(value, blank, nullable) {
  if (blank === null) return value === null || typeof value === nullable;
  return typeof value === typeof blank && Array.isArray(value) === Array.isArray(blank);
}

function settingsOf(value) {
  const settings = blankSettings();
  for (const [name, blank] of Object.entries(settings)) {
    if (typeof value?.[name] === (blank === null ? "number" : "string")) settings[name] = value[name];
  }
  if (Array.isArray(value?.serverTools)) settings.serverTools = value.serverTools.filter((name) => typeof name === "string");
  try {
    if (settings.tools.trim() !== "" && !Array.isArray(JSON.parse(settings.tools))) settings.tools = "";
  } catch {
    settings.tools = "";
  }
  return settings;
}
