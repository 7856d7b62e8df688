// What a block of an answer gets once it is whole: code its colours, formulas their drawing. What is needed for that is
// loaded with the first block that has any; a block for which it fails stays as it is.
import { CodeBlock } from "./code_block.js";
import { sourceOf } from "./formula_marks.js";

/** @param {Node} node of token_nodes.js */
export function finishBlock(node) {
  for (const element of all(node, ".code")) CodeBlock.of(element)?.finish();
  for (const element of all(node, ".formula")) draw(element);
}

function all(node, selector) {
  if (!(node instanceof Element)) return [];
  return [...(node.matches(selector) ? [node] : []), ...node.querySelectorAll(selector)];
}

async function draw(element) {
  try {
    const { formula } = await import("./formula.js");
    element.replaceChildren(formula(sourceOf(element.textContent), element.classList.contains("display")));
    element.classList.replace("formula", "drawn");
  } catch {
    // not loaded, or no LaTeX: it stays as it was written
  }
}
