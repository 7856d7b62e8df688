// The memory ledger against its budget: what is held for what, what is promised, and the marks where pressure begins.

import { byId, h, setText } from "../shared/dom.js";
import { bytes } from "../shared/format.js";

const PARTS = [
  ["weights", "Weights", (memory) => memory.held.weights],
  ["states", "Open sequences", (memory) => memory.held.states],
  ["live", "Left for the next turn", (memory) => memory.held.live],
  ["hot", "Hot tier", (memory) => memory.held.hot],
  ["queued", "Waits for the store", (memory) => memory.held.queued + memory.held.in_flight],
  ["promised", "Reserved", (memory) => memory.promised.growth + memory.promised.transient],
  ["other", "Other", (memory) => memory.held.other],
];

const PRESSURE = {
  calm: ["good", "calm"],
  lean: ["warn", "lean: the hot tier is smaller"],
  paused: ["bad", "paused: nobody is admitted"],
  preempting: ["bad", "preempting"],
  refusing: ["bad", "refusing"],
};

let drawn = null;

function setUp() {
  const fills = PARTS.map((_, index) => h("div", { class: `fill part-${index + 1}` }));
  const marks = ["low", "high"].map((name) => h("div", { class: "mark", title: `${name} watermark` }));
  const track = h("div", { class: "track", role: "meter", "aria-label": "Memory", "aria-valuemin": 0, "aria-valuemax": 100 });
  track.append(...fills, ...marks);
  const values = PARTS.map(() => h("span", { class: "num" }));
  const list = PARTS.map(([, name], index) =>
    h("li", {}, h("span", {}, h("span", { class: `swatch part-${index + 1}` }), name), values[index]),
  );
  const figure = h("span", { class: "num" });
  const limits = h("p", { class: "small muted" });
  byId("memory").replaceChildren(
    h("div", { class: "label row" }, figure),
    track,
    h("ul", { class: "parts" }, ...list),
    limits,
  );
  return { fills, marks, track, values, figure, limits };
}

/** @param {object | null} memory MemoryBody */
export function showMemory(memory) {
  if (memory === null) {
    drawn = null;
    byId("memory").replaceChildren(h("p", { class: "muted" }, "This engine keeps no ledger."));
    byId("pressure").replaceChildren();
    return;
  }
  drawn ??= setUp();
  const sizes = PARTS.map(([, , of]) => of(memory));
  const limit = memory.limits?.hard_bytes ?? 0;
  const whole = Math.max(limit, sizes.reduce((sum, size) => sum + size, 0), 1);
  const share = (size) => `${((size / whole) * 100).toFixed(2)}%`;
  sizes.forEach((size, index) => {
    drawn.fills[index].style.width = share(size);
    setText(drawn.values[index], bytes(size));
  });
  drawn.marks.forEach((mark, index) => {
    mark.hidden = memory.limits === null;
    if (memory.limits !== null) mark.style.left = share(index === 0 ? memory.limits.low_bytes : memory.limits.high_bytes);
  });
  const text = limit === 0 ? `${bytes(memory.used_bytes)} used, without a bound` : `${bytes(memory.used_bytes)} used of ${bytes(limit)}`;
  setText(drawn.figure, text);
  drawn.track.setAttribute("aria-valuenow", ((memory.used_bytes / whole) * 100).toFixed(1));
  drawn.track.setAttribute("aria-valuetext", text);
  setText(drawn.limits, limitsText(memory));
  showPressure(memory.pressure);
}

function limitsText({ limits, held, room_bytes, process_bytes, available_bytes }) {
  const holds = process_bytes === null ? "" : ` · the process holds ${bytes(process_bytes)}`;
  const left = available_bytes === null ? "" : ` · the machine has ${bytes(available_bytes)} left`;
  if (limits === null) return `Nothing bounds it: memory.limit can${holds}${left}`;
  const read = held.reading === null ? "" : ` · read from the system: ${bytes(held.reading)}`;
  const room = room_bytes === null ? "" : ` · room for requests: ${bytes(room_bytes)}`;
  return `Watermarks ${bytes(limits.low_bytes)} and ${bytes(limits.high_bytes)}, of ${bytes(limits.total_bytes)} in all${room}${read}${holds}${left}`;
}

function showPressure(pressure) {
  const [kind, text] = PRESSURE[pressure] ?? ["plain", pressure];
  const badge = byId("pressure");
  badge.className = text === "" ? "" : `badge ${kind}`;
  setText(badge, text);
}
