// Quantised copies of models: a plan first, then a job with its progress, and the copies with what they lost.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { bytes, count, percent } from "../shared/format.js";
import { question, tell } from "./question.js";
import { reconcile, row, twoLines } from "./rows.js";

const PATH = "/admin/api/quantise";
const STATES = { running: "warn", cancelling: "warn", cancelled: "plain", failed: "bad" };
const MODES = ["mxfp4", "mxfp8", "nvfp4"];
const PLAN_DEADLINE_MS = 120_000; // a process of its own reads the headers of all files

let on = {};
let running = new Set();

/** @param {{onJobs: () => void, onCopies: () => void, onModels: () => void, rest: () => void}} calls `rest`: no job runs */
export function setUpQuantise(calls) {
  on = calls;
  byId("quantise-how").addEventListener("change", () => {
    byId("quantise-size-label").hidden = byId("quantise-how").value !== "measured";
  });
  byId("quantise-form").addEventListener("submit", (event) => {
    event.preventDefault();
    void quantise(ordered());
  });
}

/** @param {Array<{mayChange: boolean}>} models */
export function showQuantise(models) {
  const mayChange = models.some((model) => model.mayChange);
  const isNew = byId("quantise").hidden && mayChange;
  byId("quantise").hidden = !mayChange;
  byId("quantise-link").hidden = !mayChange;
  if (mayChange) on.onJobs(); // one may have begun elsewhere
  if (isNew) on.onCopies();
}

export const readJobs = async () => (await ask(PATH)).data;

export const readCopies = () => ask(`${PATH}/copies`);

/** What is done is among the copies. */
export function showJobs(jobs) {
  const shown = jobs.filter(({ state }) => state !== "done");
  byId("quantise-jobs").hidden = shown.length === 0;
  reconcile(byId("quantise-jobs").tBodies[0], shown, { key: ({ name }) => name, make: makeJob, update: updateJob, refuge: byId("quantise-title") });
  const open = jobs.filter(isOpen);
  const ended = jobs.filter((job) => running.has(job.id) && !isOpen(job));
  running = new Set(open.map(({ id }) => id));
  for (const { name, state, problem } of ended) tell(`${name}: ${state}${problem === "" ? "" : `: ${problem}`}`);
  if (ended.length > 0) {
    on.onCopies();
    on.onModels();
  }
  if (open.length === 0) on.rest();
}

const isOpen = ({ state }) => state === "running" || state === "cancelling";

function makeJob({ name }) {
  const cancel = h("button", { type: "button", "aria-label": `Cancel ${name}` }, "Cancel");
  const again = h("button", { type: "button", "aria-label": `Continue ${name}` }, "Continue");
  const made = row(["Copy", "State", "Progress"], [cancel, again]);
  made.cells[1].append(h("span"));
  made.cells[2].classList.add("long");
  made.cells[2].append(h("progress", { "aria-label": `Progress of ${name}`, max: 1, value: 0 }), h("span", { class: "sub" }));
  return made;
}

function updateJob(tableRow, job) {
  const [name, stated, progress, actions] = tableRow.cells;
  const size = job.bytes === null ? "" : `, ${bytes(job.bytes)}, ${job.bits_per_weight.toFixed(2)} bits a weight`;
  twoLines(name, job.name, job.problem || `of ${job.model}${size}`);
  setText(stated.firstElementChild, job.state);
  stated.firstElementChild.className = `badge ${STATES[job.state]}`;
  progress.children[0].value = job.total === 0 ? 0 : job.done / job.total;
  setText(progress.children[1], `${job.phase}${amountOf(job)}`);
  const [cancel, again] = actions.children;
  cancel.hidden = !isOpen(job);
  cancel.disabled = job.state === "cancelling";
  cancel.onclick = () => act(`${PATH}/${job.id}`, { method: "DELETE" });
  again.hidden = isOpen(job);
  again.onclick = () => act(PATH, { body: job.order, deadlineMs: PLAN_DEADLINE_MS });
}

function amountOf({ phase, done, total }) {
  if (total === 0) return "";
  const isLayers = phase === "measuring" || phase === "checking";
  return isLayers ? `: ${count(done)} of ${count(total)} layers` : `: ${bytes(done)} of ${bytes(total)}, ${percent(done / total)}`;
}

/** @param {{data: object[], sources: object[]}} answer CopyListBody */
export function showCopies({ data, sources }) {
  const shown = data.filter(({ state }) => state !== "running"); // that one is among the jobs
  byId("quantise-problem").hidden = true;
  byId("copies-table").hidden = shown.length === 0;
  byId("copies-note").hidden = shown.length === 0;
  reconcile(byId("copies-table").tBodies[0], shown, { key: ({ name, state }) => `${state === "whole"} ${name}`, make: makeCopy, update: updateCopy, refuge: byId("quantise-title") });
  const model = byId("quantise-model");
  const first = model.childElementCount === 0;
  reconcile(model, sources, { key: ({ id }) => id, make: ({ id }) => h("option", { value: id }), update: updateSource });
  if (first) model.value = sources.find(({ problem }) => problem === "")?.id ?? "";
}

