// Arrows between the branches that begin at a turn, and where the one that is shown stands among them.
import { h, setText } from "../shared/dom.js";
import { iconButton } from "./icons.js";

export class BranchSwitch {
  #back;
  #on;
  #words = h("span", { class: "small num", "aria-live": "polite" });

  /** @param {string} what is turned over: "answer" or "question" @param {(step: number) => void} onTurn */
  constructor(what, onTurn) {
    this.#back = iconButton("left", `Earlier ${what}`, { "data-step": "-1", onclick: () => onTurn(-1) });
    this.#on = iconButton("right", `Later ${what}`, { "data-step": "1", onclick: () => onTurn(1) });
    this.element = h("div", { class: "row branches", hidden: true }, this.#back, this.#words, this.#on);
  }

  /** @param {{place: number, count: number}} branches */
  update({ place, count }, isRunning) {
    this.element.hidden = count < 2;
    setText(this.#words, `${place + 1} of ${count}`);
    this.#back.disabled = isRunning || place === 0;
    this.#on.disabled = isRunning || place === count - 1;
  }
}
