import assert from "node:assert/strict";
import { test } from "node:test";
import { EventStream } from "../../../../interfaces/http/pages/files/chat/event_stream.js";

const STREAM = ': queued\n\ndata: {"a": "é€😀"}\r\n\r\nevent: x\rid: 7\rdata: one\rdata:two\r\r: prefill 5/9\n\ndata: [DONE]\n\ndata: unended';
const EVENTS = [
  { comment: "queued" },
  { data: '{"a": "é€😀"}' },
  { data: "one\ntwo" },
  { comment: "prefill 5/9" },
  { data: "[DONE]" },
];

function fed(pieces) {
  const stream = new EventStream();
  return pieces.flatMap((piece) => stream.feed(piece));
}

test("events are the same however the bytes are split", () => {
  const bytes = new TextEncoder().encode(STREAM);
  assert.deepEqual(fed([bytes]), EVENTS);
  assert.deepEqual(fed([...bytes].map((byte) => Uint8Array.of(byte))), EVENTS);
  for (let first = 0; first <= bytes.length; first += 1) {
    for (const second of [first, Math.min(first + 3, bytes.length)]) {
      const pieces = [bytes.subarray(0, first), bytes.subarray(first, second), bytes.subarray(second)];
      assert.deepEqual(fed(pieces), EVENTS, `split at ${first} and ${second}`);
    }
  }
});

test("a byte order mark opens the stream and is no part of it", () => {
  assert.deepEqual(fed([Uint8Array.of(0xef, 0xbb), Uint8Array.of(0xbf), new TextEncoder().encode("data: x\n\n")]), [{ data: "x" }]);
});
