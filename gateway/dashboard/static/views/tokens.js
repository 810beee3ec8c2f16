/**
 * Tokens: where they went over time, whether what is written is read often enough, and what that saves.
 */

import * as api from "../api.js";
import { bars, lines, stacked } from "../charts.js";
import { DEFINITIONS as D } from "../definitions.js";
import { FEW, count, money, percent, share, si, tokens } from "../format.js";
import { writeColour } from "../paint.js";
import { classes, groupColumn, running, span, sum, times } from "../series.js";
import * as state from "../state.js";
import { el, fill, loader, number, panel, say, table } from "../ui.js";
import { amortisation } from "../words.js";
import { NOTHING } from "./overview.js";

export const title = "Tokens";
const GROUPS = { tenant: "Tenant", model: "Model", key: "Key", upstream: "Upstream", api: "API" };
const LARGEST = 6; // groups that get a chart of their own; the table has them all

/** Draw the view into root. */
export function mount(root, context) {
  const headline = el("h1", {}, "Tokens");
  const strip = el("section", { class: "numbers", "aria-label": "Numbers of this range" });
  const by = el("select", { "aria-label": "Side by side", onchange: () => state.set({ group: by.value || null }) },
    el("option", { value: "" }, "All together"), Object.entries(GROUPS).map(([value, label]) => el("option", { value }, `By ${label.toLowerCase()}`)));
  const csv = el("button", { type: "button", onclick: () => download(context) }, "Download CSV");
  const flow = panel({ title: "Prompt tokens by what became of them", definition: D.prompt, actions: [by, csv] });
  const groups = panel({ title: "By tenant" });
  const pays = written();
  const saved = saving();
  root.append(headline, strip, flow.element, groups.element, pays.panel.element, saved.panel.element);
  let drawn = { kinds: "", parts: null, destroy: () => {} };

  const redraw = (kinds, group) => {
    const wanted = JSON.stringify([kinds, Boolean(group)]);
    if (drawn.kinds === wanted) return drawn;
    drawn.destroy();
    drawn = { kinds: wanted, ...parts(kinds, { strip, flow, groups, grouped: Boolean(group) }) };
    return drawn;
  };
  const usage = loader({
    panels: [flow, groups, pays.panel, saved.panel],
    fetch: (now, signal) => Promise.all([
      api.get("usage", state.query({ bucket: "auto", group_by: now.group || "tenant" }, now), { signal }), context.events(now, signal)]),
    isEmpty: ([answer]) => (answer.data ? false : NOTHING),
    show: ([answer, events], now) => {
      const kinds = kindsOf(answer, context.about());
      say(headline, found(answer.total));
      redraw(kinds, now.group).update(answer, events, now);
      if (!answer.data) return;
      pays.update(answer, events);
      saved.update(answer, events);
    },
  });
  return {
    update: (now) => { by.value = now.group ?? ""; usage.load(now); },
    destroy: () => { usage.stop(); drawn.destroy(); pays.chart.destroy(); saved.chart.destroy(); },
  };
}

const download = (context) => {
  const now = state.get();
  const asked = state.query({ bucket: "auto", group_by: now.group || null, format: "csv" }, now);
  return api.download("usage", asked, "keepwarm-usage.csv").catch((error) => context.announce(error.message));
};

function found(total) {
  const { requests, prompt_tokens: prompt, read_tokens: read } = total;
  if (!prompt) return "Tokens: no prompts in this range";
  const rest = total.uncached_tokens / prompt;
  if (requests < FEW) return `${share(read, prompt, requests)} prompt tokens were read`;
  return `${percent(read / prompt)} of ${tokens(prompt)} were read, ${percent(rest)} computed and not asked to be kept`;
}

/** The kinds of prompt tokens, in the order in which they are stacked. */
export function kindsOf(usage, about) {
  const writes = classes(usage, about).map((name, place) => (
    { key: `write ${name}`, label: `write ${name}`, color: writeColour(place), definition: D.write, pick: (total) => total.write_tokens[name] ?? 0 }));
  const plain = (key, definition, more = {}) => ({ key, label: key, color: `--${key}`, definition, pick: (total) => total[`${key}_tokens`], ...more });
  return [plain("read", D.read), ...writes, plain("uncached", D.uncached), plain("unknown", D.unknown, { hatched: true })];
}

