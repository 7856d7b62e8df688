// One plot over time: areas on top of each other, or lines with gaps where nothing was measured. Drawn as SVG, so that
// colours are the style sheet's. A pointer or the arrow keys read off one moment; the legend tells what is meant.

import { h, setText } from "../shared/dom.js";
import { decades, fromZero } from "./scale.js";

const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** @typedef {{name: string, values: (number | null)[]}} Series */

export class Plot {
  /**
   * @param {{title: string, format: (value: number | null) => string, axis?: (value: number) => string,
   *   stacked?: boolean}} options areas on a scale that begins at zero where it is stacked, else lines on a logarithmic
   *   one; `axis`: how its round values are written
   */
  constructor({ title, format, axis = format, stacked = false }) {
    this.title = title;
    this.format = format;
    this.axis = axis;
    this.stacked = stacked;
    this.series = [];
    this.stepS = 1;
    this.cursor = null; // index of the moment that is read off, null for the last one
    this.legend = h("span", { class: "small" });
    this.reading = h("p", { class: "reading muted" });
    this.picture = svg("svg", { role: "img", tabindex: "0" });
    this.element = h(
      "figure",
      { class: "plot" },
      h("figcaption", {}, h("h3", {}, title), this.legend),
      this.picture,
      this.reading,
    );
    this.listen();
  }

  listen() {
    const { picture } = this;
    picture.addEventListener("pointermove", (event) => this.read(this.indexAt(event.clientX)));
    picture.addEventListener("pointerdown", (event) => this.read(this.indexAt(event.clientX)));
    picture.addEventListener("pointerleave", () => this.read(null));
    picture.addEventListener("blur", () => this.read(null));
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined || this.length === 0) return;
      event.preventDefault();
      this.read(Math.min(this.length - 1, Math.max(0, (this.cursor ?? this.length - 1) + step)));
    });
    new ResizeObserver(() => this.draw()).observe(picture);
  }

  get length() {
    return this.series[0]?.values.length ?? 0;
  }

  /** @param {Series[]} series equally long, oldest first @param {number} stepS between two values */
  show(series, stepS) {
    this.series = series;
    this.stepS = stepS;
    this.draw();
  }

  read(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    this.draw();
  }

  indexAt(clientX) {
    const box = this.picture.getBoundingClientRect();
    const share = (clientX - box.left - LEFT) / Math.max(1, box.width - LEFT - RIGHT);
    return this.length === 0 ? null : Math.round(Math.min(1, Math.max(0, share)) * (this.length - 1));
  }

  draw() {
    const width = this.picture.clientWidth;
    const height = this.picture.clientHeight;
    if (width === 0 || this.length === 0) return;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const layers = this.stacked ? stack(this.series) : this.series.map(({ values }) => ({ low: null, high: values }));
    const known = layers.flatMap(({ high }) => high).filter((value) => value !== null);
    const scale = this.stacked ? fromZero(known) : decades(known);
    const x = (index) => LEFT + (index / Math.max(1, this.length - 1)) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - scale.share(value) * (height - TOP - BOTTOM);
    const drawn = layers.map((layer, index) =>
      svg("path", { class: `${this.stacked ? "area" : "line"} series-${index + 1}`, d: this.path(layer, x, y) }),
    );
    this.picture.replaceChildren(...this.axes(scale.ticks, y, width, height), ...drawn, ...this.cursorLine(x, height));
    this.describe();
  }

  path({ low, high }, x, y) {
    if (low !== null) {
      const top = high.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
      const bottom = low.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).reverse();
      return `M${[...top, ...bottom].join("L")}Z`;
    }
    let isDrawing = false;
    let path = "";
    high.forEach((value, index) => {
      if (value === null) {
        isDrawing = false;
        return;
      }
      const point = `${x(index).toFixed(1)},${y(value).toFixed(1)}`;
      path += isDrawing ? `L${point}` : `M${point}h0.1`; // a lone value is a dot, by its round cap
      isDrawing = true;
    });
    return path;
  }

  axes(ticks, y, width, height) {
    const drawn = [];
    for (const value of ticks) {
      drawn.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      drawn.push(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.axis(value)));
    }
    const span = (this.length - 1) * this.stepS;
    for (const share of width > 420 ? [0, 1 / 3, 2 / 3, 1] : [0, 1]) {
      const agoMin = Math.round((span * (1 - share)) / 60);
      const at = LEFT + share * (width - LEFT - RIGHT);
      const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
      const text = agoMin === 0 ? "now" : `${agoMin} min ago`;
      drawn.push(svg("text", { x: at, y: height - 4, "text-anchor": anchor }, text));
    }
    return drawn;
  }

  cursorLine(x, height) {
    if (this.cursor === null) return [];
    const at = x(Math.min(this.cursor, this.length - 1));
    return [svg("line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: height - BOTTOM })];
  }

  /** What one moment was, in words: for eyes below the plot, for screen readers as its name. */
  describe() {
    const index = Math.min(this.cursor ?? this.length - 1, this.length - 1);
    const ago = (this.length - 1 - index) * this.stepS;
    const when = ago === 0 ? "Now" : `${ago >= 60 ? `${Math.floor(ago / 60)} min ` : ""}${ago % 60} s ago`;
    const values = this.series.map(({ name, values }) => `${name} ${this.format(values[index])}`).join(", ");
    setText(this.reading, `${when}: ${values}`);
    this.picture.setAttribute("aria-label", `${this.title}. ${when}: ${values}`);
    if (this.legend.childElementCount !== this.series.length) {
      const entries = this.series.map(({ name }, at) =>
        h("span", { class: `nowrap series-${at + 1}` }, h("span", { class: "swatch" }), name, " "),
      );
      this.legend.replaceChildren(...entries);
    }
  }
}

/** Each on top of those before it; what is not known counts as nothing. */
function stack(series) {
  let low = series[0].values.map(() => 0);
  return series.map(({ values }) => {
    const high = values.map((value, index) => low[index] + (value ?? 0));
    const layer = { low, high };
    low = high;
    return layer;
  });
}
