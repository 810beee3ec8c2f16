/**
 * Misses: which prompt tokens were not read, why, since when, and at which places prompts break.
 */

import * as api from "../api.js";
import { bars, stacked } from "../charts.js";
import { FEW, count, exact, percent, short, si, tokens } from "../format.js";
import * as series from "../series.js";
import * as state from "../state.js";
import { el, fill, loader, moment, number, panel, say, swatch, table } from "../ui.js";
import { byFamily, finding, positions, rise } from "./misses_words.js";
import { FAMILIES, ORDER, family, helps, kind, ordered, spoken, told } from "./reasons.js";
import { slot } from "./slot.js";

export const title = "Misses";
export const icon = "misses";

const SAMPLE = 1000; // requests that are looked at for places
const AGAIN_MS = 30_000; // how often they are, while nothing else is asked for
const PLACES = 20;
const HATCHED = new Set([
  "template",
  "retokenised",
  "policy_changed",
  "replica_lost",
  "weights_changed",
  "template_changed",
  "no_cache",
]);
const NOTHING = {
  say: "Nothing was missed here, for nothing was asked. Send a request to this gateway, or play an hour of made-up traffic:",
  command: "keepwarm demo --traffic",
};

/** Build the view; gives {update(state), destroy()}. */
export function mount(root, context) {
  const heading = el("h1", {}, title);
  const totals = numbers();
  const reasons = byReason();
  const time = overTime();
  const places = breaking();
  root.append(heading, totals.panel.element, reasons.panel.element, time.panel.element, places.panel.element);

  const usage = loader({
    panels: [totals.panel, reasons.panel, time.panel],
    fetch: async (now, signal) => {
      const [answer, events] = await Promise.all([
        api.get("usage", state.query({}, now), { signal }),
        context.events(now, signal),
      ]);
      return { answer, events };
    },
    isEmpty: ({ answer }) => (answer.total.requests ? false : NOTHING),
    show: ({ answer, events }, now) => {
      say(heading, finding(answer, now.zone));
      totals.show(answer);
      reasons.show(answer);
      time.show(answer, events, now);
    },
  });
  const requests = loader({
    panels: [places.panel],
    fetch: (now, signal) => api.get("requests", state.query({ limit: SAMPLE }, now), { signal }),
    isEmpty: (answer) => noPlaces(answer),
    show: places.show,
  });
  let looked = 0;
  return {
    update: (now, { quiet } = {}) => {
      usage.load(now);
      if (quiet && Date.now() - looked < AGAIN_MS) return;
      looked = Date.now();
      requests.load(now);
    },
    destroy: () => {
      usage.stop();
      requests.stop();
      reasons.destroy();
      time.destroy();
    },
  };
}

function noPlaces({ requests }) {
  if (!requests.length) return { say: "No request of this range is remembered any more, so no place can be told." };
  return positions(requests).length
    ? false
    : { say: `No prompt among the latest ${count(requests.length)} of this range parted from an earlier one.` };
}

function numbers() {
  const one = (label, kind, text, formula) =>
    number({ label, kind, definition: { text, formula, metric: "keepwarm_cache_missed_tokens_total" } });
  const all = one(
    "Not read",
    "miss",
    "Prompt tokens that had to be computed, and so the tokens that misses cost.",
    "prompt − read",
  );
  const parts = Object.entries(FAMILIES).map(([name, { label, told: text }]) => [
    name,
    one(label, `family-${name}`, text, `tokens missed by ${listed(name)}`),
  ]);
  const [, broken] = parts.find(([name]) => name === "broken");
  const holder = panel({ title: "What misses cost, in tokens", span: 12 });
  holder.body.append(
    el(
      "div",
      { class: "numbers" },
      all.element,
      parts.map(([, part]) => part.element),
    ),
  );
  return {
    panel: holder,
    show: ({ total }) => {
      const sums = byFamily(total.missed_tokens);
      const sum = series.sum(total.missed_tokens);
      const of = (part) =>
        total.requests < FEW
          ? `of ${tokens(total.prompt_tokens)}`
          : `${percent(part / total.prompt_tokens)} of the prompts`;
      all.update({ value: si(sum), note: total.prompt_tokens ? of(sum) : "no prompts", title: tokens(sum) });
      broken.element.classList.toggle("is-alarm", sums.broken > 0);
      for (const [name, part] of parts)
        part.update({
          value: si(sums[name]),
          note: total.prompt_tokens ? of(sums[name]) : "",
          title: `${count(sums[name])} tokens`,
        });
    },
  };
}

const listed = (name) =>
  ORDER.filter((reason) => family(reason) === name)
    .map(spoken)
    .join(", ");

