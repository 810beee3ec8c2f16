/**
 * One request: its time from queue to stop, its prompt as a strip of cached and computed blocks with its marks, where it
 * parts from the earlier one, and what was missed. Hashes and counts; there is no text to show.
 */

import * as api from "../api.js";
import { UNKNOWN, count, duration, exact, si, tokens } from "../format.js";
import { el, empty, fill, panel, swatch, what } from "../ui.js";
import { divergence, strip } from "./request_layout.js";
import { prompt, section, timing } from "./request_pictures.js";
import { helps, kind, spoken, told } from "./reasons.js";
import { outcome } from "./outcome.js";

/** Gives {panel, show(request, id, state), destroy()}; a request that is not in the list is asked for. */
export function detail(context, onback) {
  const holder = panel({ title: "One request", span: 5 });
  holder.element.classList.add("one-request");
  const back = el("button", { type: "button", class: "back", onclick: onback }, "← All requests");
  holder.element.prepend(back);
  let shown = null;
  let running = null;
  const draw = (request, now) => {
    const key = JSON.stringify([request.id, now.zone, context.about()?.classes]);
    if (key === shown) return;
    shown = key;
    holder.state("ready");
    fill(
      holder.body,
      head(request, now),
      timing(request),
      prompt(request, context.about()),
      breaks(request),
      missed(request, now),
      marks(request, now),
      work(request),
    );
  };
  const fetch = async (id, now) => {
    running?.abort();
    const mine = (running = new AbortController());
    try {
      draw(await api.get(`requests/${encodeURIComponent(id)}`, {}, { signal: mine.signal }), now);
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) return;
      if (error.status === 404) fill(holder.body, empty({ say: "This request is not remembered any more." }));
      if (error.status === 404) holder.state("ready");
      else holder.state("broken", { error, since: null, zone: now.zone });
    }
  };
  return {
    panel: holder,
    show: (request, id, now) => {
      if (request) return draw(request, now);
      shown = null;
      if (id) return fetch(id, now);
      fill(
        holder.body,
        empty({ say: "Choose a request to see where its time went and what of its prompt was cached." }),
      );
      return holder.state("ready");
    },
    destroy: () => running?.abort(),
  };
}

function head(request, { zone }) {
  const pairs = [
    ["Id", el("code", {}, request.id)],
    ["At", el("span", { title: exact(request.at, zone) }, exact(request.at, zone).slice(0, 19))],
    ["Tenant", request.tenant],
    ["Key", request.key ?? "none"],
    ["Model", request.model],
    ["API", `${request.api}${request.streamed ? ", streamed" : ""}`],
    ["Upstream", request.upstream],
  ];
  return el(
    "div",
    { class: "piece" },
    el("p", { class: "said" }, outcome(request), el("span", { class: "note" }, `HTTP ${request.status}`)),
    el(
      "dl",
      { class: "pairs" },
      pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  );
}

function breaks(request) {
  const said = divergence(request);
  if (!said) return null;
  const first = strip(request).breaks[0];
  return el(
    "div",
    { class: "piece" },
    el("p", { class: "divergence" }, el("span", { class: "cut", "aria-hidden": "true" }, "▼"), `${said}.`),
    el("p", { class: "note" }, helps(first.reason, first.looks_like)),
  );
}

function missed(request, { zone }) {
  if (request.prompt === null) return null;
  if (!request.misses.length) return section("Nothing was missed", null);
  const row = (miss) =>
    el(
      "tr",
      {},
      el("td", { title: told(miss.reason) }, swatch(kind(miss.reason)), spoken(miss.reason)),
      el("td", { title: miss.fate ? told(miss.fate) : null }, miss.fate ? spoken(miss.fate) : UNKNOWN),
      el("td", { class: "num", title: count(miss.tokens) }, si(miss.tokens)),
      el(
        "td",
        { title: exact(miss.at, zone) },
        miss.at === null ? UNKNOWN : `${duration(request.at - miss.at)} before`,
      ),
    );
  return section(
    "Not read",
    {
      text: "Every token that was not read, with its reason (what the client changed, else what became of the block) and its fate (what became of the block).",
      formula: "Σ tokens = prompt − read",
      metric: "keepwarm_cache_missed_tokens_total",
    },
    sheet(["Reason", "Fate", "Tokens", "Since"], request.misses.map(row), "What was not read", 2),
  );
}

function marks(request, { zone }) {
  if (!request.marks.length)
    return request.prompt === null ? null : section("No marks: the request asked for none", null);
  const row = (mark) =>
    el(
      "tr",
      {},
      el("td", { class: "num" }, count(mark.tokens)),
      el("td", {}, mark.asked ?? "none"),
      el("td", {}, mark.applied ?? "none"),
      el("td", {}, mark.kept ?? "not"),
      el(
        "td",
        { title: exact(mark.until, zone) },
        mark.until === null ? UNKNOWN : exact(mark.until, zone).slice(11, 19),
      ),
      el("td", {}, mark.reason ? spoken(mark.reason) : ""),
    );
  return section(
    "Marks",
    null,
    sheet(["Up to token", "Asked", "Applied", "Kept", "Until", "Why"], request.marks.map(row), "Marks", 0),
  );
}

function sheet(heads, rows, caption, numeric) {
  return el(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "hidden" }, caption),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head, place) => el("th", { scope: "col", class: place === numeric ? "num" : null }, head)),
        ),
      ),
      el("tbody", {}, rows),
    ),
  );
}

function work(request) {
  if (!request.projections) return null;
  const { done, without_prefix_cache: without, without_kv_cache: none } = request.projections;
  const pairs = [
    ["Done", done],
    ["Without prefix cache", without],
    ["Without KV cache", none],
    ["Output", request.output],
  ];
  return section(
    "Projections, tokens",
    {
      text: "How many tokens went through the model, and how many would have.",
      formula: "done = computed + generated − 1",
    },
    el(
      "dl",
      { class: "pairs" },
      pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { title: count(value) }, si(value))]),
    ),
  );
}
