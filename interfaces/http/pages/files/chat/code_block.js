// A block of code with its language, its colours and a button that copies it. Its text can grow in place, so that what a reader has
// selected in a long one stays selected while it is written.
import { h } from "../shared/dom.js";
import { iconButton, labelled } from "./icons.js";

const PLAIN = new Set(["", "text", "txt", "plain", "plaintext"]);

export class CodeBlock {
  static #blocks = new WeakMap();
  #text;
  #code;
  #isFinished = false;

  /** The one whose element it is. @returns {CodeBlock | undefined} */
  static of(element) {
    return CodeBlock.#blocks.get(element);
  }

  /** @param {string} language as the model named it, empty where it did not */
  constructor(text, language) {
    this.#text = document.createTextNode(text);
    this.#code = h("code", {}, this.#text);
    this.language = language;
    const copy = iconButton("copy", "Copy", { onclick: () => this.#copy(copy) });
    this.element = h(
      "div",
      { class: "code" },
      h("div", { class: "code-bar" }, h("span", { class: "muted small" }, language || "code"), copy),
      h("pre", { tabindex: "0" }, this.#code),
    );
    CodeBlock.#blocks.set(this.element, this);
  }

  /** Its text is whole: it gets colours, if its language has any. */
  async finish() {
    this.#isFinished = true;
    const text = this.#text.data;
    if (PLAIN.has(this.language.toLowerCase())) return;
    try {
      const { coloured } = await import("./code_colours.js");
      const nodes = coloured(text, this.language);
      if (nodes !== null && this.#text.data === text) this.#code.replaceChildren(...nodes);
    } catch {
      // not loaded: it stays without colours
    }
  }

  set text(text) {
    const had = this.#text.data;
    if (text === had) return;
    if (this.#text.parentNode === null) this.#code.replaceChildren(this.#text);
    if (text.startsWith(had)) this.#text.appendData(text.slice(had.length));
    else this.#text.data = text;
    if (this.#isFinished) this.finish(); // its colours were those of another text, or are still being loaded
  }

  #copy(button) {
    copyText(this.#text.data, button);
  }
}

/** Puts `text` on the clipboard and says on the button whether that went well. */
export async function copyText(text, button) {
  if (button.title !== "Copy") return; // it still says how the last time went
  if (await copied(text)) labelled(button, "check", "Copied");
  else button.replaceChildren((button.title = "Not allowed"));
  setTimeout(() => labelled(button, "copy", "Copy"), 1500);
}

/** Browsers give the clipboard only to pages from this machine or over TLS; the old way works on others. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "visually-hidden" });
    area.value = text;
    document.body.append(area);
    const focused = document.activeElement;
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return isDone;
  }
}
