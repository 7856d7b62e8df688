// Models of the hub: those that are suggested for this machine's memory, a search, and downloads with their progress.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { bytes, count, percent } from "../shared/format.js";
import { question, tell } from "./question.js";
import { reconcile, row, twoLines } from "./rows.js";

const STATES = {
  running: ["downloading", "warn"],
  cancelling: ["cancelling", "warn"],
  cancelled: ["cancelled", "plain"],
  done: ["downloaded", "good"],
  failed: ["failed", "bad"],
};

let on = {};
let here = new Set();
let found = null;
let running = new Set();

/** @param {{onPulls: () => void, onModels: () => void, rest: () => void}} calls `rest`: nothing is downloaded */
export function setUpGetModels(calls) {
  on = calls;
  byId("get-form").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
}

/** @param {Array<{standing: {id: string}, mayChange: boolean}>} models */
export function showGetModels(models) {
  const mayChange = models.some((model) => model.mayChange);
  const isNew = byId("get").hidden && mayChange;
  byId("get").hidden = !mayChange;
  byId("get-link").hidden = !mayChange;
  here = new Set(models.map(({ standing }) => standing.id));
  if (isNew) search();
  else showFound();
  if (mayChange) on.onPulls(); // one may have begun elsewhere
}

export async function readPulls() {
  return (await ask("/admin/api/pulls")).data;
}

export function showPulls(pulls) {
  byId("pulls-table").hidden = pulls.length === 0;
  reconcile(byId("pulls-table").tBodies[0], pulls, { key: ({ model }) => model, make: makePull, update: updatePull, refuge: byId("get-title") });
  const open = pulls.filter(({ state }) => state === "running" || state === "cancelling");
  const now = new Set(open.map(({ model }) => model));
  const ended = pulls.filter(({ model }) => running.has(model) && !now.has(model));
  running = now;
  for (const { model, state, problem } of ended) tell(`${model}: ${STATES[state][0]}${problem === "" ? "" : `: ${problem}`}`);
  if (ended.length > 0) on.onModels();
  if (open.length === 0) on.rest();
}

function makePull({ model }) {
  const cancel = h("button", { type: "button" }, "Cancel");
  const again = h("button", { type: "button", onclick: () => pull(model) }, "Continue");
  for (const button of [cancel, again]) button.setAttribute("aria-label", `${button.textContent} ${model}`);
  const made = row(["Download", "State", "Received>"], [cancel, again]);
  made.cells[1].append(h("span"));
  made.cells[2].append(h("progress", { "aria-label": `Download of ${model}`, max: 1, value: 0 }), h("span", { class: "sub" }));
  return made;
}

function updatePull(tableRow, { id, model, state, done_bytes: done, total_bytes: total, problem }) {
  const [name, stated, received, actions] = tableRow.cells;
  const isOpen = state === "running" || state === "cancelling";
  twoLines(name, model, problem);
  setText(stated.firstElementChild, STATES[state][0]);
  stated.firstElementChild.className = `badge ${STATES[state][1]}`;
  const share = total === 0 ? 0 : done / total;
  received.children[0].value = share;
  setText(received.children[1], `${bytes(done)} of ${bytes(total)}, ${percent(share)}`);
  const [cancel, again] = actions.children;
  cancel.hidden = !isOpen;
  cancel.disabled = state === "cancelling";
  cancel.onclick = () => cancelPull(id);
  again.hidden = state !== "cancelled" && state !== "failed";
}

function search() {
  return reportErrors(async () => {
    const words = byId("get-words").value.trim();
    setText(byId("get-status"), words === "" ? "" : "Asking the hub…");
    const { data } = await ask(`/admin/api/hub?query=${encodeURIComponent(words)}`);
    found = data;
    const none = words === "" ? "None of the suggested models fits this machine's memory." : "The hub has no such model in MLX's format.";
    const some = words === "" ? "Suggested for this machine's memory, the largest first." : `${count(data.length)} found, the most downloaded first.`;
    setText(byId("get-status"), data.length === 0 ? none : some);
    showFound();
  }, (message) => setText(byId("get-status"), message));
}

function showFound() {
  if (found === null) return;
  byId("get-table").hidden = found.length === 0;
  reconcile(byId("get-table").tBodies[0], found, { key: ({ id }) => id, make: makeFound, update: updateFound, refuge: byId("get-title") });
}

function makeFound({ id }) {
  const button = h("button", { type: "button", "aria-label": `Pull ${id}`, onclick: () => pull(id) }, "Pull");
  return row(["Model", "Weights>", "Fits this machine"], [button]);
}

function updateFound(tableRow, one) {
  const [name, weights, fits, actions] = tableRow.cells;
  const popular = one.downloads === null ? "" : `${count(one.downloads)} downloads`;
  twoLines(name, one.id, [one.note, popular, one.gated && "its terms must be accepted on the hub"].filter(Boolean).join(" · "));
  setText(weights, bytes(one.bytes));
  const isHere = here.has(one.id);
  setText(fits, (isHere && "is here") || one.problem || one.memory || (one.context_length === null ? "" : `with ${count(one.context_length)} tokens of context`) || (one.bytes === null ? "" : "yes"));
  actions.firstElementChild.hidden = isHere || one.problem !== "";
}

function pull(id) {
  return reportErrors(async () => {
    const need = await ask(`/admin/api/hub/model?model=${encodeURIComponent(id)}`);
    if (need.problem !== "") {
      tell(need.problem);
      return;
    }
    const size = `${bytes(need.missing)} to download; ${bytes(need.free)} are free in ${need.cache}.`;
    const memory = need.memory === "" ? "" : ` It does not fit the memory: ${need.memory}.`;
    if (!(await question({ title: `Download ${id}?`, text: size + memory, yes: "Download", no: "Leave it" }))) return;
    await ask("/admin/api/pulls", { body: { model: id, beyond_memory: need.memory !== "" } });
    on.onPulls();
  }, tell);
}

function cancelPull(id) {
  return reportErrors(async () => {
    await ask(`/admin/api/pulls/${id}`, { method: "DELETE" });
    on.onPulls();
  }, tell);
}

async function reportErrors(work, report) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    report(error.message);
  }
}
