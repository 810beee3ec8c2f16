/**
 * Overview: is the cache paying, what changed, what should I do.
 */

import * as api from "../api.js";
import { lines, bars } from "../charts.js";
import { DEFINITIONS as D } from "../definitions.js";
import { FEW, count, duration, money, percent, seconds, share, si, tokens } from "../format.js";
import { MARKS } from "../frame.js";
import { writeColour } from "../paint.js";
import { column, rate, span, times } from "../series.js";
import { query } from "../state.js";
import { el, fill, icon, loader, moment, number, panel, say } from "../ui.js";
import { firstToken, plural, readRatio } from "../words.js";

export const title = "Overview";
export const NOTHING = {
  say: "No requests in this range. Send some, or let an hour of made-up traffic pass in two minutes:",
  command: ".venv/bin/keepwarm demo --traffic",
};

/** Draw the view into root. */
export function mount(root, context) {
  const headline = el("h1", {}, "Overview");
  const strip = numbers();
  const charts = timeCharts();
  const [todo, changed, capacity, health] = [whatToDo(), whatChanged(), capacityByClass(), healthNow(context)];
  root.append(headline, strip.element, todo.element,
    el("div", { class: "column span-8" }, charts.ratio.panel.element, charts.first.panel.element,
      el("div", { class: "pair" }, charts.flow.panel.element, charts.total.panel.element)),
    el("div", { class: "column span-4" }, changed.panel.element, capacity.panel.element, health.panel.element));

  const panels = Object.values(charts).map((chart) => chart.panel);
  const usage = loader({
    panels,
    fetch: (state, signal) => Promise.all([api.get("usage", query({ bucket: "auto" }, state), { signal }), context.events(state, signal)]),
    isEmpty: ([answer]) => (answer.data ? false : NOTHING),
    show: ([answer, events], state) => {
      say(headline, readRatio(answer, state.zone));
      strip.update(answer.total);
      for (const chart of Object.values(charts)) chart.update(answer, events);
    },
  });
  const marks = loader({
    panels: [changed.panel],
    fetch: (state, signal) => api.get("events", { from: state.from, to: state.to }, { signal }),
    isEmpty: ({ events }) => (events.length ? false : { say: "Nothing changed in this range." }),
    show: ({ events }, state) => changed.update(events, Date.now() / 1000, state.zone),
  });
  const kept = loader({
    panels: [capacity.panel],
    fetch: (_, signal) => api.get("retention", {}, { signal }),
    show: capacity.update,
  });
  const advice = loader({
    panels: [todo],
    fetch: (state, signal) => api.get("advice", filtersOf(state), { signal }),
    show: todo.update,
  });
  return {
    update: (state) => { usage.load(state); marks.load(state); kept.load(state); advice.load(state); },
    destroy: () => {
      for (const one of [usage, marks, kept, advice]) one.stop();
      for (const chart of [...Object.values(charts).map((each) => each.chart), capacity.chart]) chart.destroy();
      health.stop();
    },
  };
}

const filtersOf = (state) => {
  const { from, to, ...rest } = query({}, state);
  return rest;
};

// ---- numbers ----

function numbers() {
  const parts = {
    byTokens: number({ label: "Read ratio by tokens", definition: D.byTokens, kind: "read" }),
    byRequests: number({ label: "Read ratio by requests", definition: D.byRequests, kind: "read" }),
    read: number({ label: "Tokens saved", definition: D.read, kind: "read" }),
    projections: number({ label: "Projections saved", definition: D.projections, kind: "read" }),
    hit: number({ label: "First token on a hit", definition: D.firstToken, kind: "hit" }),
    miss: number({ label: "First token on a miss", definition: D.firstToken, kind: "miss" }),
  };
  const element = el("section", { class: "numbers", "aria-label": "Numbers of this range" }, Object.values(parts).map((part) => part.element));
  const update = (total) => {
    const { requests, reported, hits, prompt_tokens: prompt, read_tokens: read, projections: { done, without_prefix_cache: without } } = total;
    const few = requests < FEW && requests > 0;
    const sample = requests ? `${count(requests)} ${plural(requests, "request")}` : "no requests";
    parts.byTokens.update({ value: few ? share(read, prompt, requests) : percent(total.read_ratio.by_tokens), note: few ? `tokens, of ${sample}` : requests ? `of ${tokens(prompt)}` : sample, title: `${count(read)} of ${count(prompt)} tokens` });
    parts.byRequests.update({ value: percent(total.read_ratio.by_requests, reported), note: reported ? `of ${count(reported)} ${plural(reported, "request")}` : "no requests", title: `${count(hits)} of ${count(reported)} requests` });
    parts.read.update({ value: si(read), note: "read, not computed again", title: `${count(read)} tokens` });
    parts.projections.update({ value: share(without - done, without, requests), note: requests ? `${si(done)} done instead of ${si(without)}` : "no requests", title: `${count(without - done)} of ${count(without)}` });
    for (const kind of ["hit", "miss"]) parts[kind].update(quantiles(total.first_token[kind], kind));
  };
  return { element, update };
}

