// The conversations that this browser keeps: each under a key of its own in a `Storage`, bounded, the oldest go first,
// and the images and PDF files of all older ones before any conversation.
//
// What the browser has no room for stays in memory until the page closes; `save` says so. What does not read as a
// conversation (another version's, a damaged one) is removed.
import { changedTurns, everyTurn } from "./branches.js";
import { read } from "./kept.js";

const PREFIX = "cairn.conversation.";
export const MAX_CONVERSATIONS = 100;
export const MAX_CHARS = 2_000_000; // of all of them; browsers give some five million to an origin
export const MAX_RESULT_CHARS = 30_000; // of one call's result, once the page is closed
export const MAX_MEDIA_CHARS = 1_500_000; // of the images and PDF files of one

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
   * @returns {{isKept: boolean, numDropped: number, numForgotten: number}} `isKept`: it will be here after a reload.
   *   `numForgotten`: conversations that stay without their images and PDF files
   */
  save(conversation) {
    this.#kept.set(conversation.id, conversation);
    const text = storedText(conversation);
    let numDropped = 0;
    let numForgotten = 0;
    let numFreed = 0;
    const older = (fits) => this.all().findLast((other) => other.id !== conversation.id && this.#sizes.has(other.id) && fits(other));
    const makeRoom = (isForMedia) => {
      const laden = isForMedia ? older(hasMedia) : undefined;
      const oldest = laden ?? older(() => true);
      if (oldest === undefined) return false;
      const size = this.#sizes.get(oldest.id);
      if (laden === undefined || !this.#forgetMedia(oldest)) {
        numDropped += 1;
        this.remove(oldest.id);
      } else {
        numForgotten += 1;
      }
      numFreed += size - (this.#sizes.get(oldest.id) ?? 0);
      return true;
    };
    const result = (isKept) => ({ isKept, numDropped, numForgotten });
    if (text.length > MAX_CHARS) return result(false);
    while (this.#numOthers(conversation.id) >= MAX_CONVERSATIONS) makeRoom(false);
    while (this.#isOverBounds(conversation.id, text.length)) makeRoom(true);
    while (!this.#write(conversation.id, text)) if (numFreed >= text.length || !makeRoom(true)) return result(false);
    return result(true);
  }

  /** Whether saving it lets no other go. */
  hasRoomFor(conversation) {
    return this.#numOthers(conversation.id) < MAX_CONVERSATIONS && !this.#isOverBounds(conversation.id, storedText(conversation).length);
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

  #numOthers(id) {
    return this.#sizes.size - (this.#sizes.has(id) ? 1 : 0);
  }

  #isOverBounds(id, numChars) {
    const others = [...this.#sizes].filter(([other]) => other !== id);
    return others.reduce((sum, [, size]) => sum + size, numChars) > MAX_CHARS;
  }

  /** Whether it could be kept without its images and PDF files. */
  #forgetMedia(conversation) {
    for (const turn of everyTurn(conversation.turns)) Object.assign(turn, without(turn, () => true));
    return this.#write(conversation.id, JSON.stringify(conversation));
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

/** The images and PDF files of a turn that have their data. */
const media = ({ pictures = [], files = [] }) => [...pictures, ...files].filter(({ url }) => url !== undefined);

/** A turn in which some media are gone: what stays of them is the name. */
function without(turn, isGone) {
  const kept = { ...turn };
  const rest = (one) => {
    if (one.url === undefined || !isGone(one)) return one;
    return one.name === undefined ? { gone: true } : { name: one.name, size: one.size, gone: true };
  };
  if (turn.pictures !== undefined) kept.pictures = turn.pictures.map(rest);
  if (turn.files !== undefined) kept.files = turn.files.map(rest);
  return kept;
}

/** A turn whose results are no longer than a browser has room for. */
function withShortResults(turn) {
  if (!turn.steps?.length) return turn;
  const cut = (call) => (call.output.length > MAX_RESULT_CHARS ? { ...call, output: `${call.output.slice(0, MAX_RESULT_CHARS)}\n[the rest is no longer kept]` } : call);
  return { ...turn, steps: turn.steps.map((step) => ({ ...step, calls: step.calls.map(cut) })) };
}

function hasMedia({ turns }) {
  return [...everyTurn(turns)].some((turn) => media(turn).length > 0);
}

/** The text that is kept: of a conversation with many media the last ones. In memory all of them stay. */
function storedText(conversation) {
  let room = MAX_MEDIA_CHARS;
  const gone = new Set();
  for (const turn of [...everyTurn(conversation.turns)].reverse()) {
    for (const one of media(turn)) if ((room -= one.url.length) < 0) gone.add(one);
  }
  const kept = (turn) => withShortResults(without(turn, (one) => gone.has(one)));
  return JSON.stringify({ ...conversation, turns: changedTurns(conversation.turns, kept) });
}

function storedKeys(storage) {
  const keys = [];
  for (let at = 0; at < (storage?.length ?? 0); at += 1) keys.push(storage.key(at));
  return keys.filter((key) => key.startsWith(PREFIX));
}
