// How the server is, on top of the page: well, stuck, not to be reached, or not for who has no key.

import { ApiError, NO_KEY, isKey, saveKey, savedKey } from "../shared/api.js";
import { byId, setText } from "../shared/dom.js";
import { count, seconds } from "../shared/format.js";
import { loadingText } from "../shared/loading.js";

const MOST_NAMED = 3;

let lastAnswer = null; // Date of the last figures

/** @param {() => void} retry ask again, now */
export function setUpConnection(retry) {
  byId("retry").addEventListener("click", retry);
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = byId("key").value.trim();
    if (!isKey(key)) {
      setText(byId("key-why"), NO_KEY);
      return;
    }
    saveKey(key);
    byId("key").value = "";
    retry();
  });
  byId("forget-key").addEventListener("click", () => {
    saveKey("");
    location.reload(); // nothing that the key showed stays in the page
  });
}

/** @param {object} overview OverviewBody */
export function showWell({ health, version, uptime_s: uptimeS }) {
  lastAnswer = new Date();
  byId("content").hidden = false;
  byId("content").classList.remove("stale");
  byId("key-form").hidden = true;
  byId("retry").hidden = true;
  byId("forget-key").hidden = savedKey() === "";
  setText(byId("version"), version);
  const isReady = health.status === "ready";
  state(isReady ? "good" : "bad", isReady ? "Ready" : `Not ready: ${health.problem}`);
  setText(byId("state-detail"), [`up for ${seconds(uptimeS)}`, ...health.models, ...engineText(health.engine)].join(" · "));
  document.title = isReady ? "Cairn: admin" : "Cairn: NOT READY";
}

/** What the engine does, where somebody waits for it. @param {object} engine EngineBody */
function engineText({ status, outstanding, last_step_age_s: ageS, doing, doing_s: doingS, requests, loading, last_loss: lastLoss }) {
  const details = [loadingText(loading)].filter(Boolean);
  if (doing !== "" && status !== "ok") details.push(`${doing} for ${seconds(doingS)}`);
  if (outstanding.waiting + outstanding.running + outstanding.calls > 0) details.push(`last step ${seconds(ageS)} ago`);
  if (status === "stuck") details.push(...named(requests ?? []), "the log has the stack of the thread");
  if (lastLoss) details.push(`the last engine was lost: ${lastLoss}`);
  return details;
}

/** The first of them: a whole batch would fill a phone. */
function named(requests) {
  const more = requests.length - MOST_NAMED;
  return more > 0 ? [...requests.slice(0, MOST_NAMED), `and ${count(more)} more requests`] : requests;
}

/** @param {unknown} error @param {number} waitMs until it is tried again */
export function showFailure(error, waitMs) {
  byId("content").classList.add("stale");
  byId("retry").hidden = false;
  byId("forget-key").hidden = savedKey() === "";
  document.title = "Cairn: no answer";
  if (error instanceof ApiError && error.needsKey) {
    askForKey(error);
    return;
  }
  state("bad", what(error));
  const since = lastAnswer === null ? "" : `The figures below are of ${lastAnswer.toLocaleTimeString()}. `;
  setText(byId("state-detail"), `${since}Trying again in ${seconds(waitMs / 1000)}.`);
}

function what(error) {
  if (!(error instanceof ApiError)) return `This page failed: ${error}`;
  return error.isUnreachable ? `The server does not answer: ${error.message}` : `The server refuses: ${error.message}`;
}

function askForKey(error) {
  const hadKey = savedKey() !== "";
  byId("content").hidden = true; // it is nobody's to see until a key says so
  byId("retry").hidden = true;
  const isNew = byId("key-form").hidden;
  byId("key-form").hidden = false;
  let why = "This server needs a key";
  if (hadKey) why = error.status === 403 ? "This key is not an admin's" : "This key is not valid";
  state("warn", why);
  setText(byId("state-detail"), error.message);
  setText(byId("key-why"), "Key of an admin");
  document.title = "Cairn: needs a key";
  if (isNew) byId("key").focus();
}

/** Said aloud only where it is another kind of news: numbers in it change with every answer. */
function state(kind, text) {
  const className = `notice state ${kind}`;
  if (byId("state").className !== className) byId("state-said").textContent = text;
  byId("state").className = className;
  setText(byId("state-text"), text);
}
