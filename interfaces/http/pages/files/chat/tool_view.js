// The calls of tools on the page: a row each, folded, or a card where the reader has to allow it. All that a server or a
// model wrote is text, with what cannot be seen made visible, and cut at a length until the reader wants more.
import { seconds } from "../shared/format.js";
import { h, setText } from "../shared/dom.js";
import { GrowingMarkdown } from "./growing_markdown.js";

const MAX_SHOWN_CHARS = 2000;
const MAX_INDENT = 20;
const INVISIBLE = /[\p{Cc}\p{Cf}\u2028\u2029\u{fe00}-\u{fe0f}\u{e0100}-\u{e01ef}]/gu;
const JSON_PARTS = /"[^"\\]*(?:\\.[^"\\]*)*"?|\{\s*\}|\[\s*\]|[{}[\],:]|\s+/gs;

/** Text in which characters that hide or turn others round are seen. */
export function visible(text) {
  return text.replaceAll("\r\n", "\n").replace(INVISIBLE, (one) => (one === "\n" || one === "\t" ? one : `\\u{${one.codePointAt(0).toString(16)}}`));
}

/** JSON on lines of its own, each value as it was written: what is approved is what is shown. */
export function laidOut(json) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(Math.max(depth, 0), MAX_INDENT))}`;
  return json.replace(JSON_PARTS, (part) => {
    if (part === "{" || part === "[") depth += 1;
    if (part === "}" || part === "]") depth -= 1;
    if ("{[,".includes(part)) return part + line();
    if ("}]".includes(part)) return line() + part;
    if (part === ":") return ": ";
    return part.startsWith('"') ? part : part.replace(/\s/g, ""); // blanks, or brackets around nothing
  });
}

/** A text of any length, of which the first part is shown. */
export class CutText {
  #text = "";
  #isWhole = false;
  isCut = false;
  #shown;
  #more = h("button", { type: "button", class: "quiet small", hidden: true, onclick: () => this.#showAll() });

  /** @param {HTMLElement} shown the element of the text @param {() => void} onWhole it is no longer cut */
  constructor(shown = h("pre", { tabindex: "0" }), max = MAX_SHOWN_CHARS, onWhole = () => {}) {
    this.onWhole = onWhole;
    this.#shown = shown;
    this.max = max;
    this.element = h("div", { class: "cut" }, shown, this.#more);
  }

  update(text) {
    if (text === this.#text) return;
    this.#text = text;
    this.isCut = !this.#isWhole && text.length > this.max;
    this.#more.hidden = !this.isCut;
    setText(this.#more, `Show more (${text.length - this.max} characters)`);
    setText(this.#shown, visible(this.isCut ? text.slice(0, this.max) : text) + (this.isCut ? " …" : ""));
  }

  #showAll() {
    this.#isWhole = true;
    this.isCut = false;
    this.#more.hidden = true;
    setText(this.#shown, visible(this.#text));
    this.#shown.focus();
    this.onWhole();
  }
}

/** What came before the calls of a step, and a row or card for each of these. */
export class StepView {
  #reasoning;
  #body = h("div", { class: "markdown" });
  #text = new GrowingMarkdown(this.#body);
  #calls = [];

  /** @param {object} reasoning a view of it @param {(id: string, isApproved: boolean) => void} onDecide */
  constructor(reasoning, onDecide) {
    this.#reasoning = reasoning;
    this.onDecide = onDecide;
    this.element = h("div", { class: "step" }, reasoning.element, this.#body);
  }

  get text() {
    return this.#body.textContent;
  }

  update({ reasoning, content, calls }, canDecide) {
    this.#reasoning.update(reasoning, "Reasoning");
    this.#text.update(content);
    this.#text.finish();
    for (const [at, call] of calls.entries()) {
      this.#calls[at] ??= this.#newCall(call);
      this.#calls[at].update(call, canDecide);
    }
  }

  #newCall({ id }) {
    const view = new ServerCallView((isApproved) => this.onDecide(id, isApproved));
    this.element.append(view.element);
    return view;
  }
}

const took = (ms) => (ms === null || ms < 1 ? "" : `, ${seconds(ms / 1000)}`);

const WORDS = {
  running: () => "running …",
  asked: () => "not answered",
  approved: () => "approved",
  refused: () => "refused",
  done: ({ tookMs }) => `result${took(tookMs)}`,
  failed: ({ tookMs }) => `error${took(tookMs)}`,
  lost: () => "no result",
};

class ServerCallView {
  element = h("div", { class: "server-call" });
  #onDecide;
  #isCard = null;
  #written = null;
  #name = h("span", { class: "mono" });
  #state = h("span", { class: "muted" });
  #arguments = new CutText(undefined, undefined, () => this.#allow());
  #approve = h("button", { type: "button", class: "primary", onclick: () => this.#onDecide(true) }, "Approve");
  #refuse = h("button", { type: "button", onclick: () => this.#onDecide(false) }, "Refuse");
  #output = new CutText();
  #result = h("div", {}, h("p", { class: "small muted" }, "Result"), this.#output.element);
  #lost = h("p", { class: "small", hidden: true });

  constructor(onDecide) {
    this.#onDecide = onDecide;
  }

  update(call, canDecide) {
    const isCard = canDecide && call.state === "asked";
    if (isCard !== this.#isCard) this.#build(isCard, call);
    setText(this.#name, visible(`${call.server}: ${call.name}`));
    setText(this.#state, WORDS[call.state](call));
    this.#state.className = call.state === "failed" || call.state === "lost" ? "bad" : "muted";
    if (call.arguments !== this.#written) this.#arguments.update(laidOut((this.#written = call.arguments)));
    this.#allow();
    this.#output.update(call.output);
    this.#result.hidden = call.output === "";
    this.#lost.hidden = call.output === "";
    setText(this.#lost, `${call.output} If you approve it, it runs again.`);
  }

  /** What is approved has been shown. */
  #allow() {
    this.#approve.disabled = this.#arguments.isCut;
    this.#approve.title = this.#approve.disabled ? "Show all of the arguments first" : "";
  }

  #build(isCard, { server, name }) {
    this.#isCard = isCard;
    const words = h("p", { class: "small muted" }, "Arguments");
    if (!isCard) {
      const summary = h("summary", { class: "small" }, this.#name, " ", this.#state);
      this.element.replaceChildren(h("details", { class: "call" }, summary, words, this.#arguments.element, this.#result));
      return;
    }
    const label = visible(`Allow the call of ${name} on the server ${server}?`);
    this.element.replaceChildren(
      h(
        "div",
        { class: "card approval", role: "group", "aria-label": label, tabindex: "-1" },
        h("h3", {}, "Allow this call?"),
        h("p", {}, this.#name),
        words,
        this.#arguments.element,
        this.#lost,
        h("div", { class: "row" }, this.#approve, this.#refuse),
      ),
    );
  }
}
