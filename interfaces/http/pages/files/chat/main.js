// The chat page: its parts made and wired to each other. Everything it shows comes from the session and the server.
import { ask, isKey, NO_KEY, savedKey, saveKey } from "../shared/api.js";
import { byId } from "../shared/dom.js";
import { Announcer } from "./announcer.js";
import { isEmpty } from "./answer.js";
import { complete } from "./completion.js";
import { Composer } from "./composer.js";
import { ContextMeter } from "./context_meter.js";
import { written } from "./dialogs.js";
import { offerDownload } from "./download.js";
import { Drawer } from "./drawer.js";
import { allAsJson, asJson, asMarkdown, fileName, imported } from "./export.js";
import { Follow } from "./follow.js";
import { onceAFrame } from "./frames.js";
import { LoadWatch } from "./load_watch.js";
import { Notices } from "./notices.js";
import { Presets } from "./presets.js";
import { Session } from "./session.js";
import { SettingsForm } from "./settings_form.js";
import { Shelf } from "./shelf.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";
import { ToolPanel } from "./tool_panel.js";

const later = (ms, then) => setTimeout(then, ms);
const now = () => performance.now();
const MAX_IMPORT_BYTES = 50_000_000;
const NO_IMPORT = "This file has no conversations that this page exported.";

const session = new Session(new Shelf(storage()), {
  request: (asked) => complete({ fetch: fetch.bind(window), now, url: "/v1/chat/completions", headers: headers(), ...asked }),
  newId: () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`,
  nowMs: Date.now,
  later,
  onChange,
  onUnkept,
  servers: () => tools.servers,
});

const loads = new LoadWatch({ ask, later, isWaiting, onChange: () => thread.showAnswer() });
const thread = new Thread(byId("thread"), session, { askKey, loadWords: () => loads.words, model });
const follow = new Follow(byId("scroller"), byId("jump"));
const notices = new Notices(byId("notices"));
const announcer = new Announcer(byId("announcer"));
const drawer = new Drawer(byId("sidebar"), byId("show-sidebar"), byId("hide-sidebar"));
const context = new ContextMeter(byId("context"));
const sidebar = new Sidebar(byId("conversations"), byId("search"), session, { opened: () => drawer.close(), exported });
const settings = new SettingsForm(byId("settings"), (changed) => {
  session.set(changed);
  if ("model" in changed) showModel();
});
const tools = new ToolPanel(byId("server-tools"), { ask, onChange: (serverTools) => session.set({ serverTools }) });
const presets = new Presets(
  storage(),
  { area: byId("system"), select: byId("preset"), save: byId("save-preset"), remove: byId("delete-preset") },
  (words) => notices.tell("presets", words),
);
const composer = new Composer(
  {
    form: byId("composer"),
    area: byId("question"),
    send: byId("send"),
    stop: byId("stop"),
    attach: byId("attach"),
    files: byId("files"),
    target: byId("main"),
  },
  {
    ask: (text, attached) => session.ask(text, undefined, attached),
    stop: () => session.stop(),
    problem: (words) => notices.tell("attached", words),
    sees: () => !isBlind(),
  },
);
const drawAnswer = onceAFrame(
  () => {
    thread.showAnswer();
    follow.grown();
  },
  { frame: requestAnimationFrame.bind(window), later, now },
);

byId("new").addEventListener("click", () => {
  session.startNew();
  drawer.close();
  composer.focus();
});
window.addEventListener("storage", ({ key, newValue }) => session.hear(key, newValue));
window.addEventListener("pagehide", () => session.saveRunning());

let shown = null;
const ATTACHED = byId("files").accept.split(",");
let listed = []; // models, the default one first
const lookedUp = new WeakSet();
const latest = session.all()[0];
if (latest !== undefined) session.open(latest.id);
else onChange("turns");
loadModels();

function onChange(what) {
  if (what === "answer") drawAnswer();
  if (what === "list") sidebar.update();
  if (what !== "turns") return;
  const isRunning = session.isRunning();
  if (isRunning) loads.start();
  thread.showTurns();
  settings.show(session.current);
  tools.show(session.current.settings.serverTools);
  showModel();
  presets.show();
  composer.update({ isRunning });
  sidebar.update();
  if (isRunning || session.current !== shown) follow.toEnd();
  else follow.grown(); // an answer has ended: who reads on above stays there
  shown = session.current;
  if (announcer.update(session.current.id, isRunning, () => thread.lastSpoken)) thread.focusApproval();
  if (!context.show(session.current) && !isRunning) lookUp();
}

/** The model that answers this conversation, as the server lists it; null while that is not known. */
function model() {
  const chosen = session.current.settings.model;
  return (chosen === "" ? listed[0] : listed.find(({ id }) => id === chosen)) ?? null;
}

/** Images are offered where the model sees them. */
function showModel() {
  thread.showModel();
  byId("files").accept = ATTACHED.filter((type) => !isBlind() || !type.startsWith("image/")).join(",");
}

/** Whether the model is known to read text only. */
function isBlind() {
  return model()?.capabilities.includes("see") === false;
}

function isWaiting() {
  return session.isRunning() && isEmpty(session.current.turns.at(-1));
}

function onUnkept({ isKept, numDropped, numForgotten }) {
  const went = [];
  if (numForgotten > 0) went.push(`the images and PDF files of ${numForgotten} older conversations`);
  if (numDropped > 0) went.push(`${numDropped} of the oldest conversations`);
  const gone = went.length === 0 ? "" : `This browser's room is full: ${went.join(" and ")} went. `;
  notices.tell("room", isKept ? gone : `${gone}This browser has no room to keep this conversation; export it.`);
}

async function loadModels() {
  try {
    const { data } = await ask("/v1/models");
    listed = data;
    settings.offer(data, session.current.settings.model);
    showModel();
    context.know(data);
    context.show(session.current);
    notices.tell("models", "");
    tools.load();
  } catch (error) {
    const mend = error.needsKey ? { label: "Enter key", does: askKey } : { label: "Try again", does: loadModels };
    notices.tell("models", `The models are not known: ${error.message}`, mend);
    if (error.status === 401 && savedKey() === "") askKey();
  }
}

async function askKey() {
  if (document.querySelector("dialog[open]") !== null) return;
  const text = "It is kept in this tab until it is closed, and sent to this server only.";
  const asked = { title: "This server asks for a key", text, label: "API key", value: "", type: "password", yes: "Use it" };
  const key = (await written(asked))?.trim() ?? "";
  if (key === "") return;
  if (!isKey(key)) {
    notices.tell("models", NO_KEY, { label: "Enter key", does: askKey });
    return;
  }
  saveKey(key);
  loadModels();
}

byId("export-all").addEventListener("click", () => {
  offerDownload("cairn-conversations.json", "application/json", allAsJson(session.all()));
});
byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  const taken = file === undefined || file.size > MAX_IMPORT_BYTES ? null : imported(await file.text());
  target.value = "";
  notices.tell("import", taken === null ? NO_IMPORT : importWords(taken.numBad, session.takeIn(taken.conversations)));
});

function importWords(numBad, { numNew, numKnown, numUnkept }) {
  const sentences = [`${numNew} conversations were imported.`];
  if (numKnown > 0) sentences.push(`${numKnown} were here already.`);
  if (numUnkept > 0) sentences.push(`This browser has no room for ${numUnkept}; delete others first.`);
  if (numBad > 0) sentences.push(`${numBad} could not be read.`);
  return sentences.join(" ");
}

function exported(conversation, kind) {
  if (kind === "JSON") offerDownload(fileName(conversation, "json"), "application/json", asJson(conversation));
  else offerDownload(fileName(conversation, "md"), "text/markdown", asMarkdown(conversation));
}

/** The length of a context is known once its model is loaded: once more for each answer, and not when a page is opened. */
async function lookUp() {
  const answer = session.current.turns.at(-1);
  if (lookedUp.has(answer)) return;
  lookedUp.add(answer);
  try {
    context.know((await ask("/v1/models")).data);
    context.show(session.current);
  } catch {
    // the tokens alone are shown
  }
}

function headers() {
  const key = savedKey();
  return key === "" ? {} : { authorization: `Bearer ${key}` };
}

function storage() {
  try {
    return window.localStorage;
  } catch {
    return null; // switched off: conversations last as long as the page
  }
}