const kindOf = ({ color }) => color.slice(2);

// ---- numbers, stacked charts, groups ----

function parts(kinds, { strip, flow, groups, grouped }) {
  const numbers = kinds.map((kind) => number({ label: `Tokens ${kind.label}`, definition: kind.definition, kind: kindOf(kind) }));
  fill(strip, numbers.map((one) => one.element));
  const whole = grouped ? multiples(kinds) : single(kinds);
  fill(flow.body, whole.element);
  const share_ = side(kinds, groups);
  const update = (usage, events, now) => {
    numbers.forEach((one, place) => {
      const value = kinds[place].pick(usage.total);
      one.update({ value: si(value), note: `${share(value, usage.total.prompt_tokens, usage.total.requests)} of the prompts`, title: `${count(value)} tokens` });
    });
    whole.update(usage, events, now);
    share_.update(usage, now);
  };
  return { update, destroy: () => { whole.destroy(); share_.destroy(); } };
}

const columns = (kinds, usage, read) => Object.fromEntries(kinds.map((kind) => [kind.key, read(kind.pick)]));
const common = (usage, events) => ({ times: times(usage), step: usage.bucket_s, range: span(usage), marks: events });

function single(kinds) {
  const chart = stacked({ name: "Prompt tokens", format: si, series: kinds, height: 264 });
  const element = el("div", {}, el("div", { class: "corner" }, chart.actions), chart.element);
  const update = (usage, events) => chart.update({ ...common(usage, events), values: columns(kinds, usage, (pick) => usage.buckets.map(({ total }) => pick(total))) });
  return { element, update, destroy: chart.destroy };
}

/** The same chart once for each of the largest groups, all on one scale. */
function multiples(kinds) {
  const element = el("div", { class: "multiples" });
  let charts = [];
  const build = (shown) => {
    for (const { chart } of charts) chart.destroy();
    charts = shown.map((group) => {
      const name = nameOf(group);
      return { name, chart: stacked({ name: `Prompt tokens of ${name}`, format: si, series: kinds, height: 152, ceiling: () => ceiling, labelled: false }) };
    });
    fill(element, charts.map(({ name, chart }) => el("div", {}, el("div", { class: "corner" }, el("h3", {}, name), chart.actions), chart.element)));
  };
  let ceiling = 0;
  const update = (usage, events) => {
    const shown = largest(usage).slice(0, LARGEST);
    if (shown.map(nameOf).join("\n") !== charts.map(({ name }) => name).join("\n")) build(shown);
    const all = shown.map(({ by }) => groupColumn(usage, by, (total) => total.prompt_tokens));
    ceiling = Math.max(...all.flat(), 1);
    charts.forEach(({ chart }, place) => {
      const { by } = shown[place];
      chart.update({ ...common(usage, events), values: columns(kinds, usage, (pick) => groupColumn(usage, by, pick)) });
    });
  };
  return { element, update, destroy: () => charts.forEach(({ chart }) => chart.destroy()) };
}

const nameOf = (group) => Object.values(group.by).map((value) => value ?? "none").join(", ");
const largest = (usage) => [...usage.groups].sort((a, b) => b.total.prompt_tokens - a.total.prompt_tokens);

