// System prompts that are kept under a name in this browser, to be chosen in any conversation.
import { h } from "../shared/dom.js";
import { written } from "./dialogs.js";

const KEY = "cairn.presets";
const MAX_PRESETS = 50;
const MAX_NAME = 60;

export class Presets {
  #storage;
  #parts;
  #all;

  /**
   * @param {Storage | null} storage
   * @param {{area: HTMLTextAreaElement, select: HTMLSelectElement, save: HTMLButtonElement, remove: HTMLButtonElement}} parts
   *   `area`: where the system prompt is written
   * @param {(words: string) => void} onProblem empty for none
   */
  constructor(storage, parts, onProblem) {
    this.#storage = storage;
    this.#parts = parts;
    this.#all = readPresets(storage?.getItem(KEY));
    const { area, select, save, remove } = parts;
    select.addEventListener("change", () => {
      area.value = this.#all.get(select.value) ?? "";
      area.dispatchEvent(new Event("input", { bubbles: true }));
    });
    area.addEventListener("input", () => this.show());
    save.addEventListener("click", () => this.#save(onProblem));
    remove.addEventListener("click", () => {
      this.#all.delete(select.value);
      this.#keep(onProblem);
      select.focus();
    });
    this.show();
  }

  /** Which preset the system prompt is. */
  show() {
    const { area, select, save, remove } = this.#parts;
    const name = [...this.#all].find(([, text]) => text === area.value)?.[0] ?? "";
    select.replaceChildren(h("option", { value: "" }, "None"), ...[...this.#all.keys()].map((one) => h("option", { value: one }, one)));
    select.value = name;
    remove.disabled = name === "";
    save.disabled = area.value.trim() === "" || name !== "";
  }

  async #save(onProblem) {
    const text = this.#parts.area.value;
    const asked = { title: "Save the system prompt as a preset", label: "Name", value: "", maxLength: MAX_NAME, yes: "Save" };
    const name = (await written(asked))?.trim() ?? "";
    if (name === "") return;
    if (!this.#all.has(name) && this.#all.size >= MAX_PRESETS) {
      onProblem(`This browser keeps at most ${MAX_PRESETS} presets. Delete one first.`);
      return;
    }
    this.#all.set(name, text);
    this.#keep(onProblem);
  }

  #keep(onProblem) {
    try {
      if (this.#storage === null) throw new Error("no storage");
      this.#storage.setItem(KEY, JSON.stringify([...this.#all]));
      onProblem("");
    } catch {
      onProblem("This browser has no room to keep the presets.");
    }
    this.show();
  }
}

/** @returns {Map<string, string>} text by name; empty for what is not a list of presets */
export function readPresets(text) {
  try {
    const pairs = JSON.parse(text ?? "[]");
    return new Map(pairs.filter(([name, prompt]) => typeof name === "string" && typeof prompt === "string").slice(0, MAX_PRESETS));
  } catch {
    return new Map();
  }
}
