// A question on the page, and the box in which it is edited.
import { h } from "../shared/dom.js";
import { Attachments, fileView, pictureView } from "./attachments.js";
import { BranchSwitch } from "./branch_switch.js";

export class QuestionView {
  #turn;
  #text = h("div", { class: "plain" });
  #edit;
  #branches;
  #onAsk;

  /** @param {{turnTo: (step: number) => void, ask: (text: string, attached: object) => void}} on `ask`: as edited */
  constructor(turn, { turnTo, ask }) {
    this.#turn = turn;
    this.#onAsk = ask;
    this.#branches = new BranchSwitch("question", turnTo);
    this.#text.textContent = turn.content;
    this.#text.hidden = turn.content.trim() === "";
    const pictures = (turn.pictures ?? []).map((one, at) => h("li", {}, pictureView(one, `Image ${at + 1} of the question`)));
    const files = (turn.files ?? []).map((file) => h("li", {}, fileView(file)));
    this.#edit = h("button", { type: "button", class: "quiet small", onclick: () => this.#open() }, "Edit");
    this.element = h(
      "article",
      { class: "turn question" },
      h("h2", { class: "small visually-hidden" }, "You"),
      pictures.length > 0 && h("ul", { class: "pictures", "aria-label": "Images" }, ...pictures),
      files.length > 0 && h("ul", { class: "files", "aria-label": "Files" }, ...files),
      this.#text,
      h("div", { class: "row actions" }, this.#branches.element, this.#edit),
    );
  }

  update({ isRunning, branches }) {
    this.#branches.update(branches, isRunning);
    this.#edit.disabled = isRunning;
  }

  #open() {
    const area = h("textarea", { "aria-label": "Edit the question", rows: "3" });
    area.value = this.#turn.content;
    const attached = new Attachments({}, this.#turn);
    const form = h(
      "form",
      { class: "edit" },
      attached.element,
      area,
      h("p", { class: "small muted" }, "The question as it was stays, with what follows it, behind the arrows."),
      h(
        "div",
        { class: "row" },
        h("button", { type: "submit", class: "primary" }, "Ask again"),
        h("button", { type: "button", onclick: () => this.#close(form) }, "Cancel"),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#onAsk(area.value, attached.all);
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
