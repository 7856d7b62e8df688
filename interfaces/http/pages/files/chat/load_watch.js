// What the server loads while a question waits for its answer.

const EVERY_MS = 2000;

export class LoadWatch {
  words = "";
  #ports;
  #isWatching = false;

  /** @param {{ask: Function, later: Function, isWaiting: () => boolean, onChange: () => void}} ports */
  constructor(ports) {
    this.#ports = ports;
  }

  /** Asks until the answer begins; not at once: most begin soon. */
  start() {
    if (this.#isWatching) return;
    this.#isWatching = true;
    this.#ports.later(EVERY_MS, () => this.#look());
  }

  async #look() {
    let words = "";
    if (this.#ports.isWaiting()) {
      try {
        const { loading } = await this.#ports.ask("/health/engine");
        if (loading) words = (await import("../shared/loading.js")).loadingText(loading);
      } catch {
        // the answer itself will say what is wrong
      }
    }
    this.#isWatching = false;
    this.words = words === "" ? "" : `${words[0].toUpperCase()}${words.slice(1)}`;
    if (!this.#ports.isWaiting()) return;
    this.#ports.onChange();
    this.start();
  }
}
