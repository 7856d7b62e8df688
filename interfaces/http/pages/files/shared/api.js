// Requests to this server, and to no other. The key that somebody gave stays in this tab's session storage and goes into
// one header; it is in no address and in no cookie.

const KEY = "cairn.key";
const DEADLINE_MS = 20_000;

export function savedKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** What is said of a key that no header can carry. */
export const NO_KEY = "A key has only plain characters (ASCII): this is none.";

/** Whether a header can carry it: with another, the browser would send nothing, as if there were no server. */
export function isKey(text) {
  return /^[\x20-\x7e]+$/.test(text);
}

/** @param {string} key empty to forget it */
export function saveKey(key) {
  try {
    if (key === "") sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // without storage a key cannot be kept: the server's answer says that one is needed
  }
}

/** Why a request has no answer: `status` is the server's, 0 where it could not be reached. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get isUnreachable() {
    return this.status === 0;
  }

  /** Another key would help. */
  get needsKey() {
    return this.status === 401 || this.status === 403;
  }
}

/**
 * The raw response, for streams; throws ApiError for any status that is no success.
 * @param {string} path
 * @param {{body?: unknown, method?: string, signal?: AbortSignal}} [options] `body` is sent as JSON, by
 *   POST unless there is a method
 */
export async function send(path, { body, method, signal } = {}) {
  const headers = {};
  const key = savedKey();
  if (key !== "") headers.authorization = `Bearer ${key}`;
  const request = { headers, method, signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    request.method = method ?? "POST";
    request.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw error;
    const why = signal?.aborted ? "it did not answer in time" : "it cannot be reached";
    throw new ApiError(0, why);
  }
  if (!response.ok) throw new ApiError(response.status, await reason(response));
  return response;
}

/** The JSON of an answer that comes whole. `options` as for `send`, and how long to wait for it. */
export async function ask(path, { body, method, deadlineMs = DEADLINE_MS } = {}) {
  const signal = AbortSignal.timeout(deadlineMs);
  const response = await send(path, { body, method, signal });
  try {
    return await response.json();
  } catch {
    throw new ApiError(0, "its answer broke off");
  }
}

/** What an error's body says, in any dialect's shape. */
async function reason(response) {
  try {
    const body = await response.json();
    const error = body.error ?? body;
    const message = typeof error === "string" ? error : error.message ?? error.detail ?? error.problem;
    if (typeof message === "string" && message !== "") return message;
  } catch {
    // no JSON: the status has to do
  }
  return `the server answered with status ${response.status}`;
}
