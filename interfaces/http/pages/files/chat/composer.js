// Where questions are written: Enter sends, Shift and Enter begin a new line, Escape stops the answer. Text that is typed
// while nothing has the focus is written here. Images and files are chosen, pasted, or dropped anywhere on the conversation.
import { Attachments } from "./attachments.js";
import { labelled } from "./icons.js";

export class Composer {
  #area;
  #send;
  #stop;
  #on;
  #attached;

  /**
   * @param {{form: HTMLFormElement, area: HTMLTextAreaElement, send: HTMLButtonElement, stop: HTMLButtonElement,
   *   attach: HTMLButtonElement, files: HTMLInputElement, target: HTMLElement}} parts `target`: where files are dropped
   * @param {{ask: (text: string, attached: object) => void, stop: () => void, problem: (words: string) => void,
   *   sees: () => boolean}} on
   */
  constructor({ form, area, send, stop, attach, files, target }, on) {
    this.#area = area;
    this.#send = send;
    this.#stop = stop;
    this.#on = on;
    this.#attached = new Attachments(on);
    form.prepend(this.#attached.element);
    labelled(attach, "attach", "Attach images or files");
    labelled(send, "send", "Send");
    labelled(stop, "stop", "Stop");
    attach.addEventListener("click", () => files.click());
    files.addEventListener("change", () => {
      this.#attached.add(files.files);
      files.value = "";
      this.focus();
    });
    area.addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    target.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    target.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#ask();
    });
    stop.addEventListener("click", () => on.stop());
    document.addEventListener("keydown", (event) => {
      if (event.defaultPrevented || document.querySelector("dialog[open]") !== null) return;
      if (event.key === "Escape" && !this.#stop.hidden) on.stop();
      const isText = event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey;
      if (isText && event.target === document.body) this.focus();
    });
  }

  update({ isRunning }) {
    const hadFocus = document.activeElement === this.#stop;
    this.#send.hidden = isRunning;
    this.#stop.hidden = !isRunning;
    if (hadFocus && !isRunning) this.focus();
  }

  focus() {
    this.#area.focus();
  }

  /** A paste or a drop: its files are attached, and what is no file stays the browser's. */
  #take(event, transfer) {
    const files = [...(transfer?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    this.#attached.add(files);
    this.focus();
  }

  async #ask() {
    await this.#attached.reading;
    const text = this.#area.value;
    const attached = this.#attached.all;
    if (!this.#stop.hidden || (text.trim() === "" && this.#attached.isEmpty)) return;
    this.#area.value = "";
    this.#attached.clear();
    this.#on.ask(text, attached);
  }
}
