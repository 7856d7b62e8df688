// The list of conversations, the latest first, or those that a search finds. The title of each is whole; what can be done
// with it is behind its button.
import { h } from "../shared/dom.js";
import { MAX_TITLE, titleOf } from "./conversation.js";
import { confirmed, written } from "./dialogs.js";
import { iconButton } from "./icons.js";
import { found } from "./search.js";

export class Sidebar {
  #list;
  #session;
  #on;
  #query = "";
  #unfolded = null; // id of the one whose actions are shown

  /**
   * @param {HTMLElement} list @param {HTMLInputElement} search
   * @param {{opened: () => void, exported: (conversation: object, kind: string) => void}} on `kind`: Markdown or JSON
   */
  constructor(list, search, session, on) {
    this.#list = list;
    this.#session = session;
    this.#on = on;
    search.addEventListener("input", () => {
      this.#query = search.value;
      this.update();
    });
  }

  update() {
    const focused = this.#list.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    const shown = found(this.#query, this.#session.all());
    const none = this.#query.trim() !== "" && h("li", { class: "muted small none" }, "No conversation has all these words.");
    this.#list.replaceChildren(...(shown.length === 0 && none ? [none] : shown.map((conversation) => this.#item(conversation))));
    if (focused === undefined) return;
    const buttons = [...this.#list.querySelectorAll("button")];
    (buttons.find((button) => button.dataset.focus === focused) ?? buttons[0])?.focus();
  }

  #item(conversation) {
    const { id } = conversation;
    const title = titleOf(conversation);
    const isCurrent = id === this.#session.current.id;
    const isUnfolded = this.#unfolded === id;
    const open = () => {
      this.#session.open(id);
      this.#on.opened();
    };
    const unfold = () => {
      this.#unfolded = isUnfolded ? null : id;
      this.update();
    };
    const more = { "data-focus": `${id} more`, "aria-expanded": String(isUnfolded), onclick: unfold };
    return h(
      "li",
      isCurrent ? { class: "current" } : {},
      h("button", { type: "button", class: "quiet open", "data-focus": id, "aria-current": isCurrent ? "true" : null, onclick: open }, title),
      iconButton("more", `Actions for ${title}`, more),
      isUnfolded && this.#actions(conversation, title),
    );
  }

  #actions(conversation, title) {
    const button = (label, name, does) =>
      h("button", { type: "button", class: "small", "data-focus": `${conversation.id} ${name}`, "aria-label": `${name} ${title}`, onclick: does }, label);
    const exports = ["Markdown", "JSON"].map((kind) => button(kind, `Export as ${kind}`, () => this.#on.exported(conversation, kind)));
    return h(
      "div",
      { class: "row unfolded" },
      button("Rename", "Rename", () => this.#rename(conversation)),
      button("Delete", "Delete", () => this.#remove(conversation)),
      ...exports,
    );
  }

  async #rename(conversation) {
    const asked = { title: "Rename the conversation", label: "Title", value: titleOf(conversation), yes: "Rename" };
    const title = await written({ ...asked, maxLength: MAX_TITLE });
    if (title !== null) this.#session.rename(conversation.id, title);
  }

  async #remove(conversation) {
    const text = `“${titleOf(conversation)}” is removed from this browser for good.`;
    if (await confirmed({ title: "Delete the conversation?", text, yes: "Delete" })) this.#session.remove(conversation.id);
  }
}
