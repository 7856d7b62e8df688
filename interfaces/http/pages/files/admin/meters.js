// How much of something is used: a bar with its numbers in words.

import { h, setText } from "../shared/dom.js";
import { bytes, percent } from "../shared/format.js";

/** @param {string} name */
export function meter(name) {
  const figure = h("span", { class: "num" });
  const fill = h("div", { class: "fill" });
  const more = h("div", { class: "small muted" });
  const track = h("div", { class: "track", role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const element = h("div", { class: "meter" }, h("div", { class: "label" }, h("span", {}, name), figure), track, more);
  return { element, figure, fill, track, more };
}

/** `limit`: 0 or null where nothing bounds it. */
export function showMeter({ figure, fill, track, more }, used, limit, details) {
  const share = limit ? Math.min(1, used / limit) : 0;
  const text = limit ? `${bytes(used)} of ${bytes(limit)}` : bytes(used);
  setText(figure, text);
  fill.style.width = `${(share * 100).toFixed(2)}%`;
  fill.classList.toggle("full", share > 0.95);
  track.setAttribute("aria-valuenow", (share * 100).toFixed(1));
  track.setAttribute("aria-valuetext", limit ? `${text}, ${percent(share)}` : text);
  setText(more, details);
}
