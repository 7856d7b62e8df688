// Work that is asked for often and done at most once a frame; work that turns out slow leaves the page most of the time.

const SHARE = 4; // of the time, at most one in four

/**
 * @param {() => void} work
 * @param {{frame: (then: () => void) => void, later: (ms: number, then: () => void) => void, now: () => number}} browser
 * @returns {() => void} asks for it
 */
export function onceAFrame(work, { frame, later, now }) {
  let isAsked = false;
  let restMs = 0;
  const run = () => {
    isAsked = false;
    const begunMs = now();
    work();
    restMs = (now() - begunMs) * (SHARE - 1);
  };
  return () => {
    if (isAsked) return;
    isAsked = true;
    if (restMs > 1000 / 60) later(restMs, () => frame(run));
    else frame(run);
  };
}
