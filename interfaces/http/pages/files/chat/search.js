// A search in the conversations: each word of it is somewhere in the title, a question, an answer or a file's name.
import { everyTurn } from "./branches.js";
import { titleOf } from "./conversation.js";
import { wholeText } from "./tool_steps.js";

/** @param {string} query empty finds all @param {object[]} conversations */
export function found(query, conversations) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return conversations;
  return conversations.filter((conversation) => {
    const text = textOf(conversation);
    return words.every((word) => text.includes(word));
  });
}

function textOf(conversation) {
  const turns = [...everyTurn(conversation.turns)];
  const parts = turns.flatMap(({ role, content, files, ...turn }) => [role === "user" ? content : wholeText({ content, ...turn }), ...(files ?? []).map((file) => file.name)]);
  return [titleOf(conversation), ...parts].join("\n").toLowerCase();
}
