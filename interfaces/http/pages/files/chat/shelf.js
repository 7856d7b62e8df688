// The conversations that this browser keeps: each under a key of its own in a `Storage`, bounded, the oldest go first.
//
// What the browser has no room for stays in memory until the page closes; `save` says so. What does not read as a
// conversation (another version's, a damaged one) is removed.
import { fail, newAnswer } from "./answer.js";
import { blankSettings } from "./conversation.js";

const PREFIX = "cairn.conversation.";
export const MAX_CONVERSATIONS = 100;
export const MAX_CHARS = 2_000_000; // of all of them; browsers give some five million to an origin

const CLOSED = { message: "The page was closed before the answer ended.", status: 0, code: "closed", retryAfterS: null };

export class Shelf {
  #storage;
  #kept = new Map();
  #sizes = new Map();

  /** @param {Storage | null} storage null where the browser forbids it */
  constructor(storage) {
    this.#storage = storage;
    for (const key of storedKeys(storage)) this.#read(key);
  }

  /** The latest first. */
  all() {
    return [...this.#kept.values()].sort((a, b) => b.changedMs - a.changedMs);
  }

  get(id) {
    return this.#kept.get(id);
  }

  /**
   * Drops no more than makes room for what is saved.
   * @returns {{isKept: boolean, numDropped: number}} `isKept`: it will be here after a reload
   */
  save(conversation) {
    this.#kept.set(conversation.id, conversation);
    const text = JSON.stringify(conversation);
    const dropped = [];
    const dropOldest = () => {
      const oldest = this.all().findLast((other) => other.id !== conversation.id && this.#sizes.has(other.id));
      if (oldest === undefined) return false;
      dropped.push(this.#sizes.get(oldest.id));
      this.remove(oldest.id);
      return true;
    };
    const isRoomMade = () => dropped.reduce((sum, size) => sum + size, 0) >= text.length;
    const result = (isKept) => ({ isKept, numDropped: dropped.length });
    if (text.length > MAX_CHARS) return result(false);
    while (this.#isOverBounds(conversation.id, text.length)) dropOldest();
    while (!this.#write(conversation.id, text)) if (isRoomMade() || !dropOldest()) return result(false);
    return result(true);
  }

  /** Whether a key of the storage is a conversation's, and of which. @returns {string | null} */
  idOf(key) {
    return key?.startsWith(PREFIX) ? key.slice(PREFIX.length) : null;
  }

  /** Another tab has written this conversation, or removed it (null). */
  hear(id, text) {
    const conversation = text === null ? null : read(text);
    if (conversation?.id === id) {
      this.#kept.set(id, conversation);
      this.#sizes.set(id, text.length);
    } else if (text === null) {
      this.#kept.delete(id);
      this.#sizes.delete(id);
    }
  }

  remove(id) {
    this.#kept.delete(id);
    this.#sizes.delete(id);
    this.#storage?.removeItem(PREFIX + id);
  }

  #isOverBounds(id, numChars) {
    const others = [...this.#sizes].filter(([other]) => other !== id);
    const total = others.reduce((sum, [, size]) => sum + size, numChars);
    return others.length >= MAX_CONVERSATIONS || total > MAX_CHARS;
  }

  #write(id, text) {
    if (this.#storage === null) return false;
    try {
      this.#storage.setItem(PREFIX + id, text);
    } catch {
      return false; // over the quota, or forbidden by now
    }
    this.#sizes.set(id, text.length);
    return true;
  }

  #read(key) {
    const text = this.#storage.getItem(key) ?? "";
    const conversation = read(text);
    if (conversation === null || PREFIX + conversation.id !== key) {
      this.#storage.removeItem(key);
      return;
    }
    this.#kept.set(conversation.id, conversation);
    this.#sizes.set(conversation.id, text.length);
  }
}

/** A conversation out of its text; null for anything else. An answer that was streaming is broken now. */
export function read(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value?.id !== "string" || typeof value.title !== "string" || !Number.isFinite(value.changedMs)) return null;
  if (!Array.isArray(value.turns) || !value.turns.every(isTurn)) return null;
  value.settings = { ...blankSettings(), ...value.settings };
  value.turns = value.turns.map((turn) => (turn.role === "user" ? turn : { ...newAnswer(""), ...turn }));
  for (const turn of value.turns) if (turn.role === "assistant") fail(turn, CLOSED);
  return value;
}

function isTurn(turn) {
  if (typeof turn?.content !== "string") return false;
  return turn.role === "user" || (turn.role === "assistant" && Array.isArray(turn.calls) && typeof turn.reasoning === "string");
}

function storedKeys(storage) {
  const keys = [];
  for (let at = 0; at < (storage?.length ?? 0); at += 1) keys.push(storage.key(at));
  return keys.filter((key) => key.startsWith(PREFIX));
}
