/**
 * Fleet: which upstreams can be asked, what they hold and have to do, and where what was available was lost.
 */

import * as api from "../api.js";
import { bars } from "../charts.js";
import { count, percent, si, tokens } from "../format.js";
import { MARKS } from "../frame.js";
import { sum } from "../series.js";
import * as state from "../state.js";
import { el, fill, icon, loader, moment, number, panel, say, table } from "../ui.js";
import { TITLE, WHY, finding, lost, parts, rate, stateOf } from "./fleet_words.js";

export const title = "Fleet";

const NONE = { say: "This gateway has no upstreams. Put the servers that it is to stand in front of into keepwarm.toml, as below, and read it again:", command: "keepwarm reload" };
const QUIET = { say: "No request was sent to an upstream in this range." };
const EXAMPLE = `[[upstreams]]
name = "a"
kind = "vllm"  # or sglang, llamacpp, openai, anthropic, generic
base_url = "http://localhost:8000/v1"
models = ["my-model"]`;
const METRIC = "keepwarm_prefix_tokens_total";
const SIDE_BY_SIDE = 6; // upstreams beside which the bar of all is no longer drawn: it would dwarf them
const ELSEWHERE = new Set(["policy", "purge"]); // events that are told in other views

/** Draw the view into root. */
export function mount(root) {
  const heading = el("h1", {}, title);
  const [strip, picture, why, list, changed] = [numbers(), lostWhere(), decisions(), replicas(), events()];
  const example = el("pre", { class: "example", hidden: true }, EXAMPLE);
  root.append(heading, list.panel.element, example, strip.panel.element, picture.panel.element, why.panel.element, changed.panel.element);
  const now = loader({
    panels: [list.panel],
    fetch: (_, signal) => api.get("upstreams", {}, { signal }),
    isEmpty: (answer) => (answer.upstreams.some((one) => one.state !== "bundled") ? false : NONE),
    show: (answer, at) => {
      example.hidden = answer.upstreams.some((one) => one.state !== "bundled");
      say(heading, finding(answer.upstreams));
      list.show(answer, at);
    },
  });
  const promised = loader({
    panels: [strip.panel, picture.panel, why.panel],
    fetch: (at, signal) => api.get("fleet", state.query({}, at), { signal }),
    isEmpty: (answer) => (answer.data ? false : QUIET),
    show: (answer) => { for (const part of [strip, picture, why]) part.show(answer); },
  });
  const marks = loader({
    panels: [changed.panel],
    fetch: (at, signal) => api.get("events", { from: at.from, to: at.to }, { signal }),
    isEmpty: (answer) => (answer.events.some(({ kind }) => !ELSEWHERE.has(kind)) ? false : { say: "Nothing started, restarted or went in this range." }),
    show: (answer, at) => changed.show(answer, at),
  });
  return {
    update: (at) => { now.load(at); promised.load(at); marks.load(at); },
    destroy: () => {
      for (const one of [now, promised, marks]) one.stop();
      for (const one of [picture, why]) one.destroy();
    },
  };
}

function numbers() {
  const one = (label, kind, text, formula) => number({ label, kind, definition: { text, formula, metric: METRIC } });
  const made = {
    available: one("Available", null, "Prompt tokens that some upstream was believed to hold, of answers that said what was read.", "Σ the most that any upstream was believed to hold"),
    captured: one("Captured", null, "Of these, the tokens that the chosen upstream was believed to hold.", "Σ believed at the chosen upstream"),
    delivered: one("Delivered", "read", "Tokens that the upstreams said they read from their caches.", "Σ reported as cached"),
    routing: one("Lost in routing", "uncached", "Available elsewhere: the upstream that held them had too much to do, could not be asked, or was not chosen.", "available − captured"),
    replica: one("Lost at the replica", "miss", "Believed to be there and not read: evicted, restarted, or never kept.", "captured − delivered"),
    silent: one("Requests that did not say", "unknown", "Requests whose answers did not tell how much was read. They are in none of the other numbers; unknown is not zero.", "requests − answers that told"),
  };
  const holder = panel({ title: "What routing promised and what came of it", span: 12 });
  holder.body.append(el("div", { class: "numbers" }, Object.values(made).map(({ element }) => element)));
  const show = ({ total }) => {
    const found = parts(total);
    const said = total.requests - total.unreported_requests;
    const told = (key, value, whole, words) => made[key].update({
      value: si(value), title: tokens(value),
      note: value === null ? "no answer said what was read" : whole ? `${percent(value / whole, said < 20 ? 0 : said).replace("–", `of ${si(whole)}`)} ${words}` : words,
    });
    told("available", total.available, total.prompt_tokens, "of the prompts");
    told("captured", total.captured, total.available, "of available");
    told("delivered", total.delivered, total.available, "of available");
    told("routing", found?.routing ?? null, total.available, "of available");
    told("replica", found?.replica ?? null, total.available, "of available");
    made.silent.update({ value: si(total.unreported_requests), note: `of ${si(total.requests)} requests`, title: `${count(total.unreported_requests)} of ${count(total.requests)} requests` });
  };
  return { panel: holder, show };
}

const PARTS = [["delivered", "read", "delivered"], ["replica", "miss", "lost at the replica"], ["routing", "uncached", "lost in routing"]];

