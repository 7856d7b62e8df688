// The page of the API: the OpenAPI document of this server as text, each route folded until it is opened.

import { ApiError, ask } from "../shared/api.js";
import { byId, h, setText } from "../shared/dom.js";

/** The first group whose prefix a path has is its own. */
const GROUPS = [
  ["Anthropic", ["/v1/messages"]],
  ["Cache", ["/v1/cache"]],
  ["OpenAI and rerankers", ["/v1/", "/v2/", "/score"]],
  ["Ollama", ["/api/"]],
  ["Tokens", ["/tokenize", "/detokenize", "/apply-template"]],
  ["Models and administration", ["/models", "/admin/"]],
  ["Health", ["/"]],
];

/** Schemas within schemas are shown to this depth. */
const DEPTH = 3;

setText(byId("base"), `${location.origin}/v1`);

try {
  show(await ask("/openapi.json"));
  byId("status").hidden = true;
} catch (error) {
  if (!(error instanceof ApiError)) throw error;
  setText(byId("status"), error.needsKey ? "The document needs a key: give it on the admin or the chat page." : error.message);
}

function show(document) {
  const groups = new Map(GROUPS.map(([title]) => [title, []]));
  for (const [path, methods] of Object.entries(document.paths)) {
    const [title] = GROUPS.find(([, prefixes]) => prefixes.some((prefix) => path.startsWith(prefix)));
    for (const [method, operation] of Object.entries(methods)) groups.get(title).push(route(document, method, path, operation));
  }
  for (const [title, routes] of groups) if (routes.length > 0) byId("groups").append(h("h2", {}, title), ...routes);
}

function route(document, method, path, operation) {
  const folded = h("details", {}, h("summary", {}, h("b", {}, method.toUpperCase()), ` ${path}`));
  // most routes are never opened: their tables are made when they are
  folded.addEventListener("toggle", () => folded.append(details(document, operation)), { once: true });
  return folded;
}

function details(document, operation) {
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const parameters = (operation.parameters ?? []).map((one) => [one.name, one.schema, one.required, one.description]);
  return h(
    "div",
    {},
    operation.description && h("p", {}, operation.description),
    parameters.length > 0 && h("h3", {}, "Parameters"),
    parameters.length > 0 && h("table", {}, ...parameters.map((row) => line(document, ...row))),
    body && h("h3", {}, "Body"),
    body && fields(document, body, DEPTH),
    h("h3", {}, "Answers"),
    ...Object.entries(operation.responses).map(([status, response]) => answer(document, status, response)),
  );
}

function answer(document, status, response) {
  const schema = response.content?.["application/json"]?.schema;
  const text = h("p", { class: "small" }, h("b", {}, status), ` ${response.description ?? ""}`);
  return status === "200" && schema ? h("div", {}, text, fields(document, schema, DEPTH)) : text;
}

/** The properties of a schema as a table; of its parts in turn, to a depth. */
function fields(document, schema, depth) {
  const found = resolved(document, schema);
  const choices = found.oneOf ?? found.anyOf ?? [];
  if (choices.length > 0) return h("div", {}, ...choices.map((one) => fields(document, one, depth)));
  if (found.type === "array" && found.items) return fields(document, found.items, depth);
  if (!found.properties || depth === 0) return h("p", { class: "small" }, typeOf(schema));
  const required = new Set(found.required ?? []);
  const rows = Object.entries(found.properties).map(([name, one]) => line(document, name, one, required.has(name), one.description, depth));
  return h("div", {}, found.description && h("p", { class: "small" }, found.description), h("table", {}, ...rows));
}

function line(document, name, schema, isRequired, description, depth = 1) {
  const part = inner(schema);
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, name),
    h(
      "td",
      {},
      h("span", { class: "muted" }, `${typeOf(schema)}${isRequired ? ", required" : ""}`),
      description && h("div", {}, description),
      part && depth > 1 && nested(document, part, depth - 1),
    ),
  );
}

function nested(document, schema, depth) {
  const folded = h("details", {}, h("summary", {}, typeOf(schema)));
  folded.addEventListener("toggle", () => folded.append(fields(document, schema, depth)), { once: true });
  return folded;
}

/** The schema with a name of its own that a field has, or a list of it. */
function inner(schema) {
  if (schema.$ref) return schema;
  if (schema.items) return inner(schema.items);
  return (schema.oneOf ?? schema.anyOf ?? []).map(inner).find((one) => one !== undefined);
}

function resolved(document, schema) {
  return schema.$ref ? (document.components.schemas[schema.$ref.split("/").at(-1)] ?? {}) : schema;
}

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" or ");
  if (schema.type === "array") return `list of ${schema.items ? typeOf(schema.items) : "anything"}`;
  return schema.type ?? "anything";
}
