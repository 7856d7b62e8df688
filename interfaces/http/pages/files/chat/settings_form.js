// How the open conversation is asked: model, system prompt, sampling. Blank: the server's own.

/** By field: its name in a conversation's settings, and what its text means. */
const FIELDS = {
  model: { name: "model", read: String },
  system: { name: "system", read: String },
  temperature: { name: "temperature", read: numberOrNull },
  "top-p": { name: "topP", read: numberOrNull },
  "max-tokens": { name: "maxTokens", read: numberOrNull },
  seed: { name: "seed", read: numberOrNull },
  tools: { name: "tools", read: String, problem: listProblem },
};

export class SettingsForm {
  #form;
  #shown = null;

  /** @param {HTMLFormElement} form @param {(settings: object) => void} onChange with what changed */
  constructor(form, onChange) {
    this.#form = form;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", ({ target }) => {
      const field = FIELDS[target.name];
      if (field === undefined) return;
      target.setCustomValidity(field.problem?.(target.value) ?? "");
      if (target.checkValidity()) onChange({ [field.name]: field.read(target.value) });
    });
    form.addEventListener("change", ({ target }) => target.reportValidity());
  }

  /** Those of a conversation; what is being written for the one that is shown already is left alone. */
  show(conversation) {
    if (this.#shown === conversation) return;
    this.#shown = conversation;
    const { settings } = conversation;
    for (const [id, { name }] of Object.entries(FIELDS)) {
      const element = this.#form.elements.namedItem(id);
      element.value = settings[name] ?? "";
      if (id === "model" && element.value !== settings.model) addModel(element, settings.model);
    }
  }

  /** Those that can chat. @param {Array<{id: string, state: string, capabilities: string[]}>} models as listed */
  offer(models, chosen) {
    const select = this.#form.elements.namedItem("model");
    select.replaceChildren(new Option("The server's default", ""));
    for (const { id, state } of models.filter(({ capabilities: can }) => can.includes("generate"))) select.append(new Option(state === "loaded" ? `${id} (loaded)` : id, id));
    select.value = chosen;
    if (select.value !== chosen) addModel(select, chosen);
  }
}

/** One that the server does not list (any more): the server will say so. */
function addModel(select, id) {
  select.append(new Option(id, id, false, true));
}

function numberOrNull(text) {
  return text.trim() === "" ? null : Number(text);
}

function listProblem(text) {
  if (text.trim() === "") return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Tools must be a JSON list.";
  } catch {
    return "This is not JSON yet.";
  }
}