function quantiles(dist, kind) {
  if (!dist) return { value: "–", note: kind === "hit" ? "no request hit" : "no request missed" };
  return { value: seconds(dist.p50), note: `p95 ${seconds(dist.p95)} · p99 ${seconds(dist.p99)}`, title: `p50 of ${count(dist.count)} requests` };
}

// ---- over time ----

function timeCharts() {
  const axis = (value) => `${Math.round(value * 100)}\u202f%`;
  return {
    ratio: charted("Read ratio, %", D.byTokens, lines({
      name: "Read ratio", format: percent, formatAxis: axis, max: 1, height: 200,
      series: [{ key: "tokens", label: "by tokens", color: "--read", fill: true, tell: ({ totals }, at) => share(totals[at].read_tokens, totals[at].prompt_tokens, totals[at].requests) },
        { key: "requests", label: "by requests", color: "--read", dash: [5, 4], width: 1.5, tell: ({ totals }, at) => percent(totals[at].read_ratio.by_requests, totals[at].reported) }],
    }), (usage) => ({
      values: { tokens: column(usage, (total) => total.read_ratio.by_tokens), requests: column(usage, (total) => total.read_ratio.by_requests) },
      totals: usage.buckets.map(({ total }) => total),
    })),
    first: charted("First token, hit against miss, s", D.firstToken, lines({
      name: "First token", format: seconds, height: 200, log: true,
      series: [...three("hit", "--hit"), ...three("miss", "--miss", [5, 4])],
      bands: [...spread("hit", "--hit"), ...spread("miss", "--miss")],
    }), (usage) => ({ values: { ...threeOf(usage, "hit", (total) => total.first_token.hit), ...threeOf(usage, "miss", (total) => total.first_token.miss) } }),
    (usage) => firstToken(usage.total)),
    flow: charted("Throughput, tokens/s", D.throughput, lines({
      name: "Throughput", format: (value) => `${si(value)}/s`, formatAxis: si, height: 152, margin: 40,
      series: [{ key: "prompt", label: "in", color: "--ink" }, { key: "output", label: "out", color: "--soft", dash: [5, 4] }],
    }), (usage) => ({ values: { prompt: rate(usage, (total) => total.prompt_tokens), output: rate(usage, (total) => total.output_tokens) } })),
    total: charted("Time to the last token, s", D.seconds, lines({
      name: "Time to the last token", format: seconds, height: 152, margin: 40,
      series: [{ key: "all50", label: "p50", color: "--soft" }, { key: "all95", label: "p95", color: "--ink" }, { key: "all99", label: "p99", color: "--soft", width: 1 }],
      bands: spread("all", "--soft"),
    }), (usage) => ({ values: threeOf(usage, "all", (total) => total.seconds) })),
  };
}

function charted(words, definition, chart, values, finding = null) {
  const made = panel({ title: words, definition, actions: chart.actions });
  made.body.append(chart.element);
  const update = (usage, marks) => {
    if (finding) made.title(finding(usage));
    chart.update({ times: times(usage), step: usage.bucket_s, range: span(usage), marks, ...values(usage) });
  };
  return { panel: made, chart, update };
}

const three = (kind, color, dash) => [
  { key: `${kind}50`, label: `${kind} p50`, color, dash }, { key: `${kind}95`, label: `${kind} p95`, color, width: 1, dash, quiet: true },
  { key: `${kind}99`, label: `${kind} p99`, color, width: 0.5, dash, quiet: true },
];
const spread = (kind, color) => [
  { upper: `${kind}95`, lower: `${kind}50`, color, alpha: 0.16 }, { upper: `${kind}99`, lower: `${kind}95`, color, alpha: 0.07 },
];
const threeOf = (usage, kind, pick) =>
  Object.fromEntries([50, 95, 99].map((part) => [`${kind}${part}`, column(usage, (total) => pick(total)?.[`p${part}`])]));

// ---- what to do, what changed ----

