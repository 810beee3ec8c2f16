/**
 * Retention: what is kept and for how long, what became of the rest, the policies that decide it, and what operators did.
 */

import * as api from "../api.js";
import { bars } from "../charts.js";
import { bytes, count, duration, percent, si, tokens } from "../format.js";
import { writeColour } from "../paint.js";
import { sum } from "../series.js";
import { el, loader, number, panel, say } from "../ui.js";
import { audit } from "./audit.js";
import { policies } from "./policies.js";
import { finding } from "./policy_words.js";
import { ages, kept, none, pressed, reuse } from "./retention_spans.js";

export const title = "Retention";
export const icon = "retention";

const NOTHING = {
  say: "The cache is empty. Send a request to this gateway, or play an hour of made-up traffic:",
  command: "keepwarm demo --traffic",
};
const CAUSES = { expired: "Expired", evicted: "Evicted", purged: "Purged" };

/** Build the view; gives {update(state), destroy()}. */
export function mount(root, context) {
  const heading = el("h1", {}, title);
  const parts = [
    now(),
    byClass(),
    ages("Age of what is kept, tokens", "ages", "How long ago the tokens that are kept were computed."),
    ages(
      "Time left until the deadline, tokens",
      "deadlines",
      "How long until the tokens that are kept expire unless they are read.",
    ),
    reuse(),
    pressed(),
    causes(),
    broken(),
  ];
  const own = audit(context);
  const rules = policies(context, () => {
    rules.load();
    own.load();
    retention.load(last);
  });
  own.onundo(rules.undo);
  let last = null;
  root.append(heading, ...parts.map(({ panel: one }) => one.element), rules.panel.element, own.panel.element);
  const retention = loader({
    panels: parts.map((part) => part.panel),
    fetch: (_, signal) => api.get("retention", {}, { signal }),
    show: (answer) => {
      say(
        heading,
        finding(answer, tokens, (ratio) => percent(ratio)),
      );
      for (const part of parts) part.show(answer);
    },
  });
  return {
    update: (state) => {
      last = state;
      retention.load(state);
      rules.load(state);
      own.load(state);
    },
    destroy: () => {
      retention.stop();
      rules.stop();
      own.stop();
      parts.forEach((part) => part.destroy?.());
    },
  };
}

function now() {
  const metric = "keepwarm_cache_tokens_held";
  const one = (label, kind, text, name = metric) => number({ label, kind, definition: { text, metric: name } });
  const shown = {
    promised: one("Promised", "write-2", "Tokens kept until their deadline because a request asked for it."),
    held: one("Held", "held", "Tokens that may be read until their deadline, and go first under pressure."),
    free: one("Free", null, "Blocks of the pool that hold nothing.", "keepwarm_engine_blocks_free"),
    gone: one(
      "Gone",
      null,
      "Blocks that expired, were evicted or purged since the engine started.",
      "keepwarm_cache_evicted_blocks_total",
    ),
    broken: one(
      "Promises broken",
      null,
      "Blocks that pressure took before their promised deadline, since the engine started.",
      "keepwarm_cache_promise_broken_total",
    ),
  };
  const holder = panel({ title: "The cache as it is now; range and filters do not narrow it", span: 12 });
  holder.body.append(
    el(
      "div",
      { class: "numbers" },
      Object.values(shown).map(({ element }) => element),
    ),
  );
  const all = (answer, part, field) => answer.classes.reduce((total, one) => total + one[part][field], 0);
  return {
    panel: holder,
    show: (answer) => {
      for (const part of ["promised", "held"]) {
        const held = all(answer, part, "tokens");
        shown[part].update({
          value: si(held),
          note: `${si(all(answer, part, "entries"))} entries, ${bytes(all(answer, part, "bytes"))}`,
          title: tokens(held),
        });
      }
      const { free, blocks, block_tokens: size } = answer.capacity;
      shown.free.update({ value: si(free), note: `of ${si(blocks)} blocks of ${size} tokens`, title: count(free) });
      shown.gone.update({
        value: si(sum(answer.evictions)),
        note: "blocks since the start",
        title: count(sum(answer.evictions)),
      });
      const bad = answer.broken.reduce((total, one) => total + one.blocks, 0);
      shown.broken.element.classList.toggle("is-alarm", bad > 0);
      shown.broken.update({ value: si(bad), note: "blocks since the start", title: count(bad) });
    },
  };
}

function byClass() {
  const chart = bars({ name: "Kept by class, tokens", format: tokens });
  const holder = panel({
    title: "Kept by class, tokens",
    span: 12,
    actions: chart.actions,
    definition: { text: "Solid: promised. Hatched: held.", metric: "keepwarm_cache_tokens_held" },
  });
  holder.body.append(chart.element);
  const empty = none(holder, (answer) => !kept(answer), NOTHING);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      empty(answer);
      chart.update(
        answer.classes
          .map((one, place) => ({ one, place }))
          .filter(({ one }) => one.promised.tokens + one.held.tokens > 0)
          .map(({ one, place }) => ({
            label: one.class,
            title: one.ttl_s === null ? "a class that was configured once" : duration(one.ttl_s),
            value: `${si(one.promised.tokens)} promised · ${si(one.held.tokens)} held`,
            parts: [
              { kind: writeColour(place).slice(2), value: one.promised.tokens, label: "promised" },
              { kind: writeColour(place).replace("--write", "held"), value: one.held.tokens, label: "held" },
            ],
          })),
      );
    },
  };
}

function causes() {
  const chart = bars({ name: "Blocks gone, by cause", format: si });
  const holder = panel({
    title: "Blocks gone, by cause",
    span: 6,
    actions: chart.actions,
    definition: {
      text: "Since the engine started. Expired: the deadline passed. Evicted: pressure took it. Purged: an operator did.",
      metric: "keepwarm_cache_evicted_blocks_total",
    },
  });
  holder.body.append(chart.element);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: ({ evictions }) =>
      chart.update(
        Object.entries(CAUSES).map(([cause, label]) => ({
          label,
          value: si(evictions[cause]),
          parts: [{ kind: `reason-${cause}`, value: evictions[cause], label }],
        })),
      ),
  };
}

function broken() {
  const chart = bars({ name: "Promises broken, by class and tenant, blocks", format: si });
  const holder = panel({
    title: "Promises broken, by class and tenant, blocks",
    span: 6,
    actions: chart.actions,
    definition: {
      text: "Blocks that pressure took before their promised deadline, since the engine started. Lower the promise budget, or give the pool more memory.",
      metric: "keepwarm_cache_promise_broken_total",
    },
  });
  const kept = el("p", { class: "note" }, "Every promise was kept.");
  holder.body.append(chart.element, kept);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      const rows = answer.broken.filter(({ blocks }) => blocks > 0).sort((a, b) => b.blocks - a.blocks);
      kept.hidden = rows.length > 0;
      chart.update(
        rows.map((row) => ({
          label: `${row.tenant} · ${row.class}`,
          value: si(row.blocks),
          parts: [{ kind: "alarm", value: row.blocks, label: row.class }],
        })),
      );
    },
  };
}
