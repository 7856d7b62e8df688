// A formula in LaTeX as MathML, which the browser draws: loaded with the first formula. The library gives a tree; of its
// elements and attributes those of MathML that draw are made here, so that a formula can link, load and style nothing.
import "../vendor/katex.min.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const OPTIONS = { output: "mathml", throwOnError: true, strict: "ignore", trust: false, maxSize: 50, maxExpand: 500 };
const TAG = /^(?:math|semantics|m(?:i|n|o|s|row|text|space|style|frac|sqrt|root|sub|sup|subsup|under|over|underover|multiscripts|prescripts|padded|phantom|enclose|error|table|tr|td))$/;
const ATTRIBUTES = new Set(
  ("accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height largeop linethickness " +
    "lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace " +
    "scriptlevel separator stretchy symmetric voffset width").split(" "),
);

/** @param {string} source @param {boolean} isDisplay on lines of its own @returns {Node} Throws for what is no LaTeX. */
export function formula(source, isDisplay) {
  return made(globalThis.katex.__renderToDomTree(source, { ...OPTIONS, displayMode: isDisplay }));
}

function made(node) {
  if (node.text !== undefined) return document.createTextNode(node.text);
  if (node.character !== undefined) return spaceOf(node);
  const isElement = TAG.test(node.type);
  const element = isElement ? document.createElementNS(MATHML, node.type) : document.createDocumentFragment();
  if (isElement) for (const [name, value] of Object.entries(node.attributes)) if (ATTRIBUTES.has(name)) element.setAttribute(name, value);
  // The annotation is the source once more.
  element.append(...node.children.filter((child) => child.type !== "annotation").map(made));
  return element;
}

function spaceOf({ character, width }) {
  if (character) return document.createTextNode(character);
  const space = document.createElementNS(MATHML, "mspace");
  space.setAttribute("width", `${width}em`);
  return space;
}