function byReason() {
  const chart = bars({
    name: "Tokens missed, by reason",
    format: tokens,
    onpick: ({ reason }) => state.set({ view: "requests", reason }),
  });
  const holder = panel({
    title: "Tokens missed, by reason",
    span: 5,
    actions: chart.actions,
    definition: {
      text: "Every token that was not read has exactly one reason. A reason leads to its requests.",
      formula: "Σ over reasons = prompt − read",
      metric: "keepwarm_cache_missed_tokens_total",
    },
  });
  holder.body.append(chart.element);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: ({ total }) =>
      chart.update(
        ordered(Object.keys(total.missed_tokens))
          .filter((reason) => total.missed_tokens[reason] > 0)
          .map((reason) => ({
            reason,
            label: spoken(reason),
            title: told(reason),
            value: `${si(total.missed_tokens[reason])} · ${requestsOf(total.missed_requests?.[reason])}`,
            parts: [{ kind: kind(reason), value: total.missed_tokens[reason], label: spoken(reason) }],
          })),
      ),
  };
}

const requestsOf = (amount) => (amount === undefined ? "" : `${si(amount)} ${amount === 1 ? "request" : "requests"}`);

function overTime() {
  const holder = panel({
    title: "Tokens missed over time",
    span: 7,
    definition: {
      text: "Prompt tokens that were not read in each step of time, by reason.",
      metric: "keepwarm_cache_missed_tokens_total",
    },
  });
  const chart = slot(holder);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (usage, events, now) => {
      const reasons = ordered(
        Object.keys(usage.total.missed_tokens).filter((reason) => usage.total.missed_tokens[reason] > 0),
      );
      const shown = reasons.map((reason) => ({
        key: reason,
        label: spoken(reason),
        color: `--${kind(reason)}`,
        hatched: HATCHED.has(reason) || kind(reason) === "unknown",
      }));
      const up = rise(usage);
      const marks = up
        ? [
            ...events,
            {
              at: up.from,
              kind: "alert",
              title: `Misses by “${spoken(up.reason)}” rise: ${tokens(up.tokens)} beyond what was usual`,
              subject: "",
            },
          ]
        : events;
      holder.title(
        up
          ? `${tokens(up.tokens)} beyond what was usual were missed by “${spoken(up.reason)}”`
          : "Tokens missed over time",
      );
      chart.update(
        shown,
        (made) =>
          stacked({
            name: "Tokens missed over time",
            series: made,
            format: tokens,
            formatAxis: short,
            height: 280,
            margin: 112,
          }),
        {
          times: series.times(usage),
          step: usage.bucket_s ?? 60,
          marks,
          zone: now.zone,
          values: Object.fromEntries(
            reasons.map((reason) => [reason, series.column(usage, (total) => total.missed_tokens[reason] ?? 0)]),
          ),
        },
      );
    },
  };
}

/** "acme, globex and 3 more". */
const few = (names) =>
  names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ");

function breaking() {
  const holder = panel({
    title: "Where prompts break",
    span: 12,
    definition: {
      text: "The first place at which a prompt parts from the earlier request it is compared with. Places and kinds of text only; the text itself is not kept.",
      formula: "from the requests that are still remembered",
    },
  });
  let now = 0;
  let zone = "utc";
  const note = el("p", { class: "note below" });
  const rows = table({
    caption: "Places at which prompts part from earlier ones, most tokens first",
    sort: { key: "tokens", down: true },
    onrow: ({ example, reason }) => state.set({ view: "requests", request: example, reason }),
    columns: [
      { key: "message", label: "Place", format: (place) => el("code", {}, place) },
      { key: "looks_like", label: "Looks like", format: (look) => look.replaceAll("_", " ") },
      {
        key: "reason",
        label: "Reason",
        format: (reason) => el("span", { class: "nobreak" }, swatch(kind(reason)), spoken(reason)),
        title: told,
      },
      { key: "tokens", label: "Tokens missed", number: true, format: si, title: (value) => `${count(value)} tokens` },
      { key: "requests", label: "Requests", number: true, format: count },
      {
        key: "first_token",
        label: "At token",
        number: true,
        format: (first, { last_token: last }) => (first === last ? count(first) : `${count(first)} – ${count(last)}`),
      },
      {
        key: "tenants",
        label: "Tenants",
        value: ({ tenants }) => few(tenants),
        title: (_, { tenants }) => tenants.join(", "),
      },
      { key: "last", label: "Last", number: true, format: (at) => moment(at, now, zone) },
      {
        key: "helps",
        label: "What helps",
        value: ({ reason, looks_like: look }) => helps(reason, look),
        format: (text) => el("span", { class: "advice" }, text ?? "Compare its request with the one before."),
      },
    ],
  });
  holder.body.append(rows.element, note);
  return {
    panel: holder,
    show: ({ requests, next }, shown) => {
      now = Date.now() / 1000;
      zone = shown.zone;
      const found = positions(requests);
      rows.update(found.slice(0, PLACES));
      const more = found.length > PLACES ? ` ${count(found.length - PLACES)} lesser places are left out.` : "";
      const since = requests.length ? ` since ${exact(requests.at(-1).at, zone)}` : "";
      fill(
        note,
        `From ${next ? "the latest " : ""}${count(requests.length)} requests of this range that are remembered${since}.${more}`,
      );
    },
  };
}
