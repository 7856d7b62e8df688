// The server's log of the last hour: read while its panel is open, and only the lines that are new.

import { ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { reconcile } from "./rows.js";

const MAX_SHOWN = 500;
const BADGES = { warning: "badge warn", error: "badge bad", critical: "badge bad" };

let lines = [];
let last = 0;
let level = "";

/** @param {{open: () => void, close: () => void}} panel called when the panel opens, or asks for other lines, and closes */
export function setUpLogs({ open, close }) {
  byId("logs").addEventListener("toggle", () => (byId("logs").open ? open() : close()));
  byId("logs-level").addEventListener("change", open);
  byId("logs-filter").addEventListener("input", draw);
}

export const isLogOpen = () => byId("logs").open;

export async function readLogs() {
  const wanted = byId("logs-level").value;
  const since = wanted === level ? last : 0;
  const read = await ask(`/admin/api/logs?level=${wanted}&since=${since}`);
  return { read, wanted, since };
}

/** @param {Awaited<ReturnType<typeof readLogs>>} answer */
export function showLogs({ read, wanted, since }) {
  byId("logs-problem").hidden = true;
  const isContinued = since > 0 && read.last >= since; // a server that was restarted counts anew
  const before = isContinued ? lines : [];
  lines = [...before, ...read.data.map((line) => ({ ...line, key: `${line.number} ${line.unix_s}` }))].slice(-MAX_SHOWN);
  last = read.last;
  level = wanted;
  draw();
}

export function showLogsFailure(error) {
  byId("logs-problem").hidden = false;
  setText(byId("logs-problem"), `The log cannot be read: ${error.message}`);
}

function draw() {
  const words = byId("logs-filter").value.trim().toLowerCase();
  const found = lines.filter(({ logger, text }) => `${logger} ${text}`.toLowerCase().includes(words)).reverse();
  byId("logs-table").hidden = found.length === 0;
  byId("logs-none").hidden = found.length !== 0;
  setText(byId("logs-none"), lines.length === 0 ? "Nothing was logged." : "No line matches.");
  reconcile(byId("logs-table").tBodies[0], found, { key: ({ key }) => key, make, update: () => {} });
}

function make({ unix_s: unixS, level: name, logger, text }) {
  const time = new Date(unixS * 1000);
  return h(
    "tr",
    {},
    h("td", { class: "nowrap num" }, h("time", { datetime: time.toISOString(), title: time.toLocaleString() }, time.toLocaleTimeString())),
    h("td", {}, h("span", { class: BADGES[name] ?? "badge plain" }, name)),
    h("td", { class: "long" }, h("span", { class: "log-text" }, text), h("span", { class: "sub" }, logger)),
  );
}
