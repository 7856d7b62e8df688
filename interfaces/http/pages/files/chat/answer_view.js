// An answer on the page: reasoning and tool calls folded, text as Markdown, what it took, and what can be done with it.
//
// `update` is called once a frame at most while it streams, and writes only what differs.
import { h, setText } from "../shared/dom.js";
import { canGoOn, hasNoLast, isEmpty } from "./answer.js";
import { BranchSwitch } from "./branch_switch.js";
import { CodeBlock, copyText } from "./code_block.js";
import { shownFigures } from "./figures.js";
import { GrowingMarkdown } from "./growing_markdown.js";
import { iconButton } from "./icons.js";
import { problemWords } from "./problem_words.js";
import { everyCall, fullName, waiting, wholeText } from "./tool_steps.js";
import { StepView } from "./tool_view.js";

export class AnswerView {
  #answer;
  #name = h("h2", { class: "small" });
  #status = h("p", { class: "muted status", hidden: true });
  #steps = h("div", {});
  #stepViews = [];
  #reasoning = new Folded("reasoning");
  #calls = h("div", { class: "calls" });
  #callViews = [];
  #body = h("div", { class: "markdown" });
  #text = new GrowingMarkdown(this.#body);
  #problem = h("div", { hidden: true });
  #figures = h("dl", { class: "figures small num" });
  #actions = h("div", { class: "row actions" });
  #branches;
  #shownActions = "";
  #on;

