// The tools of servers that the key may use, with a switch each, all off at first. A page that opens starts no server;
// opening the panel does.
import { ApiError } from "../shared/api.js";
import { h, setText } from "../shared/dom.js";
import { CutText, visible } from "./tool_view.js";
import { serverOf } from "./tool_steps.js";

const PATH = "/v1/mcp/tools";
const START_DEADLINE_MS = 60_000;
const MAX_DESCRIPTION_CHARS = 160;

export class ToolPanel {
  #element;
  #summary = h("summary", { class: "small" });
  #groups = new Map();
  #ask;
  #onChange;
  #on = [];
  /** The names of the servers, null while they are not known. */
  servers = null;

  /** @param {HTMLElement} element @param {{ask: Function, onChange: (names: string[]) => void}} ports */
  constructor(element, { ask, onChange }) {
    this.#element = element;
    this.#ask = ask;
    this.#onChange = onChange;
    element.append(this.#summary);
    element.addEventListener("toggle", () => this.#open());
  }

  async load() {
    try {
      const { servers, tools } = await this.#ask(`${PATH}?start=false`);
      this.servers = servers.map(({ name }) => name);
      this.#groups = new Map(servers.map((server) => [server.name, this.#group(server, tools)]));
      this.#element.replaceChildren(this.#summary, ...[...this.#groups.values()].map(({ element }) => element));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.servers = null;
    }
    this.#element.hidden = this.#groups.size === 0;
    this.show(this.#on);
    this.#open();
  }

  /** @param {string[]} names of those that are on */
  show(names) {
    this.#on = names;
    const num = names.filter((name) => this.#groups.has(serverOf(name))).length;
    setText(this.#summary, `Tools of servers: ${num === 0 ? "off" : `${num} on`}`);
    for (const group of this.#groups.values()) group.show(names);
  }

  #open() {
    if (!this.#element.open) return;
    for (const group of this.#groups.values()) if (!group.isListed) this.#list(group);
  }

  async #list(group) {
    if (group.isListing) return;
    group.isListing = true;
    group.tell("Listing its tools …");
    try {
      const { servers, tools } = await this.#ask(`${PATH}?server=${encodeURIComponent(group.name)}`, { deadlineMs: START_DEADLINE_MS });
      group.take(servers[0] ?? { error: "There is no such server any more.", listed: true }, tools);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      group.take({ error: error.message, listed: true }, []);
    }
    group.isListing = false;
    group.show(this.#on);
  }

  #group(server, tools) {
    const group = new Group(server, {
      set: (names, isOn) => {
        const rest = this.#on.filter((name) => !names.includes(name));
        this.show(isOn ? [...rest, ...names].sort() : rest);
        this.#onChange(this.#on);
      },
      again: () => this.#list(group),
    });
    group.take(server, tools.filter((tool) => tool.server === server.name));
    return group;
  }
}

/** The switches of one server. */
class Group {
  #whole;
  #words = h("p", { class: "small", role: "status", hidden: true });
  #again;
  #list = h("ul", {});
  #switches = new Map();
  #on;

  constructor({ name, approval }, on) {
    this.name = name;
    this.#on = on;
    this.#whole = h("input", { type: "checkbox", role: "switch", disabled: true, onchange: ({ target }) => on.set([...this.#switches.keys()], target.checked) });
    this.#again = h("button", { type: "button", class: "small", hidden: true, onclick: on.again }, "Try again");
    const rule = approval === "never" ? "runs without asking" : "asks before each call";
    const title = h("label", { class: "row tick" }, this.#whole, h("strong", {}, name), h("span", { class: "small muted" }, rule));
    this.element = h("div", { class: "tools", role: "group", "aria-label": `Tools of ${name}` }, title, this.#words, this.#again, this.#list);
  }

  tell(words) {
    this.#words.hidden = words === "";
    this.#again.hidden = true;
    setText(this.#words, words);
  }

  /** What a list of its tools says. */
  take({ error, listed }, tools) {
    this.isListed = listed && error === "";
    this.tell(error === "" ? "" : `Not available: ${visible(error)}`);
    this.#again.hidden = error === "";
    this.#switches = new Map(tools.map(({ name }) => [name, h("input", { type: "checkbox", role: "switch", onchange: ({ target }) => this.#on.set([name], target.checked) })]));
    this.#list.replaceChildren(...tools.map((tool) => this.#row(tool)));
  }

  show(names) {
    const values = [...this.#switches].map(([name, field]) => (field.checked = names.includes(name)));
    this.#whole.disabled = values.length === 0;
    this.#whole.checked = values.length > 0 && values.every(Boolean);
    this.#whole.indeterminate = !this.#whole.checked && values.some(Boolean);
  }

  #row({ name, description }) {
    const words = new CutText(h("p", { class: "small muted", tabindex: "-1" }), MAX_DESCRIPTION_CHARS);
    words.update(description);
    const label = h("label", { class: "row tick" }, this.#switches.get(name), h("span", { class: "mono" }, visible(name.slice(this.name.length + 2))));
    return h("li", {}, label, words.element);
  }
}
