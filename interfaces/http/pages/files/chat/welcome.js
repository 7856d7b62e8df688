// The empty conversation: which model answers, and three questions that it can answer, to be asked with one press.
import { h } from "../shared/dom.js";

const EXAMPLES = [
  "Explain in three sentences why the sky is blue.",
  "Write a Python function that merges two sorted lists.",
  "Draft a polite reply that declines a meeting next week.",
];

/** Of the embedded models, which know nothing of the world. */
const DEMO_EXAMPLES = [
  "What can you do?",
  "Remember this: my lucky number is 583. What is my lucky number?",
  "Remember that the key of the red box is 4711. What is the key of the red box?",
];

/** @param {{id: string, owned_by: string} | null} model null while unknown @param {(text: string) => void} ask */
export function welcome(model, ask) {
  const isDemo = model?.owned_by === "cairn";
  const examples = isDemo ? DEMO_EXAMPLES : EXAMPLES;
  return h(
    "div",
    { class: "welcome muted" },
    model && h("p", {}, h("strong", {}, model.id), isDemo ? " answers: a small demo, to try the server with. " : " answers. ", h("a", { href: "/admin#models-title" }, "Other models")),
    model && h("ul", { class: "examples", "aria-label": "Examples" }, ...examples.map((text) => h("li", {}, h("button", { type: "button", onclick: () => ask(text) }, text)))),
    h("p", {}, "Ask something. Conversations are kept in this browser."),
  );
}
