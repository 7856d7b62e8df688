import assert from "node:assert/strict";
import { test } from "node:test";
import { follows } from "../../../../interfaces/http/pages/files/chat/follow.js";
import { onceAFrame } from "../../../../interfaces/http/pages/files/chat/frames.js";

const at = (scrollTop) => ({ scrollTop, scrollHeight: 2000, clientHeight: 500 });

test("the end is followed until the reader scrolls up, and again from the end", () => {
  assert.ok(follows(true, 1500, at(1490)), "near the end");
  assert.ok(!follows(true, 1400, at(1300)), "scrolled up");
  assert.ok(follows(true, 1300, at(1300)), "the text grew");
  assert.ok(!follows(false, 1000, at(1300)), "reading on below");
  assert.ok(follows(false, 1300, at(1500)), "back at the end");
});

test("work is done once a frame, and slow work leaves three quarters of the time", () => {
  let nowMs = 0;
  let costMs = 1;
  let numDone = 0;
  const frames = [];
  const waits = [];
  const work = () => {
    numDone += 1;
    nowMs += costMs;
  };
  const asked = onceAFrame(work, {
    frame: (then) => frames.push(then),
    later: (ms, then) => waits.push([ms, then]),
    now: () => nowMs,
  });
  for (let i = 0; i < 5; i += 1) asked();
  assert.equal(frames.length, 1);
  frames.pop()();
  asked();
  costMs = 100;
  frames.pop()();
  assert.equal(numDone, 2);
  asked();
  assert.equal(frames.length, 0);
  assert.equal(waits[0][0], 300);
  waits[0][1]();
  frames.pop()();
  assert.equal(numDone, 3);
});
