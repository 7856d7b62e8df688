// The list of conversations, the latest first; each can be opened, renamed and deleted.
import { h } from "../shared/dom.js";
import { MAX_TITLE, titleOf } from "./conversation.js";
import { confirmed, written } from "./dialogs.js";

export class Sidebar {
  #list;
  #session;
  #onOpened;

  /** @param {HTMLElement} list @param {() => void} onOpened */
  constructor(list, session, onOpened) {
    this.#list = list;
    this.#session = session;
    this.#onOpened = onOpened;
  }

  update() {
    const focused = document.activeElement?.dataset.focus;
    this.#list.replaceChildren(...this.#session.all().map((conversation) => this.#item(conversation)));
    if (focused === undefined) return;
    const buttons = [...this.#list.querySelectorAll("button")];
    (buttons.find((button) => button.dataset.focus === focused) ?? buttons[0])?.focus();
  }

  #item(conversation) {
    const { id } = conversation;
    const title = titleOf(conversation);
    const isCurrent = id === this.#session.current.id;
    const open = () => {
      this.#session.open(id);
      this.#onOpened();
    };
    const button = (label, does, props = {}) =>
      h("button", { type: "button", class: "quiet", "data-focus": `${id} ${label}`, onclick: does, ...props }, label);
    return h(
      "li",
      isCurrent ? { class: "current" } : {},
      button(title, open, { class: "quiet open", "aria-current": isCurrent ? "true" : null, title }),
      button("Rename", () => this.#rename(conversation), { class: "quiet small", "aria-label": `Rename ${title}` }),
      button("Delete", () => this.#remove(conversation), { class: "quiet small", "aria-label": `Delete ${title}` }),
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
