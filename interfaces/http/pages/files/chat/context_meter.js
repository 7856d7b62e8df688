// How much of its model's context the open conversation fills, from the usage of its last answer.
import { count } from "../shared/format.js";
import { h, setText } from "../shared/dom.js";

/** Tokens of the last answer that has usage, with its prompt; null before one, and where that of all its steps is one sum. */
export function tokensOf({ turns }) {
  const last = turns.findLast((turn) => turn.role === "assistant" && turn.usage);
  const usage = last?.steps.length > 0 ? null : last?.usage;
  const tokens = usage ? usage.promptTokens + usage.completionTokens : Number.NaN;
  return Number.isFinite(tokens) ? tokens : null;
}

export class ContextMeter {
  #element;
  #meter = h("meter", { min: "0", low: "0.75", high: "0.9", optimum: "0", "aria-label": "Context used" });
  #words = h("span", {});
  #lengths = new Map();

  /** @param {HTMLElement} element */
  constructor(element) {
    this.#element = element;
    element.append(this.#meter, this.#words);
  }

  /** @param {Array<{id: string, cairn: {context_length: number} | null}>} models as the server lists them */
  know(models) {
    this.#lengths = new Map(models.filter((model) => model.cairn).map(({ id, cairn }) => [id, cairn.context_length]));
  }

  /** @returns {boolean} whether the length of the model's context is known, or not needed */
  show(conversation) {
    const tokens = tokensOf(conversation);
    this.#element.hidden = tokens === null;
    if (tokens === null) return true;
    const model = conversation.settings.model || conversation.turns.findLast((turn) => turn.model)?.model;
    const length = this.#lengths.get(model);
    this.#meter.hidden = length === undefined;
    if (length === undefined) {
      setText(this.#words, `${count(tokens)} tokens`);
      return false;
    }
    this.#meter.value = Math.min(1, tokens / length);
    const isFull = tokens >= 0.9 * length;
    setText(this.#words, `${count(tokens)} of ${count(length)} tokens${isFull ? ": start a new conversation soon" : ""}`);
    return true;
  }
}
