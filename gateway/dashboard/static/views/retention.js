/**
 * Retention: what is kept and for how long, what became of the rest, the policies that decide it, and what operators did.
 */

import * as api from "../api.js";
import { bars, histogram } from "../charts.js";
import { bytes, count, duration, percent, si, tokens } from "../format.js";
import { writeColour } from "../paint.js";
import { sum } from "../series.js";
import { el, loader, number, panel, say } from "../ui.js";
import { audit } from "./audit.js";
import { policies } from "./policies.js";
import { finding, within } from "./policy_words.js";
import { slot } from "./slot.js";

export const title = "Retention";
export const icon = "retention";

const NOTHING = { say: "The cache is empty. Send a request to this gateway, or play an hour of made-up traffic:", command: "keepwarm demo --traffic" };
const CAUSES = { expired: "Expired", evicted: "Evicted", purged: "Purged" };

/** Build the view; gives {update(state), destroy()}. */
export function mount(root, context) {
  const heading = el("h1", {}, title);
  const parts = [now(), byClass(), ages("Age of what is kept, tokens", "ages", "How long ago the tokens that are kept were computed."),
    ages("Time left until the deadline, tokens", "deadlines", "How long until the tokens that are kept expire unless they are read."), reuse(), pressed(), causes(), broken()];
  const own = audit(context);
  const rules = policies(context, () => { rules.load(); own.load(); retention.load(last); });
  own.onundo(rules.undo);
  let last = null;
  root.append(heading, ...parts.map(({ panel: one }) => one.element), rules.panel.element, own.panel.element);
  const retention = loader({
    panels: parts.map((part) => part.panel),
    fetch: (_, signal) => api.get("retention", {}, { signal }),
    show: (answer) => {
      say(heading, finding(answer, tokens, (ratio) => percent(ratio)));
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
    destroy: () => { retention.stop(); rules.stop(); own.stop(); parts.forEach((part) => part.destroy?.()); },
  };
}

const none = (holder, isEmpty, words) => (answer) => {
  const nothing = isEmpty(answer);
  holder.state(nothing ? "empty" : "ready", typeof words === "string" ? { say: words } : words);
  return nothing;
};

const kept = (answer) => answer.classes.reduce((all, one) => all + one.promised.tokens + one.held.tokens, 0);

function now() {
  const metric = "keepwarm_cache_tokens_held";
  const one = (label, kind, text, name = metric) => number({ label, kind, definition: { text, metric: name } });
  const shown = {
    promised: one("Promised", "write-2", "Tokens kept until their deadline because a request asked for it."),
    held: one("Held", "held", "Tokens that may be read until their deadline, and go first under pressure."),
    free: one("Free", null, "Blocks of the pool that hold nothing.", "keepwarm_engine_blocks_free"),
    gone: one("Gone", null, "Blocks that expired, were evicted or purged since the engine started.", "keepwarm_cache_evicted_blocks_total"),
    broken: one("Promises broken", null, "Blocks that pressure took before their promised deadline, since the engine started.", "keepwarm_cache_promise_broken_total"),
  };
  const holder = panel({ title: "The cache as it is now; range and filters do not narrow it", span: 12 });
  holder.body.append(el("div", { class: "numbers" }, Object.values(shown).map(({ element }) => element)));
  const all = (answer, part, field) => answer.classes.reduce((total, one) => total + one[part][field], 0);
  return {
    panel: holder,
    show: (answer) => {
      for (const part of ["promised", "held"]) {
        const held = all(answer, part, "tokens");
        shown[part].update({ value: si(held), note: `${si(all(answer, part, "entries"))} entries, ${bytes(all(answer, part, "bytes"))}`, title: tokens(held) });
      }
      const { free, blocks, block_tokens: size } = answer.capacity;
      shown.free.update({ value: si(free), note: `of ${si(blocks)} blocks of ${size} tokens`, title: count(free) });
      shown.gone.update({ value: si(sum(answer.evictions)), note: "blocks since the start", title: count(sum(answer.evictions)) });
      const bad = answer.broken.reduce((total, one) => total + one.blocks, 0);
      shown.broken.element.classList.toggle("is-alarm", bad > 0);
      shown.broken.update({ value: si(bad), note: "blocks since the start", title: count(bad) });
    },
  };
}

const classSeries = (names) => names.map((name, place) => ({ key: name, label: name, color: writeColour(place) }));

function byClass() {
  const chart = bars({ name: "Kept by class, tokens", format: tokens });
  const holder = panel({
    title: "Kept by class, tokens", span: 12, actions: chart.actions,
    definition: { text: "Solid: promised. Hatched: held.", metric: "keepwarm_cache_tokens_held" },
  });
  holder.body.append(chart.element);
  const empty = none(holder, (answer) => !kept(answer), NOTHING);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      empty(answer);
      chart.update(answer.classes.map((one, place) => ({ one, place })).filter(({ one }) => one.promised.tokens + one.held.tokens > 0).map(({ one, place }) => ({
        label: one.class, title: one.ttl_s === null ? "a class that was configured once" : duration(one.ttl_s),
        value: `${si(one.promised.tokens)} promised · ${si(one.held.tokens)} held`,
        parts: [{ kind: writeColour(place).slice(2), value: one.promised.tokens, label: "promised" }, { kind: writeColour(place).replace("--write", "held"), value: one.held.tokens, label: "held" }],
      })));
    },
  };
}

