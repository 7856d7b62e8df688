// A block of code with its language and a button that copies it. Its text can grow in place, so that what a reader has
// selected in a long one stays selected while it is written.
import { h } from "../shared/dom.js";

export class CodeBlock {
  #text;

  constructor(text, language) {
    this.#text = document.createTextNode(text);
    const copy = h("button", { type: "button", class: "quiet small", onclick: () => this.#copy(copy) }, "Copy");
    this.element = h(
      "div",
      { class: "code" },
      h("div", { class: "code-bar" }, h("span", { class: "muted small" }, language), copy),
      h("pre", { tabindex: "0" }, h("code", {}, this.#text)),
    );
  }

  set text(text) {
    const had = this.#text.data;
    if (text.startsWith(had)) this.#text.appendData(text.slice(had.length));
    else this.#text.data = text;
  }

  #copy(button) {
    copyText(this.#text.data, button);
  }
}

/** Puts `text` on the clipboard and says on the button whether that went well. */
export async function copyText(text, button) {
  const label = button.textContent;
  if (label !== "Copy") return; // it still says how the last time went
  button.textContent = (await copied(text)) ? "Copied" : "Not allowed";
  setTimeout(() => (button.textContent = label), 1500);
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
