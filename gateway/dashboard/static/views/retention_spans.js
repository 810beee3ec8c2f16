/**
 * Retention over spans of time: how old what is kept is and how long it has left, how long blocks wait for their next
 * reader against each TTL, how long they lasted.
 */

import { histogram } from "../charts.js";
import { percent, si } from "../format.js";
import { writeColour } from "../paint.js";
import { sum } from "../series.js";
import { el, panel, say } from "../ui.js";
import { within } from "./policy_words.js";
import { slot } from "./slot.js";

/** Say by a panel that there is nothing, when there is. */
export const none = (holder, isEmpty, words) => (answer) => {
  const nothing = isEmpty(answer);
  holder.state(nothing ? "empty" : "ready", typeof words === "string" ? { say: words } : words);
  return nothing;
};

/** Tokens that are kept. */
export const kept = (answer) => answer.classes.reduce((all, one) => all + one.promised.tokens + one.held.tokens, 0);

const classSeries = (names) => names.map((name, place) => ({ key: name, label: name, color: writeColour(place) }));

/** Kept tokens by class over spans: their ages, or the time they have left. */
export function ages(name, field, text) {
  const holder = panel({
    title: name,
    span: 6,
    definition: { text, metric: field === "ages" ? "keepwarm_cache_entry_age_at_read_seconds" : null },
  });
  const chart = slot(holder);
  const empty = none(holder, (answer) => !kept(answer), "Nothing is kept now.");
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      if (empty(answer)) return;
      const names = answer.classes.map((one) => one.class);
      const present = classSeries(names).filter(({ key }) => sum(answer[field].tokens[key] ?? {}) > 0);
      chart.update(present, (series) => histogram({ name, format: si, series }), {
        edges: answer[field].edges_s,
        values: answer[field].tokens,
        rules: [],
      });
    },
  };
}

/** How long prompts wait for their next reader, with each class's length through it. */
export function reuse() {
  const name = "Time between uses of a block, against each TTL";
  const chart = histogram({
    name,
    format: si,
    series: [{ key: "blocks", label: "blocks read again", color: "--read" }],
  });
  const holder = panel({
    title: name,
    span: 6,
    actions: chart.actions,
    definition: {
      text: "How long a block lay unused before it was read again. Gaps near a TTL's line say that a longer one would read more.",
      formula: "time of a read − time of the use before",
      metric: "keepwarm_cache_reuse_gap_seconds",
    },
  });
  holder.body.append(chart.element);
  const empty = none(
    holder,
    (answer) => !sum(answer.reuse_gap.blocks),
    "No block was read again yet. Send the same beginning of a prompt twice.",
  );
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (answer) => {
      if (empty(answer)) return;
      const shortest =
        answer.classes.find((one) => one.ttl_s !== null && one.promised.tokens + one.held.tokens > 0) ??
        answer.classes[0];
      const share = shortest && within(answer.reuse_gap, shortest.ttl_s);
      holder.title(
        share === null || share === undefined
          ? name
          : `${percent(share, sum(answer.reuse_gap.blocks))} of blocks read again came within ${shortest.class}`,
      );
      chart.update({
        edges: answer.reuse_gap.edges_s,
        values: { blocks: answer.reuse_gap.blocks },
        rules: answer.classes.filter((one) => one.ttl_s !== null).map((one) => ({ at: one.ttl_s, label: one.class })),
      });
    },
  };
}

/** How long blocks lived, or lay idle before pressure took them. */
export function pressed() {
  const names = { idle_before_evict: "Idle before eviction", lifetime: "Lifetime" };
  const name = "How long blocks lasted";
  let field = "idle_before_evict";
  let answer = null;
  const chart = histogram({ name, format: si, series: [{ key: "blocks", label: "blocks", color: "--uncached" }] });
  const buttons = Object.entries(names).map(([key, label]) =>
    el("button", { type: "button", "aria-pressed": String(key === field), onclick: () => choose(key) }, label),
  );
  const holder = panel({
    title: name,
    span: 6,
    actions: [el("span", { class: "choice" }, buttons), ...chart.actions],
    definition: {
      text: "Idle before eviction: from a block's last use to when pressure took it; short times say that the pool is too small. Lifetime: from its writing to its going, whatever it went of.",
    },
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
  return {
    panel: holder,
    destroy: chart.destroy,
    show: (told) => {
      answer = told;
      draw();
    },
  };
}
