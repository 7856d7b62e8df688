// What the chat does, without a page: conversations, which one is open, and the answers that are being streamed.
//
// Each conversation has at most one answer under way; it goes on when another conversation is opened. Whatever changes
// is told by `onChange` ("list", "turns", "answer") and kept on the shelf: at once, but while an answer streams once a
// second at most.
import { isEmpty, newAnswer, reopen } from "./answer.js";
import { fork, turnTo } from "./branches.js";
import { ask, blankSettings, newConversation, requestBody } from "./conversation.js";
import { EventFold, responsesBody } from "./responses.js";
import { everyCall, fullName, serverOf, waiting } from "./tool_steps.js";

const SAVE_EVERY_MS = 1000;

export class Session {
  #shelf;
  #ports;
  #runs = new Map();

  /**
   * @param {import("./shelf.js").Shelf} shelf
   * @param {{request: (asked: object) => Promise<void>, newId: () => string, nowMs: () => number,
   *   later: (ms: number, then: () => void) => void, onChange: (what: string) => void,
   *   onUnkept: (saved: object) => void, servers: () => string[] | null}} ports `request`: completion.js, but for what is
   *   the same for all; `servers`: the tool servers that there are, null while that is not known
   */
  constructor(shelf, ports) {
    this.#shelf = shelf;
    this.#ports = ports;
    this.current = newConversation(ports.newId(), shelf.all()[0]?.settings ?? blankSettings(), ports.nowMs());
  }

  all() {
    return this.#shelf.all();
  }

  open(id) {
    const found = this.#shelf.get(id);
    if (found === undefined || found === this.current) return;
    this.current = found;
    this.#ports.onChange("turns");
  }

