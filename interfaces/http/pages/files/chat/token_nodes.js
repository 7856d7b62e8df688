// Nodes of Markdown's tokens. No HTML is ever parsed: every element is made by name here, and everything that a model
// wrote becomes a text node or the address of a link that begins with http, https or mailto. So an answer cannot run a
// script, load an image, open a frame or style the page, whatever it holds.
//
// HTML in an answer is shown as the text that it is; an image is a link to what it names, for nothing is ever loaded.
import { h } from "../shared/dom.js";
import { CodeBlock } from "./code_block.js";
import { plain } from "./markdown.js";

const LINK = /^(?:https?:\/\/|mailto:)/i;

/** @param {{type: string, raw: string}} block of markdown.js @returns {Node} */
export function blockNode(block) {
  try {
    return node(block);
  } catch {
    return node(plain(block.raw)); // nested deeper than the stack
  }
}

export function codeBlock(block) {
  return new CodeBlock(block.text, languageOf(block));
}

/** The language as the model named it; empty where it did not. */
export function languageOf({ lang }) {
  return (lang ?? "").split(/\s/)[0].slice(0, 30);
}

/** By type of token. What is not here is shown as it stands. */
const MAKE = {
  plain: ({ raw }) => h("p", { class: "plain" }, raw),
  html: ({ raw, block }) => (block ? h("p", { class: "plain" }, raw) : document.createTextNode(raw)),
  space: () => document.createTextNode(""),
  def: () => document.createTextNode(""),
  heading: ({ depth, tokens }) => h(`h${Math.min(depth + 2, 6)}`, { class: `level-${depth}` }, ...nodes(tokens)),
  paragraph: ({ tokens }) => h("p", {}, ...nodes(tokens)),
  blockquote: ({ tokens }) => h("blockquote", {}, ...nodes(tokens)),
  hr: () => h("hr"),
  code: (token) => codeBlock(token).element,
  list: ({ ordered, start, items }) => h(ordered ? "ol" : "ul", { start: ordered ? start : null }, ...nodes(items)),
  list_item: ({ tokens }) => h("li", {}, ...nodes(tokens)),
  checkbox: ({ checked }) => document.createTextNode(checked ? "☑ " : "☐ "),
  table: ({ header, rows }) =>
    h(
      "div",
      { class: "wide", tabindex: "0" },
      h("table", {}, h("thead", {}, row("th", header)), h("tbody", {}, ...rows.map((cells) => row("td", cells)))),
    ),
  text: ({ text, tokens }) => (tokens ? h("span", {}, ...nodes(tokens)) : document.createTextNode(decoded(text))),
  escape: ({ text }) => document.createTextNode(text),
  strong: ({ tokens }) => h("strong", {}, ...nodes(tokens)),
  em: ({ tokens }) => h("em", {}, ...nodes(tokens)),
  del: ({ tokens }) => h("del", {}, ...nodes(tokens)),
  codespan: ({ text }) => h("code", {}, text),
  br: () => h("br"),
  formula: ({ raw, display }) => h("span", display ? { class: "formula display", tabindex: "0" } : { class: "formula" }, raw.trim()),
  link: ({ href, tokens }) => link(href, ...nodes(tokens)),
  image: ({ href, text }) => link(href, `image: ${text || href}`),
};

function node(token) {
  return (MAKE[token.type] ?? MAKE.plain)(token);
}

function nodes(tokens) {
  return tokens.map(node);
}

function row(tag, cells) {
  return h("tr", {}, ...cells.map(({ align, tokens }) => h(tag, { class: align ? `to-${align}` : null }, ...nodes(tokens))));
}

function link(href, ...inside) {
  if (!LINK.test(href)) return h("span", {}, ...inside);
  return h("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...inside);
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", mdash: "—", ndash: "–", hellip: "…" };

/** Character references of the usual kinds; others stay as they are written. */
function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,6}));/gi, (whole, decimal, hex, name) => {
    if (name !== undefined) return ENTITIES[name.toLowerCase()] ?? whole;
    const code = decimal === undefined ? Number.parseInt(hex, 16) : Number(decimal);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