function ages(name, field, text) {
  const holder = panel({ title: name, span: 6, definition: { text, metric: field === "ages" ? "keepwarm_cache_entry_age_at_read_seconds" : null } });
  const chart = slot(holder);
  const empty = none(holder, (answer) => !kept(answer), "Nothing is kept now.");
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      if (empty(answer)) return;
      const names = answer.classes.map((one) => one.class);
      const present = classSeries(names).filter(({ key }) => sum(answer[field].tokens[key] ?? {}) > 0);
      chart.update(present, (series) => histogram({ name, format: si, series }), { edges: answer[field].edges_s, values: answer[field].tokens, rules: [] });
    },
  };
}

/** How long prompts wait for their next reader, with each class's length through it. */
function reuse() {
  const name = "Time between uses of a block, against each TTL";
  const chart = histogram({ name, format: si, series: [{ key: "blocks", label: "blocks read again", color: "--read" }] });
  const holder = panel({
    title: name, span: 6, actions: chart.actions,
    definition: { text: "How long a block lay unused before it was read again. Gaps near a TTL's line say that a longer one would read more.", formula: "time of a read − time of the use before", metric: "keepwarm_cache_reuse_gap_seconds" },
  });
  holder.body.append(chart.element);
  const empty = none(holder, (answer) => !sum(answer.reuse_gap.blocks), "No block was read again yet. Send the same beginning of a prompt twice.");
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      if (empty(answer)) return;
      const shortest = answer.classes.find((one) => one.ttl_s !== null && one.promised.tokens + one.held.tokens > 0) ?? answer.classes[0];
      const share = shortest && within(answer.reuse_gap, shortest.ttl_s);
      holder.title(share === null || share === undefined ? name : `${percent(share, sum(answer.reuse_gap.blocks))} of blocks read again came within ${shortest.class}`);
      chart.update({ edges: answer.reuse_gap.edges_s, values: { blocks: answer.reuse_gap.blocks }, rules: answer.classes.filter((one) => one.ttl_s !== null).map((one) => ({ at: one.ttl_s, label: one.class })) });
    },
  };
}

/** How long blocks lived, or lay idle before pressure took them. */
function pressed() {
  const names = { idle_before_evict: "Idle before eviction", lifetime: "Lifetime" };
  const name = "How long blocks lasted";
  let field = "idle_before_evict";
  let answer = null;
  const chart = histogram({ name, format: si, series: [{ key: "blocks", label: "blocks", color: "--uncached" }] });
  const buttons = Object.entries(names).map(([key, label]) => el("button", { type: "button", "aria-pressed": String(key === field), onclick: () => choose(key) }, label));
  const holder = panel({
    title: name, span: 6, actions: [el("span", { class: "choice" }, buttons), ...chart.actions],
    definition: { text: "Idle before eviction: from a block's last use to when pressure took it; short times say that the pool is too small. Lifetime: from its writing to its going, whatever it went of." },
  });
  const nothing = el("p", { class: "empty", hidden: true });
  holder.body.append(chart.element, nothing);
  const draw = () => {
    const blocks = answer[field].blocks;
    const empty = !sum(blocks);
    nothing.hidden = !empty;
    chart.element.hidden = empty;
    say(nothing, field === "lifetime" ? "No block has gone yet." : "Pressure took nothing yet: the pool has room.");
    if (!empty) chart.update({ edges: answer[field].edges_s, values: { blocks }, rules: [] });
  };
  const choose = (key) => {
    field = key;
    Object.keys(names).forEach((one, place) => buttons[place].setAttribute("aria-pressed", String(one === key)));
    if (answer) draw();
  };
  return { panel: holder, destroy: chart.destroy, show: (told) => { answer = told; draw(); } };
}

function causes() {
  const chart = bars({ name: "Blocks gone, by cause", format: si });
  const holder = panel({
    title: "Blocks gone, by cause", span: 6, actions: chart.actions,
    definition: { text: "Since the engine started. Expired: the deadline passed. Evicted: pressure took it. Purged: an operator did.", metric: "keepwarm_cache_evicted_blocks_total" },
  });
  holder.body.append(chart.element);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: ({ evictions }) => chart.update(Object.entries(CAUSES).map(([cause, label]) => ({ label, value: si(evictions[cause]), parts: [{ kind: `reason-${cause}`, value: evictions[cause], label }] }))),
  };
}

function broken() {
  const chart = bars({ name: "Promises broken, by class and tenant, blocks", format: si });
  const holder = panel({
    title: "Promises broken, by class and tenant, blocks", span: 6, actions: chart.actions,
    definition: { text: "Blocks that pressure took before their promised deadline, since the engine started. Lower the promise budget, or give the pool more memory.", metric: "keepwarm_cache_promise_broken_total" },
  });
  const kept = el("p", { class: "note" }, "Every promise was kept.");
  holder.body.append(chart.element, kept);
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      const rows = answer.broken.filter(({ blocks }) => blocks > 0).sort((a, b) => b.blocks - a.blocks);
      kept.hidden = rows.length > 0;
      chart.update(rows.map((row) => ({ label: `${row.tenant} · ${row.class}`, value: si(row.blocks), parts: [{ kind: "alarm", value: row.blocks, label: row.class }] })));
    },
  };
}
