import assert from "node:assert/strict";
import { test } from "node:test";
import { LoadWatch } from "../../../../interfaces/http/pages/files/chat/load_watch.js";
import { loadingText } from "../../../../interfaces/http/pages/files/shared/loading.js";

const loading = (fields) => ({ model: "org/m", phase: "reading", fraction: null, seconds_left: null, ...fields });

test("a load is told as far as it is known", () => {
  assert.equal(loadingText(null), "");
  assert.equal(loadingText(undefined), "");
  assert.equal(loadingText(loading({ phase: "loading" })), "loading org/m");
  assert.equal(loadingText(loading({ phase: "measuring" })), "loading org/m: measuring its memory and speed");
  assert.equal(loadingText(loading({ fraction: 0.25, seconds_left: 75 })), "loading org/m: reading its weights, 25 %, 1 min 15 s left");
  assert.equal(loadingText(loading({ model: null, phase: "hashing", fraction: 0 })), "loading a model: hashing its files, 0 %");
});

test("a load is looked at while an answer is waited for, and no longer", async () => {
  const waits = [];
  const seen = [];
  let isWaiting = true;
  let answer = async () => ({ loading: loading({ fraction: 0.5 }) });
  const asked = [];
  const watch = new LoadWatch({
    ask: (path) => {
      asked.push(path);
      return answer();
    },
    later: (_ms, then) => waits.push(then),
    isWaiting: () => isWaiting,
    onChange: () => seen.push(watch.words),
  });
  const tick = async () => {
    waits.shift()();
    await new Promise(setImmediate);
  };
  watch.start();
  watch.start();
  assert.equal(waits.length, 1);
  await tick();
  answer = () => Promise.reject(new Error("stuck"));
  await tick();
  assert.deepEqual(seen, ["Loading org/m: reading its weights, 50 %", ""]);
  isWaiting = false;
  await tick();
  assert.deepEqual([asked.length, waits.length, watch.words], [2, 0, ""]);
});
