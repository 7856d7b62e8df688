// Requests that ended: what they took, how much of their prompt was reused, and where and why that stopped.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { count, percent, seconds, short } from "../shared/format.js";
import { WAITS } from "./open.js";
import { reconcile, row, twoLines } from "./rows.js";

let shown = [];
let nowUnixS = 0;

export function setUpRecent(changed) {
  byId("recent-filter").addEventListener("input", () => {
    draw();
    changed(); // who looks for one wants it found wherever it is
  });
  byId("recent-most").addEventListener("change", changed);
  byId("recent-order").addEventListener("change", () => {
    byId("recent-most-label").hidden = isSlowest();
    changed();
  });
}

const MOST = "256"; // that the server remembers
const MOST_SLOWEST = "20";

const isSlowest = () => byId("recent-order").value === "slowest";

/** The query of the requests to show: the last that ended, or the slowest. */
export function recentQuery() {
  if (isSlowest()) return `ended=0&slowest=${MOST_SLOWEST}`;
  return `ended=${wanted() === "" ? byId("recent-most").value : MOST}`;
}

const wanted = () => byId("recent-filter").value.trim().toLowerCase();

/** @param {object} list RequestListBody: one of both lists was asked for @param {number} now the server's clock, Unix seconds */
export function showRecent({ ended, slowest }, now) {
  shown = slowest.length > 0 ? slowest : ended;
  nowUnixS = now;
  draw();
}

function draw() {
  const found = shown.filter((request) => words(request).includes(wanted()));
  byId("recent-table").hidden = found.length === 0;
  byId("recent-none").hidden = found.length !== 0;
  setText(byId("recent-none"), shown.length === 0 ? "None yet." : "No request matches.");
  const body = byId("recent-table").tBodies[0];
  const isOpen = new Set([...body.querySelectorAll("tr.broke")].map((detail) => detail.dataset.of));
  const lines = found.flatMap((request) =>
    isOpen.has(request.id) ? [{ request, isDetail: false }, { request, isDetail: true }] : [{ request, isDetail: false }],
  );
  reconcile(body, lines, {
    key: ({ request, isDetail }) => (isDetail ? `broke ${request.id}` : request.id),
    make: ({ request }) => make(request),
    update: (tableRow, { request, isDetail }) => {
      if (!isDetail) update(tableRow, request);
    },
    refuge: byId("recent-title"),
  });
}

function words({ id, model, key, operation, end, explanation }) {
  return [id, model, key, operation, end?.reason, end?.error_code, end?.error_message, explanation?.reason].join(" ").toLowerCase();
}

function make({ id }) {
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: () => toggle(id, button) }, "Why");
  button.setAttribute("aria-label", `Why ${id} took what it took`);
  const made = row(["Request", "Ended", "First token>", "Took>", "Prompt", "Generated>"], [button]);
  made.cells[4].classList.add("long");
  return made;
}

function update(tableRow, request) {
  const { end, times } = request;
  twoLines(tableRow.cells[0], request.id, [request.model, request.key && `key ${request.key}`, request.operation].filter(Boolean).join(" · "), "id");
  twoLines(tableRow.cells[1], endText(end), `${seconds(Math.max(0, nowUnixS - end.unix_s))} ago`, end.reason === "error" ? "badge bad" : "");
  twoLines(tableRow.cells[2], seconds(times.ttft_s), partsText(request));
  setText(tableRow.cells[3], seconds(request.age_s));
  twoLines(tableRow.cells[4], promptText(request), request.explanation?.sentence ?? "It was never looked up.");
  twoLines(tableRow.cells[5], count(request.output_tokens), times.decode_s > 0 && request.output_tokens > 1 ? `${short(request.output_tokens / times.decode_s)}/s` : "");
}

const LEAST_PART = 0.05; // of the time to the first token: smaller parts explain nothing

/** "queue (memory) 2.1 s · restore 0.3 s · prefill 4.0 s": what the time to the first token went to. */
function partsText({ times, waited_for: waitedFor }) {
  const { queue_s: queueS, restore_s: restoreS, prefill_s: prefillS, ttft_s: ttftS } = times;
  if (ttftS === null) return "";
  const parts = [
    [waitedFor.length === 0 ? "queue" : `queue (${waitedFor.join(", ")})`, queueS],
    ["restore", restoreS],
    ["prefill", prefillS - (restoreS ?? 0)],
  ];
  return parts.filter(([, s]) => s > ttftS * LEAST_PART).map(([name, s]) => `${name} ${seconds(s)}`).join(" · ");
}

