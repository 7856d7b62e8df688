// A conversation as a file: JSON with all that is known of it, or Markdown to read.
import { titleOf } from "./conversation.js";
import { shownFigures } from "./figures.js";

export function asJson(conversation) {
  return `${JSON.stringify({ format: "cairn.conversation.v1", ...conversation }, null, 2)}\n`;
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

function question({ content, pictures }) {
  return ["## You", ...(pictures === undefined ? [] : [`*${pictures.length === 1 ? "An image" : `${pictures.length} images`}*`]), content];
}

function answer(turn) {
  const parts = [`## ${turn.model || "Answer"}`];
  if (turn.reasoning !== "") parts.push(`<details><summary>Reasoning</summary>\n\n${turn.reasoning}\n\n</details>`);
  if (turn.content !== "") parts.push(turn.content);
  for (const call of turn.calls) parts.push(`Call of \`${call.name}\`:\n\n${fenced(call.arguments)}`);
  if (turn.state !== "done") parts.push(`*${turn.problem?.message ?? "Stopped."}*`);
  const figures = shownFigures(turn).map(([label, value]) => `${label}: ${value}`);
  if (figures.length > 0) parts.push(`*${figures.join(" · ")}*`);
  return parts;
}

/** Between more backticks than the text has in a row. */
function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}json\n${text}\n${fence}`;
}
