// A part that narrow screens hide until its button is pressed; wide ones always show it (chat.css).
export class Drawer {
  #part;
  #button;

  constructor(part, button) {
    this.#part = part;
    this.#button = button;
    button.addEventListener("click", () => (this.#isOpen ? this.close() : this.#set(true)));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.#isOpen || document.querySelector("dialog[open]") !== null) return;
      this.close();
      this.#button.focus();
    });
  }

  close() {
    this.#set(false);
  }

  get #isOpen() {
    return this.#button.getAttribute("aria-expanded") === "true";
  }

  #set(isOpen) {
    this.#button.setAttribute("aria-expanded", String(isOpen));
    this.#part.classList.toggle("open", isOpen);
  }
}
