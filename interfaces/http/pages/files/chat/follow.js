// Keeps the end of a growing text in view for as long as the reader is there. Whoever scrolls up stays where they are;
// who comes back to the end, or asks to, follows again.

const NEAR_PX = 48;

/**
 * Whether to follow after a scroll.
 * @param {boolean} was @param {number} lastTop where it was before
 * @param {{scrollTop: number, scrollHeight: number, clientHeight: number}} at
 */
export function follows(was, lastTop, { scrollTop, scrollHeight, clientHeight }) {
  if (scrollHeight - clientHeight - scrollTop <= NEAR_PX) return true;
  return was && scrollTop >= lastTop; // the text grew meanwhile: not the reader's doing
}

export class Follow {
  #scroller;
  #jump;
  #isOn = true;
  #lastTop = 0;

  /** @param {HTMLElement} scroller @param {HTMLElement} jump the button that leads to the end */
  constructor(scroller, jump) {
    this.#scroller = scroller;
    this.#jump = jump;
    scroller.addEventListener("scroll", () => this.#look(this.#lastTop), { passive: true });
    scroller.addEventListener("toggle", () => this.#look(Infinity), true); // who unfolds something wants to read it
    jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.grown()).observe(scroller); // settings unfold, a phone's keyboard comes
  }

  toEnd() {
    this.#isOn = true;
    this.grown();
  }

  /** Something was added. */
  grown() {
    if (this.#isOn) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#lastTop = this.#scroller.scrollTop;
    this.#jump.hidden = this.#isOn;
  }

  #look(lastTop) {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    this.#isOn = follows(this.#isOn, lastTop, { scrollTop, scrollHeight, clientHeight });
    this.#lastTop = scrollTop;
    this.#jump.hidden = this.#isOn;
  }
}
