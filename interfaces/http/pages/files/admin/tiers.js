// The prefix cache: how full each tier is, what waits for the store, faults, and clearing it.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { bytes, count, seconds } from "../shared/format.js";
import { meter, showMeter } from "./meters.js";
import { question, tell } from "./question.js";
import { fill, reconcile, row } from "./rows.js";

const OLD_S = 5;
const meters = {};
let onCleared = () => {};

export function setUpTiers(cleared) {
  onCleared = cleared;
  for (const [name, title] of [["live", "Left for the next turn (memory)"], ["hot", "Hot tier (memory)"], ["store", "Store (disk)"], ["queue", "On the way to the store"], ["shared", "Shared store (other servers)"], ["documents", "Stored responses"]]) {
    meters[name] = meter(title);
    byId("tiers").append(meters[name].element);
  }
  for (const name of ["queue", "shared"]) meters[name].track.hidden = true; // they have no bound of their own here
  byId("clear-all").addEventListener("click", () => clear(null));
  byId("clear-hot").addEventListener("click", clearHot);
}

/** @param {object | null} tiers TiersBody @param {number | null} ageS since it was read */
export function showTiers(tiers, ageS) {
  byId("clear-all").disabled = tiers === null;
  byId("clear-hot").disabled = !tiers || tiers.hot.used_bytes === 0;
  showProblem(tiers, ageS);
  if (tiers === null) return;
  const { live, hot, store, queue, shared, documents } = tiers;
  showMeter(meters.hot, hot.used_bytes, hot.budget_bytes, `${records(hot)}, ${count(hot.pinned)} pinned, ${count(hot.evicted)} evicted`);
  for (const [name, value] of Object.entries({ live, store, queue, shared, documents })) meters[name].element.hidden = value === null;
  if (live !== null) {
    showMeter(meters.live, live.used_bytes, live.budget_bytes, `${count(live.states)} states, ${count(live.taken)} taken over, ${count(live.evicted)} evicted`);
  }
  if (store !== null) {
    showMeter(meters.store, store.stored_bytes, store.quota_bytes, `${count(store.evicted)} evicted${listed(store.faults, "faults")}`);
  }
  if (queue !== null) {
    setText(meters.queue.figure, bytes(queue.queued_bytes));
    setText(meters.queue.more, `${count(queue.queued)} records wait, ${count(queue.persisted)} stored${listed(queue.dropped, "dropped")}`);
  }
  if (shared !== null) {
    setText(meters.shared.figure, shared.is_available ? bytes(shared.read_bytes) + " read" : "not asked: it failed");
    setText(meters.shared.more, `${count(shared.queued)} records wait${listed(shared.asked, "prompts")}${listed(shared.read, "read")}${listed(shared.written, "to write")}`);
  }
  if (documents !== null) {
    showMeter(meters.documents, documents.stored_bytes, documents.quota_bytes, `${count(documents.documents)} kept${listed(documents.faults, "faults")}`);
  }
  showStored(store?.models ?? []);
}

const records = ({ blocks, snapshots }) => `${count(blocks)} blocks, ${count(snapshots)} snapshots`;

/** ", faults: checksum 2" or nothing. */
function listed(counts, name) {
  const parts = Object.entries(counts).filter(([, num]) => num > 0);
  return parts.length === 0 ? "" : `, ${name}: ${parts.map(([kind, num]) => `${kind} ${count(num)}`).join(", ")}`;
}

function showProblem(tiers, ageS) {
  const problem = byId("tiers-problem");
  let text = "";
  if (tiers === null) text = "The tiers could not be read yet.";
  else if (ageS > OLD_S) text = `The store does not answer: these figures are ${seconds(ageS)} old.`;
  else if (tiers.problem !== "") text = `The store is not available: ${tiers.problem}`;
  problem.hidden = text === "";
  setText(problem, text);
}

function showStored(models) {
  byId("stored-table").hidden = models.length === 0;
  reconcile(byId("stored-table").tBodies[0], models, {
    key: ({ model }) => model,
    make: ({ model }) => {
      const button = h("button", { type: "button", class: "danger", onclick: () => clear(model) }, "Clear…");
      button.setAttribute("aria-label", `Clear what is stored of ${model}`);
      return row(["Model", "Bytes>", "Before encoding>", "Blocks>", "Snapshots>"], [button]);
    },
    update: (tableRow, one) =>
      fill(tableRow, [one.model, bytes(one.stored_bytes), bytes(one.raw_bytes), count(one.blocks), count(one.snapshots)]),
    refuge: byId("tiers-title"),
  });
}

async function clear(model) {
  const what = model === null ? "everything that is kept, of all models and clients" : `what is kept of ${model}, for all clients`;
  const isSure = await question({
    title: model === null ? "Clear the whole prefix cache?" : `Clear ${model}?`,
    text: `This removes ${what}: in memory, in the store, and stored responses.\nIt cannot be undone. Prompts are computed anew then; requests that run continue.`,
    yes: "Clear",
  });
  if (!isSure) return;
  await send(model === null ? {} : { model }, (cleared) => {
    const gone = `Cleared ${count(cleared.records)} stored records (${bytes(cleared.bytes)}), ${count(cleared.hot_records)} in memory (${bytes(cleared.hot_bytes)}), ${count(cleared.documents)} documents of responses and tool calls.`;
    return cleared.problem === null ? gone : `${gone} Something may be left: ${cleared.problem}`;
  });
}

async function clearHot() {
  const isSure = await question({
    title: "Clear the hot tier?",
    text: "This removes the records in memory that no request uses. The store and the states left for the next turn stay: prompts are read from the store again, and without a store computed again.",
    yes: "Clear the hot tier",
  });
  if (isSure) await send({ tier: "hot" }, (cleared) => `Freed ${bytes(cleared.hot_bytes)} of memory: ${count(cleared.hot_records)} records.`);
}

/** @param {object} body ClearRequest @param {(cleared: object) => string} text */
async function send(body, text) {
  try {
    tell(text(await ask("/v1/cache/clear", { body, deadlineMs: 120_000 })));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`Not cleared: ${error.message}`);
  }
  onCleared();
}
