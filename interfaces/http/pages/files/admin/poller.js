// Asks again and again: every `everyMs` while all is well, ever more rarely while it is not, never while nobody looks.
//
//   visible ── ask ──► answered ── everyMs ──► ask
//                  └─► failed ── 2, 4, 8, ... everyMs, at most `mostMs` ──► ask
//   hidden: nothing is asked. Visible again, or `now()`: asked at once. Before the first `now()`, and after `pause()`,
//   it rests.

/** @template T */
export class Poller {
  /**
   * @param {() => Promise<T>} load
   * @param {{onAnswer: (value: T) => void, onFailure: (error: unknown, waitMs: number) => void, everyMs?: number,
   *   mostMs?: number}} options `waitMs`: until it is tried again
   */
  constructor(load, { onAnswer, onFailure, everyMs = 2000, mostMs = 30_000 }) {
    this.load = load;
    this.onAnswer = onAnswer;
    this.onFailure = onFailure;
    this.everyMs = everyMs;
    this.mostMs = mostMs;
    this.timer = 0;
    this.failures = 0;
    this.isAsking = false;
    this.isWanted = false;
    this.isPaused = true;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(this.timer);
      else if (!this.isPaused) this.now();
    });
  }

  /** Ask at once; after the answer that is under way, if there is one. */
  now() {
    clearTimeout(this.timer);
    this.isPaused = false;
    if (this.isAsking) this.isWanted = true;
    else void this.ask();
  }

  /** Until somebody says `now`: asking with a wrong key again and again helps nobody. */
  pause() {
    this.isPaused = true;
    clearTimeout(this.timer);
  }

  async ask() {
    this.isAsking = true;
    this.isWanted = false;
    let waitMs = this.everyMs;
    try {
      this.onAnswer(await this.load());
      this.failures = 0;
    } catch (error) {
      this.failures += 1;
      waitMs = Math.min(this.everyMs * 2 ** Math.min(this.failures, 10), this.mostMs);
      this.onFailure(error, waitMs);
    } finally {
      this.isAsking = false;
    }
    if (this.isWanted) this.now();
    else if (!document.hidden && !this.isPaused) this.timer = setTimeout(() => this.ask(), waitMs);
  }
}
