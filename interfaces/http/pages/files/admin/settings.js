// Settings with what decided each: those that somebody chose, and on demand those that are as they come.

import { ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { showChangeable } from "./change_settings.js";
import { readKeys } from "./keys.js";
import { reconcile } from "./rows.js";

const ORIGINS = { default: "default", file: "file", environment: "variable", flag: "flag", code: "the program" };

let settings = [];

export function setUpSettings() {
  byId("settings-filter").addEventListener("input", draw);
  byId("settings-all").addEventListener("change", draw);
}

export async function readSettings() {
  const read = await ask("/admin/api/settings");
  settings = read.data;
  byId("settings-problem").hidden = true;
  draw();
  showChangeable(read);
  await readKeys();
}

export function showSettingsFailure(error) {
  byId("settings-problem").hidden = false;
  setText(byId("settings-problem"), `The settings cannot be read: ${error.message}`);
}

function draw() {
  const wanted = byId("settings-filter").value.trim().toLowerCase();
  const isAll = byId("settings-all").checked || wanted !== "";
  const found = settings.filter(
    ({ path, value, origin }) => (isAll || origin !== "default") && `${path} ${text(value)}`.toLowerCase().includes(wanted),
  );
  byId("settings-table").hidden = found.length === 0;
  byId("settings-none").hidden = found.length !== 0;
  setText(byId("settings-none"), isAll ? "None fits." : "All are as they come.");
  reconcile(byId("settings-table").tBodies[0], found, {
    key: ({ path }) => path,
    make: () => h("tr", {}, h("td", { class: "id" }), h("td", { "data-label": "Value" }, h("code")), h("td", { "data-label": "Decided by" })),
    update: (row, { path, value, origin, source }) => {
      setText(row.cells[0], path);
      setText(row.cells[1].firstElementChild, text(value));
      setText(row.cells[2], source === "" ? (ORIGINS[origin] ?? origin) : `${ORIGINS[origin] ?? origin} ${source}`);
    },
  });
}

function text(value) {
  if (value === null) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
