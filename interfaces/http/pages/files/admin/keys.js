// The keys of clients: listed, made and shown once, revoked.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { question } from "./question.js";
import { fill, reconcile, row } from "./rows.js";

const PATH = "/admin/api/settings/keys";

export function setUpKeys() {
  byId("keys-form").addEventListener("submit", (event) => {
    event.preventDefault();
    tried(add);
  });
}

export async function readKeys() {
  const { data, may_change: mayChange } = await ask(PATH);
  byId("keys").hidden = data.length === 0; // a server without keys
  byId("keys-form").hidden = !mayChange;
  const keys = data.map((key) => ({ ...key, mayChange }));
  reconcile(byId("keys-table").tBodies[0], keys, { key: ({ name }) => name, make, update, refuge: byId("keys-title") });
}

function make({ name }) {
  const button = h("button", { type: "button", class: "danger", "aria-label": `Revoke ${name}`, onclick: () => tried(() => revoke(name)) }, "Revoke…");
  return row(["Name", "May", "A minute>", "At once>", "Models", "Tool servers"], [button]);
}

function update(tableRow, key) {
  const limit = (value) => (value === null ? "no limit" : count(value));
  const may = [key.admin ? "admin" : "ask", key.priority === "batch" ? "batch" : ""].filter(Boolean).join(", ");
  const names = (list, otherwise) => (list === null ? otherwise : list.join(", ") || "none");
  fill(tableRow, [key.own ? `${key.name} (yours)` : key.name, may, limit(key.requests_per_minute), limit(key.max_concurrent), names(key.models, "all"), names(key.mcp, key.admin ? "all" : "none")]);
  tableRow.cells[6].firstElementChild.hidden = !key.mayChange || key.own || key.name === "default";
}

async function add() {
  const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));
  const servers = byId("keys-mcp").value.split(/[\s,]+/).filter(Boolean);
  const order = { name: byId("keys-name").value.trim(), admin: byId("keys-admin").checked, requests_per_minute: number("keys-minute"), max_concurrent: number("keys-once"), mcp: servers.length > 0 ? servers : null };
  const { name, key } = await ask(PATH, { body: order });
  byId("keys-form").reset();
  byId("keys-made").hidden = false;
  setText(byId("keys-made-name"), `The key of ${name}, which is shown this once: `);
  setText(byId("keys-made-key"), key);
  await readKeys();
}

async function revoke(name) {
  if (!(await question({ title: `Revoke ${name}?`, text: "Its next request is refused. Those that have begun are finished.", yes: "Revoke" }))) return;
  await ask(`${PATH}/${encodeURIComponent(name)}`, { method: "DELETE" });
  await readKeys();
}

async function tried(work) {
  byId("keys-problem").hidden = true;
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("keys-problem").hidden = false;
    setText(byId("keys-problem"), error.message);
  }
}
