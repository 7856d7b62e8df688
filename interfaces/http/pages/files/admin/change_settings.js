// Changing what a running server can change: the fields, the lines of the file that would differ, and the undo.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { tell } from "./question.js";

const PATH = "/admin/api/settings";
const LOAD_DEADLINE_MS = 30 * 60_000; // a model that is pinned is loaded first

const LINES = { read: (field) => field.value.split("\n").map((line) => line.trim()).filter(Boolean), write: (value) => value.join("\n") };
const TEXT = { read: (field) => field.value.trim() || null, write: (value) => value ?? "" };
const NUMBER = { read: (field) => (field.value === "" ? null : Number(field.value)), write: (value) => value ?? "" };
const TICK = { read: (field) => field.checked || null, write: (value) => value === true };

const SERVER = [
  { path: "server.aliases", label: "Aliases, one a line: NAME, or NAME=MODEL", kind: LINES, make: () => h("textarea", { rows: 3, spellcheck: "false" }) },
  { path: "server.image_hosts", label: "Hosts that images are fetched from, one a line", kind: LINES, make: () => h("textarea", { rows: 3, spellcheck: "false" }) },
  { path: "model.idle_ttl", label: "Unload an idle model after", kind: TEXT, make: () => h("input", { placeholder: "never; 30m, 2h", autocomplete: "off" }) },
  { path: "server.log_level", label: "Level of the log", kind: TEXT, make: () => h("select", {}, ...["debug", "info", "warning", "error"].map((level) => h("option", {}, level))) },
];
const number = (field, label) => ({ path: `sampling.${field}`, label, kind: NUMBER, make: () => h("input", { type: "number", step: "any", placeholder: "the model's" }) });
const MODEL = [
  number("temperature", "Temperature"),
  number("top_p", "Top p"),
  number("top_k", "Top k"),
  number("min_p", "Min p"),
  number("repetition_penalty", "Repetition penalty"),
  number("presence_penalty", "Presence penalty"),
  number("frequency_penalty", "Frequency penalty"),
  { path: "idle_ttl", label: "Unload when idle after", kind: TEXT, make: () => h("input", { placeholder: "as for all", autocomplete: "off" }) },
  { path: "pin", label: "Pinned: loaded at the start, and kept", kind: TICK, make: () => h("input", { type: "checkbox" }) },
];

let values = new Map();
let fields = [];
let onChanged = () => {};

/** @param {() => void} changed after settings were written */
export function setUpChangeSettings(changed) {
  onChanged = changed;
  fields = [...SERVER.map((one) => drawn(one, "change-server", () => one.path)), ...MODEL.map((one) => drawn(one, "change-of-model", () => modelPath(one.path)))];
  byId("change-model").addEventListener("change", () => fields.slice(SERVER.length).forEach((one) => show(one, true)));
  byId("change-form").addEventListener("submit", (event) => {
    event.preventDefault();
    tried(change);
  });
  byId("change-undo").addEventListener("click", () => tried(undo));
}

/** @param {{data: object[], file: string, can_undo: boolean, may_change: boolean}} settings */
export function showChangeable(settings) {
  values = new Map(settings.data.map((one) => [one.path, one]));
  byId("change-form").hidden = !settings.may_change;
  byId("change-undo").hidden = !settings.can_undo;
  setText(byId("change-where"), settings.file);
  fields.forEach((one) => show(one, false));
}

/** @param {Array<{standing: {id: string}}>} models those whose tables can be changed */
export function showChangeableModels(models) {
  const select = byId("change-model");
  const names = models.map(({ standing }) => standing.id);
  if (names.join("\n") === [...select.options].map(({ value }) => value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => h("option", {}, name)));
  if (names.includes(chosen)) select.value = chosen;
  fields.forEach((one) => show(one, false));
}

function modelPath(field) {
  return `models."${byId("change-model").value}".${field}`;
}

/** A field with its name and, below, why it cannot be changed here. */
function drawn(one, place, pathOf) {
  const field = one.make();
  const fixed = h("span", { class: "small muted" });
  const parts = one.kind === TICK ? [field, h("span", {}, one.label)] : [h("span", {}, one.label), field];
  byId(place).append(h("label", { class: one.kind === TICK ? "row tick" : "field" }, ...parts, fixed));
  return { ...one, field, fixed, pathOf, shown: null };
}

/** What somebody has begun to write stays, unless it is `forced` away. */
function show(one, forced) {
  const setting = values.get(one.pathOf());
  const value = one.kind.write(setting?.value ?? (one.kind === LINES ? [] : null));
  if (forced || one.shown === null || current(one) === one.shown) write(one, value);
  one.shown = one.kind === TICK ? value : String(value);
  one.field.disabled = (setting?.fixed ?? "") !== "";
  setText(one.fixed, setting?.fixed ?? "");
}

function current({ kind, field }) {
  return kind === TICK ? field.checked : field.value;
}

function write({ kind, field }, value) {
  if (kind === TICK) field.checked = value;
  else field.value = value;
}

async function change() {
  const different = fields.filter((one) => !one.field.disabled && current(one) !== one.shown);
  const changes = Object.fromEntries(different.map((one) => [one.pathOf(), one.kind.read(one.field)]));
  if (different.length === 0) {
    tell("No field differs from what the server has.");
    return;
  }
  const dry = await ask(PATH, { method: "PATCH", body: { changes, dry_run: true } });
  if (!(await confirmed(dry, "Write and apply", "Change the settings?"))) return;
  await ask(PATH, { method: "PATCH", body: { changes, digest: dry.digest }, deadlineMs: LOAD_DEADLINE_MS });
  tell(`Written to ${dry.file}, and in effect.`);
  for (const one of different) one.shown = current(one);
  onChanged();
}

async function undo() {
  const dry = await ask(`${PATH}/undo`, { body: { dry_run: true } });
  if (!(await confirmed(dry, "Take it back", "Take the last change back?"))) return;
  await ask(`${PATH}/undo`, { body: { digest: dry.digest }, deadlineMs: LOAD_DEADLINE_MS });
  tell("The last change is taken back.");
  fields.forEach((one) => (one.shown = null));
  onChanged();
}

function confirmed({ file, creates, difference }, yes, title) {
  const dialog = byId("change");
  setText(byId("change-title"), title);
  setText(byId("change-file"), `${file}${creates ? ", which is made" : ""}`);
  const lines = difference.split("\n").map((line) => h("span", { class: line.startsWith("+") ? "more" : line.startsWith("-") ? "less" : null }, `${line}\n`));
  byId("change-lines").replaceChildren(...(difference === "" ? ["No line differs."] : lines));
  setText(byId("change-yes"), yes);
  byId("change-yes").onclick = () => dialog.close("yes");
  byId("change-no").onclick = () => dialog.close("");
  dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
    byId("change-no").focus();
  });
}

async function tried(work) {
  byId("change-problem").hidden = true;
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("change-problem").hidden = false;
    setText(byId("change-problem"), error.message);
  }
}
