// Questions to the reader, one at a time, as native dialogs: focus stays inside, Escape is "no".
import { h } from "../shared/dom.js";

/** @returns {Promise<boolean>} whether the reader said yes */
export function confirmed({ title, text, yes }) {
  return shown(title, [h("p", {}, text)], { label: yes, class: "danger" }, () => true, false);
}

/** @returns {Promise<string | null>} what the reader wrote; null for none */
export function written({ title, text, label, value, type = "text", maxLength, yes }) {
  const input = h("input", { type, value, maxlength: maxLength, autocomplete: "off", spellcheck: "false", autofocus: true });
  const field = h("label", { class: "field" }, h("span", { class: "small" }, label), input);
  const parts = text === undefined ? [field] : [h("p", {}, text), field];
  return shown(title, parts, { label: yes, class: "primary" }, () => input.value, null);
}

function shown(title, parts, yes, value, otherwise) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const row = h("div", { class: "row" }, h("button", { type: "submit", class: yes.class }, yes.label), cancel);
  const form = h("form", { class: "dialog-form" }, heading, ...parts, row);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  return new Promise((resolve) => {
    let answer = otherwise;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer = value();
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
