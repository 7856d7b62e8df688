// What the server does now and did in the last minutes: tiles, shares of reuse, plots.

import { byId, h, setText } from "../shared/dom.js";
import { UNKNOWN, count, percent, seconds, short } from "../shared/format.js";
import { Plot } from "./plot.js";
import { fill, reconcile } from "./rows.js";

const TIERS = ["live", "hot", "store", "shared"];
const perSecond = (value) => (value === null || value === undefined ? UNKNOWN : `${short(value)}/s`);

/** A power of ten. */
const roundSeconds = (value) => (value >= 0.999 ? `${Math.round(value)} s` : `${Number((value * 1000).toPrecision(1))} ms`);

const minutes = (windowS) => `${Math.round(windowS / 60)} min`;

const tiles = new Map();
const plots = {};

export function setUpFigures() {
  for (const [name, title] of [
    ["ttft", "Time to first token, median"],
    ["itl", "Between two tokens, median"],
    ["output", "Generated"],
    ["prompt", "Prompts taken in"],
    ["reuse", "Reused, last minute"],
    ["saved", "Saved by reuse, last hour"],
  ]) {
    const value = h("div", { class: "value", id: `tile-${name}` });
    const more = h("div", { class: "more muted", id: `tile-${name}-more` });
    tiles.set(name, { value, more });
    byId("tiles").append(h("div", { class: "tile" }, h("div", { class: "name" }, title), value, more));
  }
  plots.prompt = new Plot({ title: "Prompt tokens by origin", format: perSecond, stacked: true });
  plots.output = new Plot({ title: "Generated tokens", format: perSecond, stacked: true });
  plots.ttft = new Plot({ title: "Time to first token", format: seconds, axis: roundSeconds });
  plots.itl = new Plot({ title: "Between two tokens", format: seconds, axis: roundSeconds });
  byId("plots").append(...Object.values(plots).map((plot) => plot.element));
}

/** @param {object} figures FiguresBody of /admin/api/overview @param {Record<string, number>} failures by event */
export function showFigures(figures, failures) {
  showProblem(failures);
  showLatency("ttft", figures.ttft);
  showLatency("itl", figures.itl);
  const rates = figures.tokens_per_s;
  tile("output", perSecond(rates.output), "tokens, over 15 s");
  const reused = TIERS.reduce((sum, tier) => sum + (rates[tier] ?? 0), 0);
  const computed = rates.computed + rates.recomputed;
  tile("prompt", perSecond(reused + computed), `${perSecond(computed)} computed, ${perSecond(reused)} reused`);
  showReuse(figures.reuse, figures.saved);
  showHistory(figures.history);
}

function showProblem(failures) {
  const missed = Object.entries(failures).map(([event, num]) => `${event} ${count(num)}`);
  byId("figures-problem").hidden = missed.length === 0;
  setText(byId("figures-problem"), `By a defect of Cairn these figures and the requests may be wrong: ${missed.join(", ")} could not be taken. The log has the first of each.`);
}

function tile(name, value, more) {
  setText(tiles.get(name).value, value);
  setText(tiles.get(name).more, more);
}

function showLatency(name, { p50_s, p90_s, p99_s, count: measured, window_s }) {
  const tails = `p90 ${seconds(p90_s)} · p99 ${seconds(p99_s)}`;
  tile(name, seconds(p50_s), measured === 0 ? `none in ${minutes(window_s)}` : `${tails} · ${count(measured)} in ${minutes(window_s)}`);
}

const together = (byTier) => TIERS.reduce((sum, tier) => sum + (byTier[tier] ?? 0), 0);

const rateText = (rate, of) => (rate === null ? "n/a" : percent(of(rate)));

function showReuse(windows, saved) {
  const texts = windows.map(({ window_s, hit_rate }) => `${minutes(window_s)}: ${rateText(hit_rate, together)}`);
  tile("reuse", rateText(windows[0].hit_rate, together), texts.slice(1).join(" · "));
  const unpriced = saved.unpriced_tokens > 0 ? ` · ${count(saved.unpriced_tokens)} tokens not priced` : "";
  tile("saved", seconds(together(saved.last_hour_s)), `${seconds(together(saved.since_start_s))} since the start${unpriced}`);
  byId("reuse-table").classList.toggle("alone", !windows.some(({ hit_rate }) => hit_rate?.shared > 0) && !saved.since_start_s.shared);
  const times = [["Saved in 60 min", saved.last_hour_s], ["Saved since the start", saved.since_start_s]].map(
    ([name, byTier]) => [name, ...TIERS.map((tier) => seconds(byTier[tier])), seconds(together(byTier)), ""],
  );
  showRows(byId("reuse-all"), [...windows.map((one) => shares(minutes(one.window_s), one)), ...times]);
  showModels(windows);
}

/** A row for each model and window, where there are several models: of one, the rows above say it. */
function showModels(windows) {
  const ids = [...new Set(windows.flatMap(({ by_model: models }) => models.map(({ model }) => model)))].sort();
  const rows = ids.flatMap((id) =>
    windows.map(({ window_s: windowS, by_model: models }) => {
      const none = { hit_rate: null, lookups: 0 };
      return shares(`${id}, ${minutes(windowS)}`, models.find(({ model }) => model === id) ?? none);
    }),
  );
  showRows(byId("reuse-models"), ids.length > 1 ? rows : []);
}

const shares = (name, { hit_rate: rates, lookups }) => [
  name,
  ...TIERS.map((tier) => rateText(rates, (rate) => rate[tier] ?? 0)),
  rateText(rates, together),
  count(lookups),
];

function showRows(body, rows) {
  reconcile(body, rows, {
    key: ([name]) => name,
    make: () =>
      h("tr", {}, h("th", { scope: "row" }), ...[0, 1, 2, 3, 4, 5].map(() => h("td", { class: "right" }))),
    update: fill,
  });
}

function showHistory(history) {
  const whole = (values) => values.slice(0, -1); // the last slice is not over
  const rate = (origin) => whole(history.tokens[origin] ?? []).map((num) => num / history.slice_s);
  const computed = rate("computed").map((value, index) => value + (rate("recomputed")[index] ?? 0));
  plots.prompt.show(
    [
      { name: "computed", values: computed },
      { name: "live", values: rate("live") },
      { name: "hot", values: rate("hot") },
      { name: "store", values: rate("store") },
      { name: "shared", values: rate("shared") },
    ],
    history.slice_s,
  );
  plots.output.show([{ name: "generated", values: rate("output") }], history.slice_s);
  for (const name of ["ttft", "itl"]) {
    plots[name].show(
      [
        { name: "p99", values: whole(history[`${name}_p99_s`]) },
        { name: "median", values: whole(history[`${name}_p50_s`]) },
      ],
      history.slice_s,
    );
  }
}
