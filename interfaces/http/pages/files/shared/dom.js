// Elements made in code. Text only ever becomes text: whatever a server, a model or a client wrote stays inert.

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [props] `class`, `on<event>` listeners, `data-*`, ARIA and other attributes; true
 *   writes an empty attribute, false, null and undefined none.
 * @param {...(Node | string | number | null | undefined | false)} children
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** The element of this id; an Error where the page has none. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

/** Write text only where it differs, so that nothing flickers and what is selected stays selected. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
