// What the server loads while a question waits for its answer.
import { loadingText } from "../shared/loading.js";

const EVERY_MS = 2000;

export class LoadWatch {
  words = "";
  #ports;
  #isWatching = false;

  /**
   * @param {{ask: (path: string) => Promise<object>, later: (ms: number, then: () => void) => void,
   *   isWaiting: () => boolean, onChange: () => void}} ports `isWaiting`: nothing of the answer is there yet
   */
  constructor(ports) {
    this.#ports = ports;
  }

  /** Ask again and again until the answer begins; not at once, since most begin soon. */
  start() {
    if (this.#isWatching) return;
    this.#isWatching = true;
    this.#ports.later(EVERY_MS, () => this.#look());
  }

  async #look() {
    let words = "";
    if (this.#ports.isWaiting()) {
      try {
        words = loadingText((await this.#ports.ask("/health/engine")).loading);
      } catch {
        // a stuck engine's status is no success; the answer itself will say what is wrong
      }
    }
    this.#isWatching = false;
    this.words = words === "" ? "" : `${words[0].toUpperCase()}${words.slice(1)}`;
    if (!this.#ports.isWaiting()) return;
    this.#ports.onChange();
    this.start();
  }
}
