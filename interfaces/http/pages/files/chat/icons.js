// The pictures on buttons: lines in the button's colour. The name of the button is said beside them, for those who do not see.
import { h } from "../shared/dom.js";

const SVG = "http://www.w3.org/2000/svg";

const PATHS = {
  attach: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.3 17a1.7 1.7 0 0 1-2.4-2.4L14.5 7",
  check: "M5 13l4.5 4.5L19 7",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  left: "M15 5l-7 7 7 7",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  right: "M9 5l7 7-7 7",
  send: "M12 20V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return svg;
}

/** @param {string} name of the icon @param {string} label what the button is called, also where the pointer rests */
export function iconButton(name, label, props = {}) {
  return labelled(h("button", { type: "button", class: "quiet small icon-button", ...props }), name, label);
}

/** A button's icon and its name, both in place of what it had. */
export function labelled(button, name, label) {
  button.replaceChildren(icon(name));
  button.setAttribute("aria-label", label);
  button.title = label;
  return button;
}
