// One request for an answer, folded into it as it streams.
//
// Never rejects: what goes wrong is the answer's `problem`, in the server's words where it has any, and what came
// stays. `signal` stops it; the server cancels the request when the connection closes.
import { end, fail, foldChunk, stop } from "./answer.js";
import { EventStream } from "./event_stream.js";

/**
 * @param {{fetch: typeof fetch, now: () => number, url: string, headers: Record<string, string>, body: object,
 *   fold?: (answer: object, event: object, atMs: number) => void, signal: AbortSignal, answer: object, onChange: () => void, onProgress: (words: string) => void}} asked
 */
export async function complete(asked) {
  const { answer, signal } = asked;
  let failure = "The server could not be reached. Check that it runs, then try again.";
  try {
    const response = await begin(asked);
    failure = "The connection broke off.";
    await read(response, asked);
    end(answer);
  } catch (error) {
    if (signal.aborted) stop(answer);
    else fail(answer, error instanceof Refused ? error.problem : { message: failure, status: 0, code: "", retryAfterS: null });
  }
  asked.onChange();
}

class Refused extends Error {
  constructor(problem) {
    super(problem.message);
    this.problem = problem;
  }
}

async function begin(asked) {
  const { fetch, url, headers, body, signal } = asked;
  asked.sentMs = asked.now();
  const response = await fetch(url, {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
  if (!response.ok) throw new Refused(await refusal(response));
  return response;
}

async function read(response, { answer, fold = foldChunk, now, sentMs, onProgress, onChange }) {
  answer.cache = response.headers.get("x-cairn-cache") ?? "";
  const events = new EventStream();
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of events.feed(value)) {
      if (event.comment !== undefined) onProgress(event.comment);
      else if (event.data !== "[DONE]") fold(answer, JSON.parse(event.data), now() - sentMs);
    }
    onChange();
  }
}

/** What a response that is no success says of itself. */
async function refusal(response) {
  const text = await response.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // not from the server itself: a proxy's page
  }
  const after = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  return {
    message: error.message ?? `The server answered ${response.status} ${response.statusText}`.trim(),
    status: response.status,
    code: error.code ?? "",
    retryAfterS: Number.isFinite(after) ? after : null,
  };
}
