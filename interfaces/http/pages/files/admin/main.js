// The admin page: asks the admin's API every two seconds while somebody looks, and hands each part its share.

import { ApiError, ask } from "../shared/api.js";
import { setUpChangeSettings, showChangeableModels } from "./change_settings.js";
import { showFailure, showWell, setUpConnection } from "./connection.js";
import { setUpFigures, showFigures } from "./figures.js";
import { readFleet, showFleet, showFleetFailure } from "./fleet.js";
import { readPulls, setUpGetModels, showGetModels, showPulls } from "./get_models.js";
import { setUpKeys } from "./keys.js";
import { isLogOpen, readLogs, setUpLogs, showLogs, showLogsFailure } from "./logs.js";
import { showMemory } from "./memory.js";
import { readModels, setUpModels, showModels, showModelsFailure } from "./models.js";
import { setUpOpen, showOpen } from "./open.js";
import { Poller } from "./poller.js";
import { readCopies, readJobs, setUpQuantise, showCopies, showJobs, showQuantise, showQuantiseFailure } from "./quantise.js";
import { recentQuery, setUpRecent, showRecent } from "./recent.js";
import { readSettings, setUpSettings, showSettingsFailure } from "./settings.js";
import { setUpTiers, showTiers } from "./tiers.js";
import { readToolServers, setUpToolServers, showToolServers, showToolServersFailure } from "./tool_servers.js";

const live = new Poller(
  async () => {
    const [overview, requests] = await Promise.all([
      ask("/admin/api/overview"),
      ask(`/admin/api/requests?${recentQuery()}`),
    ]);
    return { overview, requests };
  },
  { onAnswer: showLive, onFailure: showLiveFailure },
);

/** Rarer: what changes by hand only, and is read from files. */
const models = new Poller(readModels, { onAnswer: showAllModels, onFailure: failing(showModelsFailure), everyMs: 10_000 });
const toolServers = new Poller(readToolServers, { onAnswer: showToolServers, onFailure: failing(showToolServersFailure), everyMs: 5000 });
const fleet = new Poller(readFleet, { onAnswer: showPeers, onFailure: failing(showFleetFailure), everyMs: 5000 });
const pulls = new Poller(readPulls, { onAnswer: showPulls, onFailure: failing(() => {}), everyMs: 1000 });
const jobs = new Poller(readJobs, { onAnswer: showJobs, onFailure: failing(() => {}), everyMs: 1000 });
const copies = new Poller(readCopies, { onAnswer: showCopies, onFailure: failing(showQuantiseFailure), everyMs: 10_000 });
const logs = new Poller(readLogs, { onAnswer: showLogs, onFailure: failing(showLogsFailure) });
const settings = new Poller(readSettings, { onAnswer: () => {}, onFailure: failing(showSettingsFailure), everyMs: 300_000, mostMs: 300_000 });

let isKnown = false;
let isPlaced = false; // where the address says: before the first answer there was nothing to scroll to

function showLive({ overview, requests }) {
  showWell(overview);
  showFigures(overview.figures, overview.event_failures);
  showOpen(requests, overview.requests);
  showMemory(overview.memory);
  showTiers(overview.tiers, overview.tiers_age_s);
  showRecent(requests, overview.now_unix_s);
  if (!isKnown) {
    isKnown = true;
    models.now();
    settings.now();
    toolServers.now();
    fleet.now();
    if (isLogOpen()) logs.now();
  }
}

function showAllModels(shown) {
  showModels(shown);
  showGetModels(shown);
  showQuantise(shown);
  showChangeableModels(shown);
  if (location.hash !== "" && !isPlaced) document.querySelector(location.hash)?.scrollIntoView();
  isPlaced = true;
}

function showPeers(answer) {
  showFleet(answer);
  if (answer.data.length === 0) fleet.pause(); // until the server is another one
}

function showLiveFailure(error, waitMs) {
  isKnown = false; // another key or another server may be next
  models.pause();
  pulls.pause();
  jobs.pause();
  copies.pause();
  logs.pause();
  settings.pause();
  toolServers.pause();
  fleet.pause();
  showFailure(error, waitMs);
  if (error instanceof ApiError && error.needsKey) live.pause();
  if (!(error instanceof ApiError)) console.error(error);
}

function failing(show) {
  return (error) => {
    show(error);
    if (!(error instanceof ApiError)) console.error(error);
  };
}

setUpConnection(() => live.now());
setUpFigures();
setUpOpen(() => live.now());
setUpTiers(() => live.now());
setUpModels(() => models.now());
setUpGetModels({ onPulls: () => pulls.now(), onModels: () => models.now(), rest: () => pulls.pause() });
setUpQuantise({ onJobs: () => jobs.now(), onCopies: () => copies.now(), onModels: () => models.now(), rest: () => jobs.pause() });
setUpRecent(() => live.now());
setUpLogs({ open: () => logs.now(), close: () => logs.pause() });
setUpSettings();
setUpChangeSettings(() => {
  settings.now();
  models.now();
});
setUpKeys();
setUpToolServers(() => toolServers.now());
live.now();
