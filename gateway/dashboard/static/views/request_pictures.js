/**
 * A request as pictures: its phases on one time axis, its prompt as a strip of cached and computed blocks with its marks.
 */

import { UNKNOWN, count, seconds, si, tokens } from "../format.js";
import { classes } from "../series.js";
import { el, swatch, what } from "../ui.js";
import { strip, timeline } from "./request_layout.js";

const GRID = 160; // blocks beyond which their borders are not drawn
const PHASES = {
  queue: "Queue",
  prefill: "Prefill",
  decode: "Decode",
  elsewhere: "Elsewhere",
};
const MEANT = {
  queue: "waiting for its first step",
  prefill: "computing what was not read of the prompt",
  decode: "from the first token to the last",
  elsewhere: "reading, rendering, sending: what no phase explains",
};

/** A piece of what is told of a request, under its own heading. */
export const section = (title, definition, ...children) =>
  el("section", { class: "piece" }, el("h3", {}, title, definition && what(definition)), ...children);

/** Where the time went, from queue to stop. */
export function timing(request) {
  const { total, parts, first, unknown } = timeline(request);
  const bar = el(
    "div",
    {
      class: "phases",
      role: "img",
      "aria-label": `Of ${seconds(total)}: ${parts.map((part) => `${part.name} ${seconds(part.seconds)}`).join(", ")}`,
    },
    parts.map((part) =>
      el("span", {
        class: `phase is-${part.name}`,
        title: `${PHASES[part.name]}: ${seconds(part.seconds)}`,
        style: { left: `${100 * part.left}%`, width: `${100 * part.width}%` },
      }),
    ),
    first !== null &&
      el("span", {
        class: "first",
        title: `First token after ${seconds(request.first_token_s)}`,
        style: { left: `${100 * first}%` },
      }),
  );
  const entry = (part) =>
    el(
      "li",
      { title: MEANT[part.name] },
      el("span", { class: `swatch phase is-${part.name}`, "aria-hidden": "true" }),
      el("span", {}, PHASES[part.name]),
      el("span", { class: "num" }, seconds(part.seconds)),
    );
  const listed = Object.keys(PHASES).map((name) => ({
    name,
    seconds: parts.filter((part) => part.name === name).reduce((all, part) => all + part.seconds, 0),
    has: parts.some((part) => part.name === name),
  }));
  const shown = listed.filter(({ has }) => has);
  return section(
    `${seconds(total)} from queue to stop`,
    null,
    total ? bar : null,
    el(
      "ul",
      { class: "phase-list" },
      shown.map(entry),
      unknown.map((name) =>
        el(
          "li",
          {},
          el("span", { class: "swatch fill-unknown" }),
          el("span", {}, PHASES[name]),
          el("span", { class: "num" }, UNKNOWN),
        ),
      ),
      el(
        "li",
        {},
        el("span", { class: "swatch first", "aria-hidden": "true" }),
        el("span", {}, "First token"),
        el(
          "span",
          { class: "num" },
          request.first_token_s === null ? UNKNOWN : `after ${seconds(request.first_token_s)}`,
        ),
      ),
    ),
  );
}

/** What of the prompt was cached, in its order. */
export function prompt(request, about) {
  const { tokens: sum, parts, marks: placed, breaks: broken } = strip(request);
  if (request.prompt === null)
    return section("Prompt: not known", null, el("p", { class: "note" }, "It was refused before a prompt was made."));
  const known = classes({ total: { write_tokens: request.write } }, about);
  const fillOf = (part) =>
    part.kind === "write" ? `write-${Math.min(3, Math.max(0, known.indexOf(part.class))) + 1}` : part.kind;
  const block = about?.card?.block_tokens ?? null;
  const cells = block ? sum / block : Infinity;
  const grid = cells <= GRID ? { "background-size": `${(100 * block) / sum}% 100%` } : { "background-image": "none" };
  const word = (part) => (part.kind === "write" ? `write ${part.class ?? ""}`.trim() : part.kind);
  const bar = el(
    "div",
    {
      class: "strip",
      role: "img",
      "aria-label": `In prompt order: ${parts.map((part) => `${word(part)} ${count(part.tokens)}`).join(", ")}`,
    },
    parts.map((part) =>
      el("span", {
        class: `part fill-${fillOf(part)}`,
        title: `${word(part)}: ${count(part.tokens)} tokens, from ${count(part.start)}`,
        style: { width: `${100 * part.width}%` },
      }),
    ),
    el("span", { class: "grid", style: grid }),
  );
  const flags = el(
    "div",
    { class: "flags", "aria-hidden": "true" },
    placed.map((mark) =>
      el("span", {
        class: `flag is-${mark.kept ?? "not"}`,
        title: `Mark at ${count(mark.tokens)}: ${mark.applied ?? "not applied"}`,
        style: { left: `${100 * mark.left}%` },
      }),
    ),
  );
  const cuts = el(
    "div",
    { class: "cuts", "aria-hidden": "true" },
    broken.map((place) =>
      el("span", { class: "cut", title: `Parts here: ${place.message}`, style: { left: `${100 * place.left}%` } }, "▼"),
    ),
  );
  const key = parts.map((part) =>
    el("li", {}, swatch(fillOf(part)), `${word(part)} `, el("strong", {}, si(part.tokens))),
  );
  return section(
    `${tokens(request.prompt)} of prompt${cells <= GRID ? `, in blocks of ${block}` : ""}`,
    {
      text: "The prompt in its order: what was read, what was computed and kept on request, what was computed besides. Ticks below are marks, ▼ above is where it parts from the earlier request.",
      formula: "prompt = read + write + uncached",
    },
    cuts,
    bar,
    flags,
    el("ul", { class: "legend" }, key),
  );
}
