// Models: what is in memory and how it is made, and moving them in and out by hand.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { bytes, count, percent } from "../shared/format.js";
import { question, tell } from "./question.js";
import { fill, reconcile, row, twoLines } from "./rows.js";

const STATES = { loaded: "good", loading: "warn", unloading: "warn", absent: "plain" };
const CAPABILITIES = { generate: "chat", see: "images", embed: "vectors", score: "scores" };
const LOAD_DEADLINE_MS = 30 * 60_000; // large models come from slow disks

/** By model: what somebody asked for here and the server has not answered yet. */
const pending = new Map();
let onChanged = () => {};

export function setUpModels(changed) {
  onChanged = changed;
}

/** What is shown: the admin's list with what the clients' list knows besides. */
export async function readModels() {
  const [managed, listed] = await Promise.all([ask("/models"), ask("/v1/models")]);
  const listedById = new Map(listed.data.map((model) => [model.id, model]));
  const mayChange = managed.may_change;
  return managed.data.map((model) => ({ ...model, mayChange, listed: listedById.get(model.standing.id) ?? null }));
}

/** @param {Awaited<ReturnType<typeof readModels>>} models */
export function showModels(models) {
  byId("models-problem").hidden = true;
  reconcile(byId("models-table").tBodies[0], models, {
    key: ({ standing }) => standing.id,
    make,
    update,
    refuge: byId("models-title"),
  });
}

export function showModelsFailure(error) {
  byId("models-problem").hidden = false;
  setText(byId("models-problem"), `The models cannot be listed: ${error.message}`);
}

function make({ standing: { id } }) {
  const load = h("button", { type: "button", onclick: () => act(id, "load") }, "Load");
  const unload = h("button", { type: "button", onclick: () => unloadModel(id) }, "Unload");
  const pin = h("button", { type: "button", onclick: () => act(id, "pin") }, "Pin");
  const unpin = h("button", { type: "button", onclick: () => act(id, "unpin") }, "Unpin");
  const remove = h("button", { type: "button", class: "danger", onclick: () => deleteModel(id) }, "Delete");
  for (const button of [load, unload, pin, unpin, remove]) button.setAttribute("aria-label", `${button.textContent} ${id}`);
  const made = row(["Model", "State", "Weights>", "Context>", "Layers", "In use by>"], [load, unload, pin, unpin, remove]);
  made.cells[4].classList.add("long");
  made.cells[1].append(h("span", {}, h("span"), " ", h("span", { class: "badge plain" }, "pinned")));
  return made;
}

function update(tableRow, model) {
  const { standing, listed } = model;
  const loaded = listed?.cairn ?? null;
  const cells = tableRow.cells;
  const can = (listed?.capabilities ?? []).map((one) => CAPABILITIES[one] ?? one).join(", ");
  const isDemo = model.origin === "embedded" ? "demo" : "";
  twoLines(cells[0], standing.id, [isDemo, can, model.adapter && `adapter ${model.adapter}`, listed?.note, model.memory].filter(Boolean).join(" · "));
  const [state, pinned] = cells[1].firstElementChild.children;
  state.className = `badge ${STATES[standing.state] ?? "plain"}`;
  setText(state, pending.get(standing.id) ?? standing.state.replace("absent", "not loaded"));
  pinned.hidden = !standing.pinned;
  setText(cells[2], bytes(model.bytes));
  setText(cells[3], count(model.context_length));
  twoLines(cells[4], layoutText(model), loaded === null ? "" : `${howText(loaded)}${draftText(model.speculation)}`);
  setText(cells[5], standing.requests === 0 ? "nobody" : `${count(standing.requests)} requests`);
  const [load, unload, pin, unpin, remove] = cells[6].children;
  const isHere = standing.state === "loaded" || standing.state === "loading";
  load.hidden = isHere;
  unload.hidden = !isHere;
  pin.hidden = standing.pinned;
  unpin.hidden = !standing.pinned;
  remove.hidden = model.origin !== "hub" || standing.state !== "absent"; // its files are in use until it is unloaded
  cells[6].hidden = !model.mayChange;
  for (const button of cells[6].children) button.disabled = pending.has(standing.id);
}

/** "8 sliced" or "2 sliced, 6 recurrent": layers by the kind of state they hold. */
function layoutText({ layout }) {
  if (!layout) return "known once it is loaded";
  return layout.map(({ layers, kind, window }) => `${count(layers)} ${kind}${window ? ` (${count(window)})` : ""}`).join(", ");
}

function howText({ model_type: type, dtype, decode_mode: mode, prefix_reuse: reuses, prefix_reuse_note: note }) {
  const reuse = reuses ? "" : ` · no reuse: ${note}`;
  return `${type}, ${dtype}${mode === "batched" ? "" : `, decodes ${mode}`}${reuse}`;
}

/** " · drafts: auto with mtp, accepted: mtp 80 % of 120, 1.80 tokens a step": since the start. */
function draftText(speculation) {
  if (!speculation) return "";
  const { mode, own_drafter: own, note, proposed, accepted, tokens_per_step: rate } = speculation;
  const shareOf = ([drafter, num]) => `${drafter} ${percent(accepted[drafter] / num)} of ${count(num)}`;
  const shares = Object.entries(proposed).map(shareOf);
  const speed = rate === null ? "" : `, ${rate.toFixed(2)} tokens a step`;
  const share = shares.length === 0 ? "" : `, accepted: ${shares.join(", ")}${speed}`;
  return ` · drafts: ${mode}${own === null ? "" : ` with ${own}`}${share}${note ? ` · ${note}` : ""}`;
}

async function unloadModel(id) {
  const isSure = await question({
    title: `Unload ${id}?`,
    text: "It goes when its requests have ended. Who asks for it meanwhile waits until it is loaded again.",
    yes: "Unload",
  });
  if (isSure) await act(id, "unload");
}

async function deleteModel(id) {
  const text = "Its files go from the hub's cache, for all programs of this machine that use it. Another pull downloads them again.";
  if (await question({ title: `Delete ${id}?`, text, yes: "Delete" })) {
    await changed(id, "deleting…", `/admin/api/models/${id}`, { method: "DELETE" });
  }
}

const DOING = { load: "loading…", unload: "unloading…", pin: "pinning…", unpin: "unpinning…" };

function act(id, what) {
  return changed(id, DOING[what], `/models/${what}`, { body: { model: id }, deadlineMs: LOAD_DEADLINE_MS });
}

async function changed(id, doing, path, options) {
  pending.set(id, doing);
  onChanged();
  try {
    await ask(path, options);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`${id}: ${error.message}`);
  } finally {
    pending.delete(id);
  }
  onChanged();
}
