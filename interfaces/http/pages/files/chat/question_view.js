// A question on the page, and the box in which it is edited. What follows an edited question goes.
import { h } from "../shared/dom.js";

export class QuestionView {
  #turn;
  #text = h("div", { class: "plain" });
  #edit;
  #onAsk;

  /** @param {(text: string) => void} onAsk with the text as edited */
  constructor(turn, onAsk) {
    this.#turn = turn;
    this.#onAsk = onAsk;
    this.#text.textContent = turn.content;
    this.#edit = h("button", { type: "button", class: "quiet small", onclick: () => this.#open() }, "Edit");
    this.element = h(
      "article",
      { class: "turn question" },
      h("h2", { class: "small visually-hidden" }, "You"),
      this.#text,
      h("div", { class: "row actions" }, this.#edit),
    );
  }

  update({ isRunning }) {
    this.#edit.disabled = isRunning;
  }

  #open() {
    const area = h("textarea", { "aria-label": "Edit the question", rows: "3" });
    area.value = this.#turn.content;
    const form = h(
      "form",
      { class: "edit" },
      area,
      h("p", { class: "small muted" }, "What follows this question is replaced by a new answer."),
      h(
        "div",
        { class: "row" },
        h("button", { type: "submit", class: "primary" }, "Ask again"),
        h("button", { type: "button", onclick: () => this.#close(form) }, "Cancel"),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (area.value.trim() !== "") this.#onAsk(area.value);
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.#close(form);
    });
    this.element.classList.add("editing");
    this.element.append(form);
    area.focus();
  }

  #close(form) {
    form.remove();
    this.element.classList.remove("editing");
    this.#edit.focus();
  }
}
