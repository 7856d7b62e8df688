// What the whole page has to say: one notice of each kind, until there are no words for it. One that stays is not announced twice.
import { h } from "../shared/dom.js";

export class Notices {
  #element;
  #shown = new Map();

  constructor(element) {
    this.#element = element;
  }

  /** @param {{label: string, does: () => void}} [mend] what can be done about it */
  tell(kind, words, mend) {
    const old = this.#shown.get(kind);
    if (old?.words === words) return;
    old?.element.remove();
    this.#shown.delete(kind);
    if (words === "") return;
    const button = mend && h("button", { type: "button", class: "small", onclick: () => mend.does() }, mend.label);
    const element = h("div", { class: "notice warn row", role: "status" }, h("span", {}, words), button);
    this.#shown.set(kind, { words, element });
    this.#element.append(element);
  }
}
