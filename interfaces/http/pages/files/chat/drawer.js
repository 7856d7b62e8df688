// A part that narrow screens hide until its button is pressed; wide ones always show it (chat.css).
export class Drawer {
  #part;
  #button;

  /** @param {HTMLElement} part @param {HTMLElement} button that opens it @param {HTMLElement} close one inside it */
  constructor(part, button, close) {
    this.#part = part;
    this.#button = button;
    button.addEventListener("click", () => {
      this.#set(true);
      close.focus();
    });
    close.addEventListener("click", () => {
      this.close();
      button.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.#isOpen || document.querySelector("dialog[open]") !== null) return;
      event.preventDefault(); // it stops no answer
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