const REASONS = { stop: "complete", tool_calls: "calls", length: "cut by its length", cancelled: "cancelled" };

function endText({ reason, error_code: code }) {
  return reason === "error" ? code ?? "failed" : REASONS[reason] ?? reason;
}

function promptText({ prompt_tokens: prompt, reused }) {
  const num = Object.values(reused).reduce((sum, tokens) => sum + tokens, 0);
  const tiers = Object.entries(reused).filter(([, tokens]) => tokens > 0).map(([tier, tokens]) => `${tier} ${count(tokens)}`);
  const share = prompt === 0 ? "" : `, ${percent(num / prompt)} reused`;
  return `${count(prompt)} tokens${share}${tiers.length === 0 ? "" : ` (${tiers.join(", ")})`}`;
}

async function toggle(id, button) {
  const tableRow = button.closest("tr");
  const open = tableRow.nextElementSibling;
  if (open?.dataset.of === id) {
    open.remove();
    button.setAttribute("aria-expanded", "false");
    return;
  }
  button.setAttribute("aria-expanded", "true");
  const cell = h("td", { colspan: "7" }, h("p", { class: "muted" }, "Asking…"));
  tableRow.after(h("tr", { class: "broke", "data-of": id, "data-key": `broke ${id}` }, cell));
  try {
    cell.replaceChildren(...details(await ask(`/admin/api/requests/${encodeURIComponent(id)}`)));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    cell.replaceChildren(h("p", {}, error.status === 404 ? "The server remembers it no longer." : error.message));
  }
}

/** @param {object} request RequestBody @returns {Node[]} */
function details(request) {
  const { times, end, explanation } = request;
  const made = [h("p", {}, h("strong", {}, explanation?.sentence ?? "Its prompt was never looked up."))];
  if (end?.error_message) made.push(h("p", { class: "notice bad" }, end.error_message));
  if (explanation !== null) made.push(...broke(explanation, request.shows_text));
  made.push(
    facts({
      Queue: seconds(times.queue_s),
      ...(request.waited_for.length > 0 && { "Waited for": request.waited_for.map((reason) => WAITS[reason] ?? reason).join(", ") }),
      ...(times.restore_s !== null && { Restore: seconds(times.restore_s) }),
      Prefill: seconds(times.prefill_s === null ? null : times.prefill_s - (times.restore_s ?? 0)),
      Decode: seconds(times.decode_s),
      Computed: `${count(request.computed_tokens)} tokens`,
      ...(request.images && { Images: imagesText(request.images) }),
      ...(request.preemptions > 0 && { Preempted: `${count(request.preemptions)} times` }),
      ...(request.priority === "batch" && { Priority: "batch" }),
      ...(request.requested_model !== request.model && { "Asked for": request.requested_model }),
    }),
  );
  return made;
}

function imagesText({ images, tokens, reused_tokens: reused, seen, tower_s: s }) {
  const tower = seen === 0 ? "" : `, ${count(seen)} seen in ${seconds(s)}`;
  return `${count(images)} of ${count(tokens)} tokens, ${count(reused)} reused${tower}`;
}

function broke(explanation, showsText) {
  const { divergence, nearest_fork: fork } = explanation;
  const made = [
    facts({
      "Reused up to token": count(explanation.stopped_at),
      "Stored up to token": count(explanation.known_tokens),
      Reason: explanation.reason,
      ...(fork !== null && { "Nearest fork point": `token ${count(fork.position)} (${fork.kind})` }),
      ...(divergence !== null && { "First differing token": count(divergence.position) }),
    }),
  ];
  if (explanation.note !== "") made.push(h("p", { class: "small" }, explanation.note));
  if (divergence !== null && showsText) made.push(sides(divergence));
  else if (divergence !== null) made.push(h("p", { class: "small muted" }, "The text on both sides is not shown: cache.show_text does not allow it, its model is not loaded, or another key or salt sent it."));
  return made;
}

function sides({ before, prompt, stored }) {
  const side = (title, text) => h("div", {}, h("h3", {}, title), h("pre", {}, before, h("mark", {}, text)));
  return h("div", { class: "sides" }, side("This prompt", prompt), stored === null ? h("p", { class: "muted" }, "The stored side is not shown.") : side("Stored", stored));
}

function facts(entries) {
  return h("dl", { class: "facts" }, ...Object.entries(entries).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { class: "num" }, value))));
}
