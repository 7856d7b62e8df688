// The open conversation on the page: a view for each turn, kept as long as the turn is there.
import { AnswerView } from "./answer_view.js";
import { isLeftOut } from "./conversation.js";
import { progressWords } from "./figures.js";
import { QuestionView } from "./question_view.js";
import { welcome } from "./welcome.js";

export class Thread {
  #element;
  #session;
  #on;
  #views = new Map();

  /**
   * @param {HTMLElement} element
   * @param {{askKey: () => void, loadWords: () => string, model: () => object | null}} on `loadWords`: of a load that the
   *   answer may wait for; `model`: that answers, as the server lists it
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
    if (turns.length === 0) this.showModel();
    else this.#element.querySelector(".welcome")?.remove();
  }

  /** Another model answers, or it is known only now. */
  showModel() {
    if (this.#session.current.turns.length > 0) return;
    this.#element.replaceChildren(welcome(this.#on.model(), (text) => this.#session.ask(text)));
  }

  /** The last answer has more to show. */
  showAnswer() {
    const last = [...this.#views.values()].at(-1);
    if (last !== undefined) this.#update(last, this.#views.size - 1);
  }

  get lastSpoken() {
    return [...this.#views.values()].at(-1)?.spoken ?? "";
  }

  /** The reader is shown the call that waits, unless he is writing. @returns {boolean} whether there is one */
  focusApproval() {
    const card = this.#element.querySelector(".approval");
    const { activeElement: active } = document;
    if (card !== null && !(active?.tagName === "TEXTAREA" && active.value !== "")) card.focus();
    return card !== null;
  }

  #decide(id, isApproved) {
    this.#session.decide(id, isApproved);
    if (!this.focusApproval()) this.#element.parentElement.focus(); // the button that had it is gone
  }

  #update(view, at) {
    const { turns } = this.#session.current;
    const isLast = at === turns.length - 1;
    const progress = this.#on.loadWords() || progressWords(this.#session.progress());
    const { others = [], place = 0 } = turns[at];
    const branches = { place, count: others.length + 1 };
    view.update({ isLast, isLeftOut: isLeftOut(turns, at), isRunning: this.#session.isRunning(), progress, branches });
  }

  #newView(turn, at) {
    const turnTo = (step) => {
      this.#session.turnTo(at, step);
      const button = this.#element.children[at]?.querySelector(`.branches [data-step="${step}"]`);
      (button?.disabled ? button.parentElement.querySelector("button:enabled") : button)?.focus();
    };
    if (turn.role === "user") return new QuestionView(turn, { turnTo, ask: (text, attached) => this.#session.ask(text, at, attached) });
    const regenerate = () => this.#session.regenerate();
    return new AnswerView(turn, { turnTo, regenerate, goOn: () => this.#session.goOn(), askKey: this.#on.askKey, decide: (id, isApproved) => this.#decide(id, isApproved) });
  }
}