export function showQuantiseFailure(error) {
  byId("quantise-problem").hidden = false;
  setText(byId("quantise-problem"), `The copies cannot be listed: ${error.message}`);
}

function updateSource(option, { id, bytes: size, problem }) {
  option.disabled = problem !== "";
  setText(option, problem === "" ? `${id} (${bytes(size)})` : `${id}: ${problem.split(":")[0]}`);
}

function makeCopy({ name }) {
  const button = h("button", { type: "button", class: "danger", "aria-label": `Remove ${name}`, onclick: () => remove(name) }, "Remove");
  return row(["Copy", "Size>", "Bits a weight>", "KL>", "Same token>", "Perplexity>"], [button]);
}

function updateCopy(tableRow, { name, state, bytes: size, source, recipe, bits_per_weight: bits, quality, note }) {
  const whole = [source && `of ${source}`, recipe, note].filter(Boolean).join(" · ");
  twoLines(tableRow.cells[0], name, state === "whole" ? whole : "not finished: the same order continues it");
  setText(tableRow.cells[1], bytes(size));
  setText(tableRow.cells[2], fixed(bits, 2));
  setText(tableRow.cells[3], fixed(quality?.kl, 4));
  setText(tableRow.cells[4], percent(quality?.agreement));
  twoLines(tableRow.cells[5], fixed(quality?.perplexity, 2), quality ? `source ${fixed(quality.source_perplexity, 2)}` : "");
}

const fixed = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "–");

/** The order that the form says. */
function ordered() {
  const how = byId("quantise-how").value;
  const order = { model: byId("quantise-model").value, name: byId("quantise-name").value.trim() };
  if (MODES.includes(how)) order.mode = how;
  else if (/^\d$/.test(how)) order.bits = Number(how);
  else order.recipe = how;
  const size = byId("quantise-size").value.trim();
  if (how === "measured" && size !== "") order.size = size;
  if (byId("quantise-group").value !== "") order.group = Number(byId("quantise-group").value);
  return { ...order, check: byId("quantise-check").checked, force: byId("quantise-force").checked, allow_plain: byId("quantise-plain").checked };
}

function quantise(order) {
  return reported(async () => {
    const button = byId("quantise-plan");
    button.disabled = true;
    setText(byId("quantise-status"), "Planning…");
    try {
      const isMeasured = order.recipe === "measured";
      const plan = isMeasured ? null : await ask(`${PATH}/plan`, { body: order, deadlineMs: PLAN_DEADLINE_MS });
      setText(byId("quantise-status"), "");
      const title = `Quantise ${order.model}?`;
      if (!(await question({ title, text: plan === null ? MEASURED : planText(plan), yes: "Start", no: "Leave it" }))) return;
      setText(byId("quantise-status"), "Starting…");
      await ask(PATH, { body: order, deadlineMs: PLAN_DEADLINE_MS });
      setText(byId("quantise-status"), "");
    } finally {
      button.disabled = false;
    }
    on.onJobs();
    on.onCopies();
  }, (message) => setText(byId("quantise-status"), message));
}

const MEASURED = "It measures first what each part of the model loses, once for a model, and gives the bits to the parts that need them. The server answers meanwhile, at a higher priority.";

function planText(plan) {
  const total = Object.values(plan.forms).reduce((sum, number) => sum + number, 0);
  const forms = Object.entries(plan.forms).map(([form, number]) => `${percent(number / total)} ${form}`);
  const copied = plan.num_copied === 0 ? "" : `\nTensors that are copied as they are: ${count(plan.num_copied)}, ${bytes(plan.copied_bytes)}.`;
  const disk = plan.free_bytes === null ? "" : ` Disk: ${bytes(plan.free_bytes)} free.`;
  return `${plan.name}: ${bytes(plan.bytes)}, ${plan.bits_per_weight.toFixed(2)} bits a weight (${forms.join(", ")}).${copied}
Memory meanwhile: ${bytes(plan.step_bytes)} beside the process.${disk}
The server answers meanwhile, at a higher priority.`;
}

async function remove(name) {
  const text = "Its folder goes. Its source stays, and another job makes the copy again.";
  if (!(await question({ title: `Remove ${name}?`, text, yes: "Remove" }))) return;
  await act(`${PATH}/copies/${encodeURIComponent(name)}`, { method: "DELETE" });
  on.onModels();
}

function act(path, options) {
  return reported(async () => {
    await ask(path, options);
    on.onJobs();
    on.onCopies();
  }, tell);
}

async function reported(work, report) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    report(error.message);
  }
}