  /** @param {{turnTo: (step: number) => void, regenerate: () => void, goOn: () => void,
   *   askKey: () => void, decide: (id: string, isApproved: boolean) => void}} on */
  constructor(answer, on) {
    this.#answer = answer;
    this.#on = on;
    this.#branches = new BranchSwitch("answer", on.turnTo);
    this.element = h(
      "article",
      { class: "turn answer" },
      this.#name,
      this.#steps,
      this.#reasoning.element,
      this.#body,
      this.#calls,
      this.#status,
      this.#problem,
      h("div", { class: "foot" }, h("div", { class: "row" }, this.#branches.element, this.#actions), this.#figures),
    );
  }

  /**
   * @param {{isLast: boolean, isLeftOut: boolean, isRunning: boolean, progress: string,
   *   branches: {place: number, count: number}}} where `progress`: the text before anything came;
   *   `isLeftOut`: it and its question are in no later request
   */
  update({ isLast, isLeftOut, isRunning, progress, branches }) {
    const answer = this.#answer;
    const isStreaming = answer.state === "streaming";
    this.element.setAttribute("aria-busy", String(isStreaming));
    setText(this.#name, answer.model || "Answer");
    for (const [at, step] of answer.steps.entries()) {
      this.#stepViews[at] ??= this.#newStep();
      this.#stepViews[at].update(step, isLast && !isStreaming);
    }
    this.#reasoning.update(answer.reasoning, isStreaming && answer.content === "" ? "Reasoning …" : "Reasoning");
    this.#text.update(answer.content);
    if (!isStreaming) this.#text.finish();
    this.#showCalls(answer);
    this.#status.hidden = !isStreaming || !hasNoLast(answer) || everyCall(answer).some(({ state }) => state === "running");
    setText(this.#status, progress);
    this.#showProblem(answer, isLeftOut);
    this.#showFigures(isStreaming ? [] : shownFigures(answer));
    this.#showActions(answer, isLast);
    this.#branches.update(branches, isRunning);
  }

  /** The text for a screen reader once the answer is complete. */
  get spoken() {
    const asked = waiting(this.#answer).map((call) => `Approval is needed for a call of ${fullName(call)}.`);
    return [...this.#stepViews.map(({ text }) => text), this.#body.textContent, ...asked].filter(Boolean).join(" ");
  }

  #newStep() {
    const view = new StepView(new Folded("reasoning"), this.#on.decide);
    this.#steps.append(view.element);
    return view;
  }

  #showCalls({ calls, callProblems }) {
    for (const [at, call] of calls.entries()) {
      this.#callViews[at] ??= this.#newCall();
      this.#callViews[at].update(call);
    }
    const words = callProblems.join(" ");
    if (words !== "" && this.#calls.dataset.problems !== words) {
      this.#calls.dataset.problems = words;
      this.#calls.append(h("p", { class: "notice warn" }, words));
    }
  }

  #newCall() {
    const view = new CallView();
    this.#calls.append(view.element);
    return view;
  }

  #showProblem({ state, problem, finish }, isLeftOut) {
    const { words, detail } = state === "broken" ? problemWords(problem) : { words: plainWords(state, finish), detail: "" };
    const shown = isLeftOut ? `${words} Later questions are asked without this one.`.trim() : words;
    this.#problem.hidden = shown === "";
    this.#problem.className = state === "broken" ? "problem notice bad" : "problem small muted";
    if (this.#problem.dataset.shown === shown + detail) return; // a detail that the reader opened stays open
    this.#problem.dataset.shown = shown + detail;
    this.#problem.replaceChildren(shown, detail === "" ? "" : h("details", {}, h("summary", { class: "small" }, "What the server said"), h("p", { class: "plain small" }, detail)));
  }

  #showFigures(shown) {
    const pairs = shown.map(([label, value]) => h("div", {}, h("dt", {}, label), " ", h("dd", { "data-figure": label }, value)));
    const text = pairs.map((pair) => pair.textContent).join("");
    if (this.#figures.textContent !== text) this.#figures.replaceChildren(...pairs);
  }

  #showActions(answer, isLast) {
    const wanted = [];
    if (answer.state !== "streaming") {
      if (wholeText(answer) !== "") wanted.push("Copy");
      if (isLast && answer.problem?.status === 401) wanted.push("Enter key");
      if (isLast && canGoOn(answer)) wanted.push("Continue");
      if (isLast) wanted.push(isEmpty(answer) ? "Try again" : "Regenerate");
    }
    if (this.#shownActions === wanted.join()) return;
    this.#shownActions = wanted.join();
    this.#actions.replaceChildren(...wanted.map((label) => this.#button(label)));
  }

  #button(label) {
    if (label === "Copy") return iconButton("copy", label, { onclick: (event) => copyText(wholeText(this.#answer), event.currentTarget) });
    const does = {
      "Enter key": this.#on.askKey,
      Continue: this.#on.goOn,
      "Try again": this.#on.regenerate,
      Regenerate: this.#on.regenerate,
    };
    return h("button", { type: "button", class: "quiet small", onclick: does[label] }, label);
  }
}

const ENDS = {
  length: "The answer reached its greatest length.",
  max_steps: "The answer reached the server's limit of steps with tools.",
  max_tool_calls: "The answer reached the server's limit of tool calls.",
};

function plainWords(state, finish) {
  if (state === "stopped") return "Stopped.";
  return state === "done" ? (ENDS[finish] ?? "") : "";
}

/** Text under a summary, closed until the reader opens it; drawn only then. */
class Folded {
  #summary = h("summary", { class: "small muted" });
  #inside = h("div", { class: "markdown folded" });
  #text = new GrowingMarkdown(this.#inside);
  #latest = "";

  constructor(kind) {
    this.element = h("details", { class: kind, hidden: true }, this.#summary, this.#inside);
    this.element.addEventListener("toggle", () => this.#draw());
  }

  update(text, label) {
    this.#latest = text;
    this.element.hidden = text === "";
    setText(this.#summary, label);
    this.#draw();
  }

  #draw() {
    if (this.element.open) this.#text.update(this.#latest);
  }
}

/** One tool call: its name in the summary, its arguments as JSON under it. */
class CallView {
  #summary = h("summary", { class: "small muted" });
  #code = new CodeBlock("", "json");

  constructor() {
    this.element = h("details", { class: "call" }, this.#summary, this.#code.element);
  }

  update({ name, arguments: text }) {
    setText(this.#summary, `Tool call: ${name}`);
    this.#code.text = text;
  }
}
