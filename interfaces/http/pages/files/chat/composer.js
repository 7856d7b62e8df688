// Where questions are written: Enter sends, Shift and Enter begin a new line, Escape stops the answer. Whoever begins to
// write while nothing has the focus writes here.
export class Composer {
  #area;
  #send;
  #stop;
  #on;

  /**
   * @param {{form: HTMLFormElement, area: HTMLTextAreaElement, send: HTMLButtonElement, stop: HTMLButtonElement}} parts
   * @param {{ask: (text: string) => void, stop: () => void}} on
   */
  constructor({ form, area, send, stop }, on) {
    this.#area = area;
    this.#send = send;
    this.#stop = stop;
    this.#on = on;
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

  #ask() {
    if (!this.#stop.hidden || this.#area.value.trim() === "") return;
    const text = this.#area.value;
    this.#area.value = "";
    this.#on.ask(text);
  }
}
