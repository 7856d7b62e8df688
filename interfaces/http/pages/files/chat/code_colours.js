// Colours of code: loaded with the first block whose language is named. The library gives a tree of scopes; elements are
// made of it here, and none of its HTML is parsed.
import highlight from "../vendor/highlight.min.js";
import { h } from "../shared/dom.js";

const MAX_CHARS = 30_000; // of a block

/** The class by the first part of a scope; other scopes have no colour of their own. */
const CLASSES = {
  keyword: "hl-keyword", literal: "hl-keyword", operator: "hl-keyword", "selector-tag": "hl-keyword", name: "hl-keyword",
  string: "hl-string", regexp: "hl-string", char: "hl-string", link: "hl-string", addition: "hl-string",
  number: "hl-number", symbol: "hl-number", bullet: "hl-number",
  title: "hl-title", section: "hl-title", function: "hl-title",
  built_in: "hl-type", type: "hl-type", class: "hl-type", attr: "hl-attr", attribute: "hl-attr", property: "hl-attr",
  variable: "hl-attr", "template-variable": "hl-attr", deletion: "hl-attr",
  comment: "hl-muted", quote: "hl-muted", meta: "hl-muted", doctag: "hl-muted",
};

/** @returns {Node[] | null} null where the language is unknown or the code too long */
export function coloured(text, language) {
  if (text.length > MAX_CHARS || highlight.getLanguage(language) === undefined) return null;
  const { _emitter: tree } = highlight.highlight(text, { language, ignoreIllegals: true });
  return nodes(tree.rootNode);
}

function nodes({ children }) {
  return children.map((child) => {
    if (typeof child === "string") return document.createTextNode(child);
    return h("span", { class: CLASSES[child.scope?.split(".")[0]] }, ...nodes(child));
  });
}
