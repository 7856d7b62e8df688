// Conversations as files: JSON with all that is known of them, which can be taken in again, or Markdown to read.
import { changedTurns } from "./branches.js";
import { fenced, titleOf } from "./conversation.js";
import { shownFigures } from "./figures.js";
import { conversationOf } from "./kept.js";
import { NO_RESULT } from "./tool_steps.js";

export function asJson(conversation) {
  return `${JSON.stringify({ format: "cairn.conversation.v1", ...conversation }, null, 2)}\n`;
}

/** All of them in one file, which `imported` reads. */
export function allAsJson(conversations) {
  return `${JSON.stringify({ format: "cairn.conversations.v1", conversations }, null, 2)}\n`;
}

/**
 * The conversations of a file that this page wrote, of one or of all.
 * @returns {{conversations: object[], numBad: number} | null} null for another file
 */
export function imported(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  const all = value?.format === "cairn.conversation.v1" ? [value] : value?.format === "cairn.conversations.v1" ? value.conversations : null;
  if (!Array.isArray(all)) return null;
  const conversations = all.map(conversationOf).filter((one) => one !== null).map(harmless);
  return { conversations, numBad: all.length - conversations.length };
}

/** A file switches no tools on, and asks for no approval of a call. */
function harmless(conversation) {
  const lost = (call) => (["asked", "approved"].includes(call.state) ? { ...call, state: "lost", output: NO_RESULT } : call);
  const turns = changedTurns(conversation.turns, (turn) => {
    if (turn.role === "user") return turn;
    return { ...turn, steps: turn.steps.map((step) => ({ ...step, calls: step.calls.map(lost) })) };
  });
  return { ...conversation, settings: { ...conversation.settings, serverTools: [] }, turns };
}

export function asMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.settings.system.trim() !== "") parts.push("## System", conversation.settings.system);
  for (const turn of conversation.turns) parts.push(...(turn.role === "user" ? question(turn) : answer(turn)));
  return `${parts.join("\n\n")}\n`;
}

/** A name that every file system takes. */
export function fileName(conversation, extension) {
  const words = titleOf(conversation).toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60);
  return `${words.replace(/^-+|-+$/g, "") || "conversation"}.${extension}`;
}

function question({ content, pictures, files = [] }) {
  return ["## You", ...(pictures === undefined ? [] : [`*${pictures.length === 1 ? "An image" : `${pictures.length} images`}*`]), ...files.map((file) => `*File ${file.name}*`), content];
}

function answer(turn) {
  const parts = [`## ${turn.model || "Answer"}`];
  for (const { reasoning, content, calls } of turn.steps) {
    parts.push(...said(reasoning, content));
    for (const call of calls) parts.push(`Call of \`${call.server}\`, \`${call.name}\`:`, fenced(call.arguments, "json"), fenced(call.output, ""));
  }
  parts.push(...said(turn.reasoning, turn.content));
  for (const call of turn.calls) parts.push(`Call of \`${call.name}\`:\n\n${fenced(call.arguments, "json")}`);
  if (turn.state !== "done") parts.push(`*${turn.problem?.message ?? "Stopped."}*`);
  const figures = shownFigures(turn).map(([label, value]) => `${label}: ${value}`);
  if (figures.length > 0) parts.push(`*${figures.join(" · ")}*`);
  return parts;
}

function said(reasoning, content) {
  const shown = reasoning === "" ? [] : [`<details><summary>Reasoning</summary>\n\n${reasoning}\n\n</details>`];
  return content === "" ? shown : [...shown, content];
}
