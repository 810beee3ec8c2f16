/**
 * One request: its time from queue to stop, its prompt as a strip of cached and computed blocks with its marks, where it
 * parts from the earlier one, and what was missed. Hashes and counts; there is no text to show.
 */

import * as api from "../api.js";
import { UNKNOWN, count, duration, exact, seconds, si, tokens } from "../format.js";
import { classes } from "../series.js";
import { el, empty, fill, panel, swatch, what } from "../ui.js";
import { divergence, strip, timeline } from "./request_layout.js";
import { helps, kind, spoken, told } from "./reasons.js";
import { outcome } from "./outcome.js";

const GRID = 160; // blocks beyond which their borders are not drawn
const PHASES = {
  queue: "Queue", prefill: "Prefill", decode: "Decode", elsewhere: "Elsewhere",
};
const MEANT = {
  queue: "waiting for its first step", prefill: "computing what was not read of the prompt", decode: "from the first token to the last",
  elsewhere: "reading, rendering, sending: what no phase explains",
};

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
    fill(holder.body, head(request, now), timing(request), prompt(request, context.about()), breaks(request), missed(request, now), marks(request, now), work(request));
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
      fill(holder.body, empty({ say: "Choose a request to see where its time went and what of its prompt was cached." }));
      return holder.state("ready");
    },
    destroy: () => running?.abort(),
  };
}

const section = (title, definition, ...children) => el("section", { class: "piece" }, el("h3", {}, title, definition && what(definition)), ...children);