function side(kinds, groups) {
  let field = "tenant";
  const chart = bars({ name: "Prompt tokens by group", format: tokens, onpick: (row) => state.set({ [field]: row.pick }) });
  const list = table({
    caption: "Tokens of each group",
    sort: { key: "prompt", down: true },
    columns: [
      { key: "name", label: "group", value: nameOf },
      { key: "requests", label: "requests", number: true, value: ({ total }) => total.requests, format: count },
      { key: "prompt", label: "prompt", number: true, value: ({ total }) => total.prompt_tokens, format: count },
      ...kinds.map((kind) => ({ key: kind.key, label: kind.label, number: true, value: ({ total }) => kind.pick(total), format: count })),
      { key: "output", label: "output", number: true, value: ({ total }) => total.output_tokens, format: count },
      { key: "tokens", label: "read by tokens", number: true, value: ({ total }) => total.read_ratio.by_tokens, format: (_, { total }) => share(total.read_tokens, total.prompt_tokens, total.requests) },
      { key: "hits", label: "by requests", number: true, value: ({ total }) => total.read_ratio.by_requests, format: (ratio, { total }) => percent(ratio, total.reported) },
    ],
  });
  fill(groups.body, chart.element, el("div", { class: "gap" }), list.element);
  const update = (usage, now) => {
    field = now.group || "tenant";
    groups.title(`By ${GROUPS[field] === "API" ? "API" : field}: what became of each one's prompts`);
    chart.update(largest(usage).slice(0, 12).map((group) => ({
      label: nameOf(group), pick: group.by[field], title: `Show only ${nameOf(group)}`, value: si(group.total.prompt_tokens),
      parts: kinds.map((kind) => ({ kind: kindOf(kind), label: kind.label, value: kind.pick(group.total) })),
    })));
    list.update(usage.groups);
  };
  return { update, destroy: chart.destroy };
}

// ---- whether writing pays ----

function written() {
  const chart = lines({
    name: "Reads of each written token", format: ratio, margin: 92,
    series: [{ key: "each", label: "reads", color: "--read" }, { key: "even", label: "break-even", color: "--write-2", dash: [6, 4], width: 1.5 }],
  });
  const made = panel({ title: "Reads of each written token", span: 6, definition: D.amortisation, actions: chart.actions });
  const note = el("p", { class: "note under" });
  made.body.append(chart.element, note);
  const update = (usage, events) => {
    made.title(amortisation(usage.total));
    const [read, wrote] = [running(usage, (total) => total.read_tokens), running(usage, (total) => sum(total.write_tokens))];
    const even = usage.total.money?.break_even ?? null;
    say(note, even === null ? "The break-even is drawn once rates are set for the model." : `Above ${ratio(even)}, a write costs less than its reads save.`);
    chart.update({ ...common(usage, events), values: { each: read.map((value, at) => (wrote[at] ? value / wrote[at] : null)), even: read.map(() => even) } });
  };
  return { panel: made, chart, update };
}

const ratio = (value) => (value === null ? "–" : `${value < 10 ? value.toFixed(1) : si(value)}×`);

function saving() {
  let currency = "";
  const chart = lines({ name: "Net saving since the range began", format: (value) => money(value, currency), formatAxis: si, signed: true, series: [{ key: "net", label: "net", color: "--read", fill: true }], margin: 48 });
  const made = panel({ title: "Net saving", span: 6, definition: D.net, actions: chart.actions });
  const facts = el("p", { class: "note under" });
  const words = el("div", { class: "empty", hidden: true },
    el("p", {}, "No rates are set, so nothing is said in money. Put them into keepwarm.toml, for each model:"), el("pre", {}, RATES));
  made.body.append(chart.element, facts, words);
  const update = (usage, events) => {
    const { money: told } = usage.total;
    chart.element.hidden = facts.hidden = !told;
    words.hidden = Boolean(told);
    made.title("Net saving");
    if (!told) return;
    currency = told.currency;
    made.title(told.net >= 0 ? `The cache saved ${money(told.net, currency)} net` : `Writing cost ${money(-told.net, currency)} more than reading saved`);
    say(facts, `${money(told.saved_by_reads, currency)} saved by reads − ${money(told.paid_for_writes, currency)} paid for writes`);
    chart.update({ ...common(usage, events), values: { net: running(usage, (total) => total.money?.net ?? 0) } });
  };
  return { panel: made, chart, update };
}

const RATES = `[[rates]]
model = "…"
currency = "USD"
input = 0.10  # of a million tokens
output = 0.40
read_multiplier = 0.1
write_multipliers = { "5m" = 1.25, "1h" = 2.0 }`;
