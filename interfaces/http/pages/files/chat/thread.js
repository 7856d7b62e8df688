// The open conversation on the page: a view for each turn, kept as long as the turn is there.
import { h } from "../shared/dom.js";
import { AnswerView } from "./answer_view.js";
import { progressWords } from "./figures.js";
import { QuestionView } from "./question_view.js";

export class Thread {
  #element;
  #session;
  #on;
  #views = new Map();

  /**
   * @param {HTMLElement} element
   * @param {{askKey: () => void, loadWords: () => string}} on `loadWords`: of a load that the answer may wait for
   */
  constructor(element, session, on) {
    this.#element = element;
    this.#session = session;
    this.#on = on;
  }

  /** Turns came or went. */
  showTurns() {
    const { turns } = this.#session.current;
    const views = new Map(turns.map((turn, at) => [turn, this.#views.get(turn) ?? this.#newView(turn, at)]));
    for (const [turn, view] of this.#views) if (!views.has(turn)) view.element.remove();
    this.#views = views;
    for (const [at, view] of [...views.values()].entries()) {
      const there = this.#element.children[at];
      if (there !== view.element) this.#element.insertBefore(view.element, there ?? null);
      this.#update(view, at);
    }
    if (turns.length === 0) this.#element.replaceChildren(welcome());
    else this.#element.querySelector(".welcome")?.remove();
  }

  /** The last answer has more to show. */
  showAnswer() {
    const last = [...this.#views.values()].at(-1);
    if (last !== undefined) this.#update(last, this.#views.size - 1);
  }

  get lastSpoken() {
    return [...this.#views.values()].at(-1)?.spoken ?? "";
  }

  #update(view, at) {
    const isLast = at === this.#session.current.turns.length - 1;
    const progress = this.#on.loadWords() || progressWords(this.#session.progress());
    view.update({ isLast, isRunning: this.#session.isRunning(), progress });
  }

  #newView(turn, at) {
    if (turn.role === "user") return new QuestionView(turn, (text, pictures) => this.#session.ask(text, at, pictures));
    const regenerate = () => this.#session.regenerate();
    return new AnswerView(turn, { regenerate, goOn: () => this.#session.goOn(), askKey: this.#on.askKey });
  }
}

function welcome() {
  return h(
    "div",
    { class: "welcome muted" },
    h("p", {}, "Ask something. Conversations are kept in this browser."),
  );
}