function head(request, { zone }) {
  const pairs = [["Id", el("code", {}, request.id)], ["At", el("span", { title: exact(request.at, zone) }, exact(request.at, zone).slice(0, 19))], ["Tenant", request.tenant], ["Key", request.key ?? "none"], ["Model", request.model],
    ["API", `${request.api}${request.streamed ? ", streamed" : ""}`], ["Upstream", request.upstream]];
  return el("div", { class: "piece" }, el("p", { class: "said" }, outcome(request), el("span", { class: "note" }, `HTTP ${request.status}`)),
    el("dl", { class: "pairs" }, pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
}

function timing(request) {
  const { total, parts, first, unknown } = timeline(request);
  const bar = el("div", { class: "phases", role: "img", "aria-label": `Of ${seconds(total)}: ${parts.map((part) => `${part.name} ${seconds(part.seconds)}`).join(", ")}` },
    parts.map((part) => el("span", { class: `phase is-${part.name}`, title: `${PHASES[part.name]}: ${seconds(part.seconds)}`, style: { left: `${100 * part.left}%`, width: `${100 * part.width}%` } })),
    first !== null && el("span", { class: "first", title: `First token after ${seconds(request.first_token_s)}`, style: { left: `${100 * first}%` } }));
  const entry = (part) => el("li", { title: MEANT[part.name] }, el("span", { class: `swatch phase is-${part.name}`, "aria-hidden": "true" }), el("span", {}, PHASES[part.name]), el("span", { class: "num" }, seconds(part.seconds)));
  const listed = Object.keys(PHASES).map((name) => ({ name, seconds: parts.filter((part) => part.name === name).reduce((all, part) => all + part.seconds, 0), has: parts.some((part) => part.name === name) }));
  const shown = listed.filter(({ has }) => has);
  return section(`${seconds(total)} from queue to stop`, null, total ? bar : null,
    el("ul", { class: "phase-list" }, shown.map(entry), unknown.map((name) => el("li", {}, el("span", { class: "swatch fill-unknown" }), el("span", {}, PHASES[name]), el("span", { class: "num" }, UNKNOWN))),
      el("li", {}, el("span", { class: "swatch first", "aria-hidden": "true" }), el("span", {}, "First token"), el("span", { class: "num" }, request.first_token_s === null ? UNKNOWN : `after ${seconds(request.first_token_s)}`))));
}

function prompt(request, about) {
  const { tokens: sum, parts, marks: placed, breaks: broken } = strip(request);
  if (request.prompt === null) return section("Prompt: not known", null, el("p", { class: "note" }, "It was refused before a prompt was made."));
  const known = classes({ total: { write_tokens: request.write } }, about);
  const fillOf = (part) => (part.kind === "write" ? `write-${Math.min(3, Math.max(0, known.indexOf(part.class))) + 1}` : part.kind);
  const block = about?.card?.block_tokens ?? null;
  const cells = block ? sum / block : Infinity;
  const grid = cells <= GRID ? { "background-size": `${(100 * block) / sum}% 100%` } : { "background-image": "none" };
  const word = (part) => (part.kind === "write" ? `write ${part.class ?? ""}`.trim() : part.kind);
  const bar = el("div", { class: "strip", role: "img", "aria-label": `In prompt order: ${parts.map((part) => `${word(part)} ${count(part.tokens)}`).join(", ")}` },
    parts.map((part) => el("span", { class: `part fill-${fillOf(part)}`, title: `${word(part)}: ${count(part.tokens)} tokens, from ${count(part.start)}`, style: { width: `${100 * part.width}%` } })),
    el("span", { class: "grid", style: grid }));
  const flags = el("div", { class: "flags", "aria-hidden": "true" },
    placed.map((mark) => el("span", { class: `flag is-${mark.kept ?? "not"}`, title: `Mark at ${count(mark.tokens)}: ${mark.applied ?? "not applied"}`, style: { left: `${100 * mark.left}%` } })));
  const cuts = el("div", { class: "cuts", "aria-hidden": "true" }, broken.map((place) => el("span", { class: "cut", title: `Parts here: ${place.message}`, style: { left: `${100 * place.left}%` } }, "▼")));
  const key = parts.map((part) => el("li", {}, swatch(fillOf(part)), `${word(part)} `, el("strong", {}, si(part.tokens))));
  return section(`${tokens(request.prompt)} of prompt${cells <= GRID ? `, in blocks of ${block}` : ""}`,
    { text: "The prompt in its order: what was read, what was computed and kept on request, what was computed besides. Ticks below are marks, ▼ above is where it parts from the earlier request.", formula: "prompt = read + write + uncached" },
    cuts, bar, flags, el("ul", { class: "legend" }, key));
}

function breaks(request) {
  const said = divergence(request);
  if (!said) return null;
  const first = strip(request).breaks[0];
  return el("div", { class: "piece" }, el("p", { class: "divergence" }, el("span", { class: "cut", "aria-hidden": "true" }, "▼"), `${said}.`), el("p", { class: "note" }, helps(first.reason, first.looks_like)));
}

function missed(request, { zone }) {
  if (request.prompt === null) return null;
  if (!request.misses.length) return section("Nothing was missed", null);
  const row = (miss) => el("tr", {}, el("td", { title: told(miss.reason) }, swatch(kind(miss.reason)), spoken(miss.reason)), el("td", { title: miss.fate ? told(miss.fate) : null }, miss.fate ? spoken(miss.fate) : UNKNOWN),
    el("td", { class: "num", title: count(miss.tokens) }, si(miss.tokens)), el("td", { title: exact(miss.at, zone) }, miss.at === null ? UNKNOWN : `${duration(request.at - miss.at)} before`));
  return section("Not read", { text: "Every token that was not read, with its reason (what the client changed, else what became of the block) and its fate (what became of the block).", formula: "Σ tokens = prompt − read", metric: "keepwarm_cache_missed_tokens_total" },
    sheet(["Reason", "Fate", "Tokens", "Since"], request.misses.map(row), "What was not read", 2));
}

function marks(request, { zone }) {
  if (!request.marks.length) return request.prompt === null ? null : section("No marks: the request asked for none", null);
  const row = (mark) => el("tr", {}, el("td", { class: "num" }, count(mark.tokens)), el("td", {}, mark.asked ?? "none"), el("td", {}, mark.applied ?? "none"), el("td", {}, mark.kept ?? "not"),
    el("td", { title: exact(mark.until, zone) }, mark.until === null ? UNKNOWN : exact(mark.until, zone).slice(11, 19)), el("td", {}, mark.reason ? spoken(mark.reason) : ""));
  return section("Marks", null, sheet(["Up to token", "Asked", "Applied", "Kept", "Until", "Why"], request.marks.map(row), "Marks", 0));
}

function sheet(heads, rows, caption, numeric) {
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption }, el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place === numeric ? "num" : null }, head)))), el("tbody", {}, rows)));
}

function work(request) {
  if (!request.projections) return null;
  const { done, without_prefix_cache: without, without_kv_cache: none } = request.projections;
  const pairs = [["Done", done], ["Without prefix cache", without], ["Without KV cache", none], ["Output", request.output]];
  return section("Projections, tokens", { text: "How many tokens went through the model, and how many would have.", formula: "done = computed + generated − 1" },
    el("dl", { class: "pairs" }, pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { title: count(value) }, si(value))])));
}