function lostWhere() {
  const chart = bars({ name: "Available tokens, by what became of them", format: tokens, onpick: (row) => state.set({ upstream: row.pick ?? null }) });
  const holder = panel({
    title: TITLE, span: 8, actions: chart.actions,
    definition: { text: "A bar is all that was available for the requests that an upstream got. Teal and plum together were captured; teal alone was delivered. Plum was lost at the replica, slate in routing.", formula: "available = delivered + lost at the replica + lost in routing", metric: METRIC },
  });
  const legend = el("p", { class: "fleet-legend note" }, PARTS.map(([, kind, word]) => el("span", {}, el("span", { class: `swatch fill-${kind}`, "aria-hidden": "true" }), word)));
  const silent = el("p", { class: "note under", hidden: true });
  holder.body.append(legend, chart.element, silent);
  const row = (label, told, pick) => {
    const found = parts(told);
    return {
      label, pick, title: pick ? `Show only ${pick}` : "All upstreams", value: rate(told) ?? "–",
      parts: found ? PARTS.map(([key, kind, word]) => ({ kind, value: found[key], label: word })) : [],
    };
  };
  const show = ({ data, total, replicas }) => {
    holder.title(data ? lost(total) : TITLE);
    const mute = replicas.filter(({ delivered }) => delivered === null).map(({ name }) => name);
    silent.hidden = !mute.length;
    say(silent, `${mute.join(", ")}: no answer said what was read, so nothing is drawn.`);
    const each = replicas.map((one) => row(one.name, one, one.name));
    chart.update(each.length > SIDE_BY_SIDE ? each : [row("All", total, null), ...each]);
  };
  return { panel: holder, show, destroy: chart.destroy };
}

function decisions() {
  const chart = bars({ name: "Requests by what decided where they went", format: si });
  const holder = panel({
    title: "Requests by what decided", span: 4, actions: chart.actions,
    definition: { text: "Why each request went to the upstream that answered it.", metric: "keepwarm_route_decisions_total" },
  });
  holder.body.append(chart.element);
  const show = ({ why }) => {
    const all = sum(why);
    chart.update(Object.entries(why).sort((a, b) => b[1] - a[1]).map(([name, requests]) => ({
      label: name, title: WHY[name], value: `${si(requests)} · ${percent(requests / all, all)}`,
      parts: [{ kind: name === "prefix" || name === "session" ? "hit" : "soft", value: requests, label: name }],
    })));
  };
  return { panel: holder, show, destroy: chart.destroy };
}

const standing = (name) => {
  const { sign, word, told, bad } = stateOf(name);
  return el("span", { class: `nobreak${bad ? " is-bad" : ""}`, title: told }, el("span", { class: "sign", "aria-hidden": "true" }, sign), ` ${word}`);
};

function replicas() {
  const plain = (key, label, more = {}) => ({ key, label, number: true, format: si, title: (value) => count(value), ...more });
  const rows = table({
    caption: "Upstreams as they are now",
    onrow: ({ name }) => state.set({ upstream: name }),
    columns: [
      { key: "name", label: "Upstream", title: (_, { base_url: url }) => url },
      { key: "state", label: "State", format: standing, title: (name, { why }) => why || stateOf(name).told },
      { key: "kind", label: "Kind" },
      { key: "models", label: "Models", value: ({ models }) => models.join(", ") },
      plain("open", "Open"),
      plain("load_tokens", "Load, tokens"),
      plain("resident_tokens", "Held, tokens"),
      plain("requests", "Requests"),
      plain("failures", "Failures"),
      plain("available_tokens", "Available"),
      plain("captured_tokens", "Captured"),
      plain("delivered_tokens", "Delivered"),
      { key: "delivered_ratio", label: "Read of prompts", number: true, format: (ratio) => percent(ratio), title: (ratio) => (ratio === null ? "No answer said what was read." : null) },
    ],
  });
  const holder = panel({
    title: "Upstreams now; the range does not narrow them", span: 12,
    definition: { text: "Load: prompt tokens that wait, and a share for each answer under way. Held: what it is believed to hold. Counts are since it was configured.", metric: "keepwarm_upstream_health, keepwarm_upstream_load_tokens, keepwarm_upstream_resident_tokens" },
  });
  const bad = el("ul", { class: "todo", hidden: true });
  holder.body.append(bad, rows.element);
  const show = (answer, at) => {
    const meant = answer.upstreams.filter((one) => (!at.upstream || one.name === at.upstream) && (!at.model || one.models.includes(at.model)));
    const ill = meant.filter((one) => stateOf(one.state).bad);
    bad.hidden = !ill.length;
    fill(bad, ill.map((one) => el("li", { class: "is-page" }, icon("alarm"), el("div", {}, el("strong", {}, `${one.name} is ${stateOf(one.state).word}`), el("p", { class: "note" }, one.why || stateOf(one.state).told)))));
    rows.update(meant);
    const policies = Object.entries(answer.routing ?? {}).map(([model, policy]) => `${model} by ${policy.replace("_", " ")}`);
    holder.title(policies.length ? `Upstreams now, routed: ${policies.slice(0, 3).join(", ")}${policies.length > 3 ? " …" : ""}` : "Upstreams now");
  };
  return { panel: holder, show };
}

function events() {
  const list = el("ol", { class: "list" });
  const holder = panel({ title: "What changed in the fleet", span: 12 });
  holder.body.append(list);
  const show = ({ events: told }, { zone }) => {
    const now = Date.now() / 1000;
    const meant = told.filter(({ kind }) => !ELSEWHERE.has(kind)).sort((a, b) => b.at - a.at).slice(0, 12);
    fill(list, meant.map((one) => el("li", { class: one.kind === "alert" ? "is-page" : null },
      el("span", { class: "glyph", "aria-hidden": "true" }, MARKS[one.kind] ?? "•"), el("span", { title: one.title }, one.title), el("span", { class: "note" }, moment(one.at, now, zone)))));
  };
  return { panel: holder, show };
}