  startNew() {
    this.current = newConversation(this.#ports.newId(), this.current.settings, this.#ports.nowMs());
    this.#ports.onChange("turns");
  }

  /** With `at`: in place of the question there and of all after it, which stay as a branch. */
  ask(text, at = undefined, attached = {}) {
    const isBlank = text.trim() === "" && !attached.pictures?.length && !attached.files?.length;
    if (isBlank || this.isRunning()) return;
    ask(this.current, text, at, attached);
    this.#answer(this.current.turns.length);
  }

  /** The last question once more. The answer that it has stays beside the new one. */
  regenerate() {
    const { turns } = this.current;
    if (this.isRunning() || turns.length === 0) return;
    this.#answer(turns.at(-1).role === "assistant" ? turns.length - 1 : turns.length);
  }

  /** Shows another branch of those that begin at `at`. */
  turnTo(at, step) {
    if (this.isRunning()) return;
    turnTo(this.current.turns, at, step);
    this.#keep(this.current);
    this.#ports.onChange("turns");
  }

  /**
   * Takes in what a file has, the latest first, while there is room. What is here already stays as it is.
   * @returns {{numNew: number, numKnown: number, numUnkept: number}}
   */
  takeIn(conversations) {
    const counts = { numNew: 0, numKnown: 0, numUnkept: 0 };
    for (const conversation of conversations.toSorted((a, b) => b.changedMs - a.changedMs)) {
      if (this.#shelf.get(conversation.id) !== undefined) counts.numKnown += 1;
      else if (!this.#shelf.hasRoomFor(conversation)) counts.numUnkept += 1;
      else {
        this.#keep(conversation);
        counts.numNew += 1;
      }
    }
    this.#ports.onChange("list");
    return counts;
  }

  /** The last answer from where it ends. */
  goOn() {
    const answer = this.current.turns.at(-1);
    if (this.isRunning() || answer?.role !== "assistant") return;
    reopen(answer);
    this.#run(this.current, answer, { body: requestBody(this.current) });
  }

  /** The reader allows or refuses a call of the last answer, which goes on once all are decided. */
  decide(id, isApproved) {
    const answer = this.current.turns.at(-1);
    const call = answer?.role === "assistant" && !this.isRunning() ? waiting(answer).find((one) => one.id === id) : undefined;
    if (call === undefined) return;
    Object.assign(call, { state: isApproved ? "approved" : "refused", output: "" });
    if (waiting(answer).length > 0) {
      this.#keep(this.current);
      this.#ports.onChange("turns");
      return;
    }
    const request = this.#request(this.current);
    reopen(answer);
    this.#run(this.current, answer, request);
  }

  stop() {
    this.#runs.get(this.current.id)?.controller.abort();
  }

  isRunning() {
    return this.#runs.has(this.current.id);
  }

  /** The server's last word on the open conversation's answer while nothing of it is there. */
  progress() {
    return this.#runs.get(this.current.id)?.progress ?? "";
  }

  set(settings) {
    Object.assign(this.current.settings, settings);
    if (this.current.turns.length > 0) this.#save(this.current);
  }

  rename(id, title) {
    const conversation = this.#shelf.get(id);
    if (conversation === undefined) return;
    conversation.title = title.trim();
    this.#save(conversation);
  }

  remove(id) {
    const run = this.#runs.get(id);
    this.#runs.delete(id);
    run?.controller.abort();
    this.#shelf.remove(id);
    if (this.current.id === id) this.startNew();
    this.#ports.onChange("list");
  }

  /** Another tab has written to the storage. An answer that it is streaming is looked at when it is there. */
  hear(key, text) {
    const id = this.#shelf.idOf(key);
    if (id === null || this.#runs.has(id) || text?.includes('"state":"streaming"')) return;
    this.#shelf.hear(id, text);
    if (this.current.id === id) {
      this.current = this.#shelf.get(id) ?? newConversation(this.#ports.newId(), this.current.settings, this.#ports.nowMs());
      this.#ports.onChange("turns");
    }
    this.#ports.onChange("list");
  }

  /** The page goes away. */
  saveRunning() {
    for (const { conversation } of this.#runs.values()) this.#shelf.save(conversation);
  }

  /** At `at`, where an answer may be already. */
  #answer(at) {
    const { current } = this;
    const request = this.#request({ ...current, turns: current.turns.slice(0, at) });
    const answer = newAnswer(current.settings.model);
    fork(current.turns, at, answer);
    this.#run(current, answer, request);
  }

  /** With tools of servers, where some are switched on or approved, it goes to `/v1/responses`, which calls them. */
  #request(conversation) {
    const { settings, turns } = conversation;
    const servers = this.#ports.servers();
    const approved = turns.at(-1)?.role === "assistant" ? everyCall(turns.at(-1)).filter(({ state }) => state === "approved") : [];
    const on = settings.serverTools.filter((name) => servers === null || servers.includes(serverOf(name)));
    const tools = [...new Set([...on, ...approved.map(fullName)])];
    if (tools.length === 0 && !isDecided(turns)) return { body: requestBody(conversation) };
    const fold = new EventFold();
    return { url: "/v1/responses", body: responsesBody(conversation, tools), fold: (...event) => fold.fold(...event) };
  }

  async #run(conversation, answer, request) {
    const run = { conversation, controller: new AbortController(), progress: "", isSaveDue: false };
    const isCurrent = () => this.#runs.get(conversation.id) === run;
    const show = () => conversation === this.current && this.#ports.onChange("answer");
    this.#runs.set(conversation.id, run);
    conversation.changedMs = this.#ports.nowMs();
    this.#save(conversation);
    this.#ports.onChange("turns");
    await this.#ports.request({
      ...request,
      answer,
      signal: run.controller.signal,
      onProgress: (words) => {
        run.progress = words;
        show();
      },
      onChange: () => {
        if (!isEmpty(answer)) run.progress = "";
        if (isCurrent()) this.#saveSoon(run, isCurrent);
        show();
      },
    });
    if (!isCurrent()) return; // removed meanwhile
    this.#runs.delete(conversation.id);
    this.#save(conversation);
    if (conversation === this.current) this.#ports.onChange("turns");
  }

  #saveSoon(run, isCurrent) {
    if (run.isSaveDue) return;
    run.isSaveDue = true;
    this.#ports.later(SAVE_EVERY_MS, () => {
      run.isSaveDue = false;
      if (isCurrent()) this.#keep(run.conversation);
    });
  }

  #save(conversation) {
    this.#keep(conversation);
    this.#ports.onChange("list");
  }

  #keep(conversation) {
    const saved = this.#shelf.save(conversation);
    if (!saved.isKept || saved.numDropped + saved.numForgotten > 0) this.#ports.onUnkept(saved);
  }
}

/** Whether the last answer is to go on after calls that the reader has decided on. */
function isDecided(turns) {
  const last = turns.at(-1);
  return last?.role === "assistant" && last.steps.length > 0;
}
