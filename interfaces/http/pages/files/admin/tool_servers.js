// The configured tool servers: their state, calls and last error, and a restart by hand. All their words are a stranger's.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { tell } from "./question.js";
import { reconcile, row, twoLines } from "./rows.js";

const PATH = "/v1/mcp/servers";
const STATES = { ready: "good", starting: "warn", waiting: "bad" };

let onChanged = () => {};

export function setUpToolServers(changed) {
  onChanged = changed;
}

export const readToolServers = () => ask(PATH);

/** @param {{servers: object[]}} answer ToolServerListBody */
export function showToolServers({ servers }) {
  byId("tool-servers-problem").hidden = true;
  byId("tool-servers").hidden = servers.length === 0;
  byId("tool-servers-link").hidden = servers.length === 0;
  reconcile(byId("tool-servers-table").tBodies[0], servers, { key: ({ name }) => name, make, update, refuge: byId("tool-servers-title") });
}

export function showToolServersFailure(error) {
  byId("tool-servers-problem").hidden = false;
  setText(byId("tool-servers-problem"), `The tool servers cannot be listed: ${error.message}`);
}

function make({ name }) {
  const button = h("button", { type: "button", "aria-label": `Restart ${name}`, onclick: () => restart(name, button) }, "Restart");
  const made = row(["Server", "State", "Tools>", "Calls>", "Failures>", "Last error"], [button]);
  const log = h("pre", { class: "lines", tabindex: "0", role: "group", "aria-label": `Log of ${name}` });
  made.cells[1].append(h("span", { class: "badge plain" }));
  made.cells[5].classList.add("long");
  made.cells[5].append(h("span"), h("details", {}, h("summary", { "aria-label": `Show the log of ${name}` }, "Log"), log));
  return made;
}

function update(tableRow, server) {
  const cells = tableRow.cells;
  const starts = server.starts > 1 ? `started ${count(server.starts)} times` : "";
  twoLines(cells[0], server.name, [server.transport, server.protocol, starts].filter(Boolean).join(" · "));
  const badge = cells[1].firstElementChild;
  badge.className = `badge ${STATES[server.state] ?? "plain"}`;
  setText(badge, server.state === "idle" ? "not started" : server.state);
  twoLines(cells[2], count(server.tools), server.changes > 0 ? `list changed ${count(server.changes)}×: ${server.digest.slice(0, 12)}` : "");
  setText(cells[3], count(server.calls));
  setText(cells[4], count(server.failures));
  const [error, log] = cells[5].children;
  setText(error, server.error || "none");
  log.hidden = server.log.length === 0;
  setText(log.lastElementChild, server.log.join("\n"));
}

async function restart(name, button) {
  button.disabled = true;
  try {
    await ask(`${PATH}/${encodeURIComponent(name)}/restart`, { body: {} });
    tell(`${name} was restarted.`);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`${name} could not be restarted: ${error.message}`);
  } finally {
    button.disabled = false;
    onChanged();
  }
}
