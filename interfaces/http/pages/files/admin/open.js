// Requests that are open: where each is, how far its prompt is, and ending one.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { count, percent, seconds, short } from "../shared/format.js";
import { question, tell } from "./question.js";
import { fill, reconcile, row, twoLines } from "./rows.js";

let onCancelled = () => {};

export function setUpOpen(cancelled) {
  onCancelled = cancelled;
}

/** @param {object} list RequestListBody @param {object} counts QueueCountsBody */
export function showOpen(list, counts) {
  const all = [...list.open, ...preparing(list)];
  const num = list.open_count + list.preparing_count;
  const more = num > all.length ? `; ${count(all.length)} of ${count(num)} are shown` : "";
  setText(byId("open-count"), `${count(counts.running)} running, ${count(counts.waiting)} waiting${waitingFor(counts.waiting_for)}; at most ${count(counts.queue_limit)} may wait${more}`);
  byId("open-table").hidden = all.length === 0;
  byId("open-none").hidden = all.length !== 0;
  reconcile(byId("open-table").tBodies[0], all, {
    key: ({ id }) => id,
    make,
    update,
    refuge: byId("open-title"),
  });
}

/** Those that are not in the queue yet, as if they were: nothing of them is computed. */
function preparing(list) {
  const open = new Set(list.open.map(({ id }) => id));
  const nothing = { stage: "preparing", preempted: false, prompt_tokens: 0, done_tokens: 0, output_tokens: 0, reused: {}, times: {} };
  return list.preparing.filter(({ id }) => !open.has(id)).map((one) => ({ ...nothing, ...one }));
}

function waitingFor(reasons) {
  const parts = Object.entries(reasons).filter(([, num]) => num > 0).map(([reason, num]) => `${count(num)} for ${WAITS[reason] ?? reason}`);
  return parts.length === 0 ? "" : ` (${parts.join(", ")})`;
}

/** Reasons of waiting. */
export const WAITS = { model: "its model", place: "a place in the batch", memory: "memory", prefix: "a prefix that another request computes" };

function make({ id }) {
  const button = h("button", { type: "button", class: "danger" }, "Cancel");
  button.setAttribute("aria-label", `Cancel ${id}`);
  button.addEventListener("click", () => cancel(id, button));
  const made = row(["Request", "State", "Open for>", "Reused>", "Generated>"], [button]);
  made.cells[1].classList.add("long");
  made.cells[1].append(
    h("div", {}, h("span"), h("div", {}, h("progress", { "aria-label": `Prefill of ${id}` }), h("span", { class: "sub num" }))),
  );
  return made;
}

function update(tableRow, request) {
  const asked = [request.model, request.key === "" ? "" : `key ${request.key}`, request.operation, request.priority === "batch" ? "batch" : ""];
  twoLines(tableRow.cells[0], request.id, asked.filter((part) => part !== "").join(" · "), "id");
  showState(tableRow.cells[1], request);
  setText(tableRow.cells[2], seconds(request.age_s));
  setText(tableRow.cells[3], reused(request));
  setText(tableRow.cells[4], request.stage === "decode" ? output(request) : "–");
}

function showState(cell, request) {
  const [text, prefill] = cell.firstElementChild.children;
  setText(text, stateText(request));
  prefill.hidden = request.stage !== "prefill";
  const [progress, below] = prefill.children;
  progress.max = Math.max(1, request.prompt_tokens);
  progress.value = request.done_tokens;
  setText(below, `${count(request.done_tokens)} of ${count(request.prompt_tokens)} tokens`);
}

function stateText({ stage, waits_for: waitsFor, preempted }) {
  if (preempted) return "preempted: waits for memory to go on";
  if (stage === "preparing" && waitsFor === null) return "its prompt is read";
  if (stage === "queue" || stage === "preparing") return waitsFor === null ? "waits" : `waits for ${WAITS[waitsFor] ?? waitsFor}`;
  return stage === "prefill" ? "prefill" : "decodes";
}

function reused({ reused: byTier, prompt_tokens: prompt, stage }) {
  const num = Object.values(byTier).reduce((sum, tokens) => sum + tokens, 0);
  return stage === "queue" || stage === "preparing" || prompt === 0 ? "–" : `${count(num)} (${percent(num / prompt)})`;
}

function output({ output_tokens: num, times }) {
  return times.decode_s > 0 && num > 1 ? `${count(num)} (${short(num / times.decode_s)}/s)` : count(num);
}

async function cancel(id, button) {
  const isSure = await question({
    title: "Cancel this request?",
    text: `${id}\nIts client gets the error that it was cancelled. What was computed of its prompt is kept.`,
    yes: "Cancel the request",
  });
  if (!isSure) return;
  button.disabled = true;
  setText(button, "Cancelling…");
  try {
    await ask(`/admin/api/requests/${encodeURIComponent(id)}/cancel`, { body: {} });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    button.disabled = false;
    setText(button, "Cancel");
    tell(error.status === 404 ? "It has ended already." : `Not cancelled: ${error.message}`);
  }
  onCancelled();
}
