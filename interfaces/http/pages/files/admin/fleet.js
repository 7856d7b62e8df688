// The other servers of the fleet, as this server sees them. All their words are a stranger's.

import { ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { count, percent, UNKNOWN } from "../shared/format.js";
import { reconcile, row, twoLines } from "./rows.js";

export const readFleet = () => ask("/admin/api/fleet");

/** @param {{data: object[]}} answer FleetBody */
export function showFleet({ data }) {
  byId("fleet-problem").hidden = true;
  byId("fleet").hidden = data.length === 0;
  byId("fleet-link").hidden = data.length === 0;
  reconcile(byId("fleet-table").tBodies[0], data, { key: ({ url }) => url, make, update });
}

export function showFleetFailure(error) {
  byId("fleet-problem").hidden = false;
  setText(byId("fleet-problem"), `The other servers cannot be listed: ${error.message}`);
}

function make() {
  const made = row(["Server", "State", "Running>", "Waiting>", "Reuse, 15 min>"]);
  made.lastElementChild.remove(); // nothing can be done here
  made.cells[1].append(h("span", { class: "badge plain" }), h("span", { class: "sub" }));
  return made;
}

function update(tableRow, { url, ready, problem, waiting, running, version, reuse }) {
  const cells = tableRow.cells;
  twoLines(cells[0], url, version === null ? `version ${UNKNOWN}` : version);
  const [badge, why] = cells[1].children;
  badge.className = `badge ${ready ? "good" : ready === null ? "bad" : "warn"}`;
  setText(badge, ready ? "ready" : ready === null ? "no answer" : "not ready");
  setText(why, problem);
  setText(cells[2], count(running));
  setText(cells[3], count(waiting));
  setText(cells[4], percent(reuse));
}
