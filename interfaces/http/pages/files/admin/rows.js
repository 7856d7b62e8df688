// Rows that stay while what they show changes: a list drawn every few seconds must not take away what somebody is
// pressing, reading or selecting.

import { h, setText } from "../shared/dom.js";

/**
 * Make `parent`'s children those of `items`, in their order. What is kept is not touched but by `update`.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {{key: (item: T) => string, make: (item: T) => HTMLElement, update: (row: HTMLElement, item: T) => void,
 *   refuge?: HTMLElement}} how `refuge` has the focus when the row that had it goes
 */
export function reconcile(parent, items, { key, make, update, refuge }) {
  const rows = new Map([...parent.children].map((row) => [row.dataset.key, row]));
  const wanted = new Set(items.map(key));
  for (const [name, row] of rows) {
    if (wanted.has(name)) continue;
    const hadFocus = row.contains(document.activeElement);
    row.remove();
    if (hadFocus) refuge?.focus();
  }
  let cursor = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let row = rows.get(name);
    if (row === undefined) {
      row = make(item);
      row.dataset.key = name;
    }
    update(row, item);
    if (row === cursor) cursor = cursor.nextElementSibling;
    else parent.insertBefore(row, cursor);
  }
}

/** A table row of empty cells; `labels` are shown beside them on a phone. A label that ends in ">" is of a number. */
export function row(labels, actions = []) {
  const cells = labels.map((label) => {
    const isNumber = label.endsWith(">");
    return h("td", { "data-label": isNumber ? label.slice(0, -1) : label, class: isNumber ? "right" : null });
  });
  return h("tr", {}, ...cells, h("td", { class: "actions" }, ...actions));
}

/** @param {(string | Node)[]} contents text is only written where it changed */
export function fill(tableRow, contents) {
  contents.forEach((content, index) => {
    const cell = tableRow.cells[index];
    if (content instanceof Node) {
      if (cell.firstChild !== content || cell.childNodes.length !== 1) cell.replaceChildren(content);
    } else {
      setText(cell, content);
    }
  });
}

/** Text with a smaller line below it. */
export function twoLines(cell, text, below, className = "") {
  if (cell.childElementCount !== 2) cell.replaceChildren(h("span", { class: className }), h("span", { class: "sub" }));
  setText(cell.children[0], text);
  if (className === "id") cell.children[0].title = text;
  setText(cell.children[1], below);
}
