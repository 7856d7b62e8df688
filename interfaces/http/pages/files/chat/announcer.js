// Tells screen readers of answers without noise: that one has begun, and the whole when it is there; nothing between.

const MAX_SPOKEN_CHARS = 1500;

export class Announcer {
  #element;
  #running = null;

  /** @param {HTMLElement} element a live region */
  constructor(element) {
    this.#element = element;
  }

  /**
   * @param {string} id of the open conversation @param {() => string} spoken the answer as text
   * @returns {boolean} whether its answer has just ended
   */
  update(id, isRunning, spoken) {
    const wasRunning = this.#running === id;
    this.#running = isRunning ? id : null;
    if (isRunning && !wasRunning) this.#element.textContent = "The answer is on its way.";
    if (!isRunning && wasRunning) this.#element.textContent = shortened(spoken());
    return !isRunning && wasRunning;
  }
}

function shortened(text) {
  if (text.length <= MAX_SPOKEN_CHARS) return `Answer: ${text}`;
  return `Answer: ${text.slice(0, MAX_SPOKEN_CHARS)} … The rest is in the conversation.`;
}
