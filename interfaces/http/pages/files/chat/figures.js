// What an answer took, in words: from its usage, and from the cache header where the stream was cut off before that.
import { count, seconds } from "../shared/format.js";

/**
 * `x-cairn-cache` of one choice: `reused=768; live=0; hot=512; store=256; computed=244; reason=never-seen`.
 * @returns {Map<string, string> | null} null where it tells nothing yet
 */
export function parseCacheHeader(header) {
  const fields = new Map();
  for (const part of header.split(",")[0].split(";")) {
    const [name, value] = part.split("=").map((text) => text.trim());
    if (value !== undefined) fields.set(name, value);
  }
  return fields.has("reused") ? fields : null;
}

/**
 * @returns {{promptTokens: number | null, reusedTokens: number | null, tiers: Array<[string, number]>, reason: string,
 *   outputTokens: number | null, isCounted: boolean, acceptedTokens: number, draftedTokens: number,
 *   tokensPerS: number | null, firstMs: number | null}}
 * `outputTokens` are the server's count, or else (`isCounted` false) the pieces that came: a token or more each.
 */
export function figures(answer) {
  const cache = parseCacheHeader(answer.cache);
  const number = (name) => Number(cache?.get(name) ?? 0);
  const outputTokens = answer.usage?.completionTokens ?? (answer.numDeltas || null);
  return {
    promptTokens: answer.usage?.promptTokens ?? (cache === null ? null : number("reused") + number("computed")),
    reusedTokens: answer.usage?.reusedTokens ?? (cache === null ? null : number("reused")),
    tiers: ["live", "hot", "store", "shared"].map((tier) => [tier, number(tier)]).filter(([, tokens]) => tokens > 0 && answer.steps.length === 0), // the header is the first step's
    reason: cache?.get("reason") ?? "",
    outputTokens,
    isCounted: answer.usage !== null,
    acceptedTokens: answer.usage?.acceptedTokens ?? 0,
    draftedTokens: (answer.usage?.acceptedTokens ?? 0) + (answer.usage?.rejectedTokens ?? 0),
    tokensPerS: answer.steps.length > 0 ? null : rate(outputTokens, answer),
    firstMs: answer.firstMs,
  };
}

const TOKENS_A_PIECE = 4; // more on average: what came was held back (a tool call is, until it is whole)

/**
 * Tokens after the first over the time after the first; over the whole time where the pieces do not show when tokens were
 * made, which is too slow and never too quick. Null for fewer than two tokens.
 */
function rate(tokens, { numDeltas, firstMs, lastMs }) {
  if (tokens === null || tokens < 2 || firstMs === null) return null;
  const isTimed = tokens <= numDeltas * TOKENS_A_PIECE && lastMs > firstMs;
  return isTimed ? ((tokens - 1) * 1000) / (lastMs - firstMs) : (tokens * 1000) / Math.max(lastMs, 1);
}

const TIER_NAMES = { live: "the turn before", hot: "memory", store: "store", shared: "shared store" };

/** Label and value of each figure that is known, in the order in which they are shown. */
export function shownFigures(answer) {
  const found = figures(answer);
  const about = found.isCounted ? "" : "≈ ";
  const shown = [];
  if (found.tokensPerS !== null) shown.push(["speed", `${about}${brief(found.tokensPerS)} tokens/s`]);
  if (found.firstMs !== null) shown.push(["first token", seconds(found.firstMs / 1000)]);
  if (found.outputTokens !== null) shown.push(["answer", `${about}${count(found.outputTokens)} tokens`]);
  if (found.draftedTokens > 0) {
    shown.push(["drafted", `${count(found.acceptedTokens)} of ${count(found.draftedTokens)} tokens accepted`]);
  }
  if (found.promptTokens !== null) shown.push(["prompt", `${count(found.promptTokens)} tokens${answer.steps.length > 0 ? " in all steps" : ""}`]);
  if (found.reusedTokens !== null) shown.push(["reused", reused(found)]);
  return shown;
}

function reused(found) {
  const from = found.tiers.map(([tier]) => TIER_NAMES[tier]).join(" and ");
  const words = from === "" || found.reusedTokens === 0 ? "" : ` from ${from}`;
  return `${count(found.reusedTokens)}${words}`;
}

function brief(value) {
  return value >= 100 ? count(value) : value.toPrecision(2).replace(/^(\d+)\.0$/, "$1");
}

/** A keep-alive comment of the server (`queued`, `prefill 512/2000`, `working`) as a sentence. */
export function progressWords(comment) {
  const [, done, total] = /^prefill (\d+)\/(\d+)$/.exec(comment) ?? [];
  if (total !== undefined) return `Reading the prompt: ${count(Number(done))} of ${count(Number(total))} tokens`;
  return comment === "queued" ? "Waiting in the queue" : "Waiting for the answer";
}
