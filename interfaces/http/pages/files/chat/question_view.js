// A question on the page, and the box in which it is edited. What follows an edited question goes.
import { h } from "../shared/dom.js";
import { Attachments, pictureView } from "./attachments.js";

export class QuestionView {
  #turn;
  #text = h("div", { class: "plain" });
  #edit;
  #onAsk;

  /** @param {(text: string, pictures: object[]) => void} onAsk with the question as edited */
  constructor(turn, onAsk) {
    this.#turn = turn;
    this.#onAsk = onAsk;
    this.#text.textContent = turn.content;
    this.#text.hidden = turn.content.trim() === "";
    const pictures = (turn.pictures ?? []).map((one, at) => h("li", {}, pictureView(one, `Image ${at + 1} of the question`)));
    this.#edit = h("button", { type: "button", class: "quiet small", onclick: () => this.#open() }, "Edit");
    this.element = h(
      "article",
      { class: "turn question" },
      h("h2", { class: "small visually-hidden" }, "You"),
      pictures.length > 0 && h("ul", { class: "pictures", "aria-label": "Images" }, ...pictures),
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
    const attached = new Attachments(() => {}, this.#turn.pictures);
    const form = h(
      "form",
      { class: "edit" },
      attached.element,
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
      if (area.value.trim() !== "" || attached.pictures.length > 0) this.#onAsk(area.value, attached.pictures);
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