function whatToDo() {
  const list = el("ul", { class: "todo" });
  const made = panel({ title: "What to do" });
  made.body.append(list);
  const alert = (one) => el("li", { class: one.severity === "page" ? "is-page" : "is-warn" }, icon("alarm"),
    el("div", {}, el("strong", {}, one.title), el("p", {}, one.what_to_do), el("p", { class: "note" }, one.detail)));
  const advice = (one) => el("li", {}, icon("advice"),
    el("div", {}, el("strong", {}, one.sentence), el("p", { class: "note" }, effect(one))));
  const rank = { page: 0, warn: 1 };
  const update = ({ alerts, advice: advised, sample }) => {
    const shown = [...[...alerts].sort((a, b) => rank[a.severity] - rank[b.severity]).map(alert), ...advised.map(advice)].slice(0, 6);
    const calm = sample ? `Nothing needs you; judged by ${count(sample.requests)} requests.` : "Nothing needs you. Advice begins once there is traffic to judge by.";
    fill(list, shown.length ? shown : el("li", {}, icon("good"), el("p", { class: "note" }, calm)));
    made.title(alerts.length ? `${count(alerts.length)} ${alerts.length === 1 ? "thing needs" : "things need"} you` : "What to do");
  };
  return { ...made, update };
}

/** What an advice would change, and how sure that is. */
function effect({ read_now: now, read_then: then, error, gb_hours_delta: room, net }) {
  const parts = [`read ${percent(now)} → ${percent(then)} ± ${percent(error)}`];
  if (typeof room === "number") parts.push(`${room < 0 ? "−" : "+"}${Math.abs(room).toFixed(1)} GB·h`);
  if (net) parts.push(`net ${money(net.amount, net.currency)}`);
  return parts.join(" · ");
}

function whatChanged() {
  const list = el("ol", { class: "list" });
  const made = panel({ title: "What changed", rows: 24 });
  made.body.append(list);
  const line = (one, now, zone) => el("li", { class: one.kind === "alert" ? "is-page" : null },
    el("span", { class: "glyph", "aria-hidden": "true" }, MARKS[one.kind] ?? "•"), el("span", { title: one.title }, one.title), el("span", { class: "note" }, moment(one.at, now, zone)));
  const update = (events, now, zone) => fill(list, [...events].sort((a, b) => b.at - a.at).slice(0, 6).map((one) => line(one, now, zone)));
  return { panel: made, update };
}

// ---- capacity, health ----

function capacityByClass() {
  const chart = bars({ name: "Capacity by class", format: tokens });
  const made = panel({ title: "Capacity by class, tokens", definition: D.capacity, actions: chart.actions });
  const note = el("p", { class: "note under" }, "\u00a0");
  made.body.append(chart.element, note);
  const update = ({ classes, capacity }) => {
    const { blocks, free, block_tokens: each, kv_bytes_per_token: size, kv_dtype: kind } = capacity;
    const all = blocks * each;
    const row = (one, place) => ({
      label: one.class, title: `kept ${duration(one.ttl_s)}`, value: si(one.promised.tokens + one.held.tokens),
      parts: [{ kind: writeColour(place).slice(2), label: "promised", value: one.promised.tokens }, { kind: `held-${Math.min(place, 3) + 1}`, label: "held", value: one.held.tokens }],
    });
    const ordered = [...classes].sort((a, b) => a.ttl_s - b.ttl_s);
    chart.update([...ordered.map(row), { label: "free", value: si(free * each), parts: [{ kind: "free", label: "free", value: free * each }] }], { total: all });
    say(note, `Solid promised, hatched held; whole bars are ${tokens(all)}${size ? `, ${gib(all * size)}${kind ? ` of ${kind}` : ""}` : ""}.`);
    if (blocks) made.title(free === blocks ? "The cache is empty" : `${percent(1 - free / blocks)} of the cache is full`);
  };
  return { panel: made, chart, update };
}

const gib = (size) => `${(size / 2 ** 30).toFixed(1)}\u202fGiB`;

function healthNow(context) {
  const rows = ["Engine", "Running", "Waiting", "Restarts", "Shared state"].map((label) => ({ label, value: el("dd", {}, "–") }));
  const made = panel({ title: "Health", definition: D.health, rows: 16 });
  made.body.append(el("dl", { class: "facts" }, rows.map(({ label, value }) => el("div", {}, el("dt", {}, label), value))));
  const tell = (label, text, bad = false) => {
    const { value } = rows.find((row) => row.label === label);
    say(value, text);
    value.classList.toggle("is-bad", bad);
  };
  let last = null;
  const stops = [
    context.on("state", ({ at, engine, ready, detail, restarts, state }) => {
      last = at;
      made.state("ready");
      made.title(ready ? "Healthy: the engine serves" : "The engine does not serve");
      tell("Engine", ready ? "ready" : detail, !ready);
      tell("Running", count(engine?.running));
      tell("Waiting", count(engine?.waiting));
      tell("Restarts", count(restarts), restarts > 0);
      tell("Shared state", state, state !== "ok");
    }),
    context.on("link", ({ open, since }) => { if (!open) made.state("broken", { error: new Error("the live stream is closed"), since: last ?? since }); }),
  ];
  return { panel: made, stop: () => stops.forEach((stop) => stop()) };
}
