/**
 * Tree: the radix tree as an icicle picture by tokens, by how long a node lay idle or how long it has left; what is
 * chosen stands beside it, and a table tells the same.
 */

import * as api from "../api.js";
import { UNKNOWN, count, duration, exact, si, tokens } from "../format.js";
import * as state from "../state.js";
import { el, fill, icon as drawing, loader, panel, say, table } from "../ui.js";
import { ALL, SCALES, build, finding, path } from "./icicle.js";
import { picture } from "./tree_picture.js";

export const title = "Tree";
export const icon = "tree";

const LIMIT = 2000;
const ROWS = 300; // of the table
const NOTHING = {
  say: "The tree is empty: nothing is kept. Send a request to this gateway, or play an hour of made-up traffic:",
  command: "keepwarm demo --traffic",
};
const SWITCH = { idle: "Idle time", left: "Time left" };

/** Build the view; gives {update(state, {quiet}), destroy()}. */
export function mount(root, context) {
  const heading = el("h1", {}, title);
  const buttons = Object.entries(SWITCH).map(([name, label]) =>
    el("button", { type: "button", onclick: () => state.set({ colour: name }, { replace: true }) }, label),
  );
  const asTable = el(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-pressed": "false",
      "aria-label": "The tree as a table",
      title: "The same data as a table (t)",
      onclick: () => toggle(),
    },
    drawing("table"),
  );
  const holder = panel({
    title: "What is kept, by tokens",
    span: 8,
    actions: [el("span", { class: "choice", role: "group", "aria-label": "Colour" }, buttons), asTable],
    definition: {
      text: "Each bar is a stretch of tokens that belong together; what continues it lies below. As wide as its tokens with all that continue it. Looking renews nothing. Arrow keys move, Enter zooms in, Escape out, t shows a table.",
    },
  });
  const beside = panel({ title: "Chosen", span: 4 });
  beside.element.classList.add("tree-detail");
  beside.element.hidden = true;
  const crumbs = el("nav", { class: "crumbs", "aria-label": "Way to what is shown" });
  const legend = el("ul", { class: "scale" });
  const note = el("p", { class: "note below" });
  const drawn = picture({
    onchoose: (id) => state.set({ node: id }, { replace: true }),
    onzoom: (id) => state.set({ zoom: id === ALL ? null : id, node: id }),
    announce: context.announce,
    ontable: () => toggle(),
  });
  const sheet = rows((id) => {
    state.set({ node: id }, { replace: true });
  });
  const shown = { answer: null, built: null, at: 0 };
  sheet.element.hidden = true;
  holder.body.append(crumbs, drawn.element, legend, sheet.element, note);
  root.append(heading, holder.element, beside.element);

  const toggle = () => {
    const open = sheet.element.hidden;
    sheet.element.hidden = !open;
    drawn.element.hidden = legend.hidden = crumbs.hidden = open;
    asTable.setAttribute("aria-pressed", String(open));
    (open ? sheet.element : drawn.element).focus();
  };
  const draw = (now) => {
    const scale = now.colour in SCALES ? now.colour : "idle";
    Object.keys(SWITCH).forEach((name, place) => buttons[place].setAttribute("aria-pressed", String(name === scale)));
    if (!shown.built) return;
    const { byId, root: all } = shown.built;
    const top = byId.get(now.zoom) ?? all;
    const chosen = byId.get(now.node) ?? top;
    drawn.update({ top, chosen, scale });
    fillCrumbs(crumbs, top);
    fillLegend(legend, scale);
    fill(beside.body, detail(chosen));
    beside.title(
      chosen.node
        ? `${chosen.node.tenant} · ${chosen.node.class} ${chosen.node.kept}`
        : chosen.id === ALL
          ? "Everything"
          : `Tenant ${chosen.label}`,
    );
    const { answer } = shown;
    const part =
      answer.nodes.length < answer.total
        ? `The largest ${count(answer.nodes.length)} of ${count(answer.total)} nodes`
        : `All ${count(answer.total)} nodes`;
    const cut = sheet.element.hidden || answer.nodes.length <= ROWS ? "" : `; the table has the first ${count(ROWS)}`;
    say(
      note,
      `${part}, as of ${exact(shown.at, now.zone).slice(11, 19)}${cut}. The picture holds still while you point at it or move in it.`,
    );
  };
  const load = loader({
    panels: [holder],
    fetch: (now, signal) => api.get("tree", { limit: LIMIT, tenant: now.tenant }, { signal }),
    isEmpty: ({ nodes }) => (nodes.length ? false : NOTHING),
    show: (answer, now) => {
      Object.assign(shown, { answer, built: build(answer.nodes), at: Date.now() / 1000 });
      say(heading, finding(answer, count, tokens));
      beside.element.hidden = !answer.nodes.length;
      beside.state("ready");
      sheet.update(answer.nodes);
      draw(now);
    },
  });
  let asked;
  return {
    update: (now, { quiet } = {}) => {
      if (quiet && drawn.held() && holder.element.dataset.state === "ready") return;
      if (quiet || asked !== now.tenant || !shown.answer) {
        asked = now.tenant;
        load.load(now);
      } else draw(now);
    },
    destroy: () => {
      load.stop();
      drawn.destroy();
    },
  };
}

function fillCrumbs(crumbs, top) {
  const way = path(top);
  fill(
    crumbs,
    way
      .map((one, place) =>
        place === way.length - 1
          ? el("span", { "aria-current": "true" }, called(one))
          : [
              el(
                "button",
                {
                  type: "button",
                  class: "quiet",
                  onclick: () => state.set({ zoom: one.id === ALL ? null : one.id, node: one.id }),
                },
                called(one),
              ),
              el("span", { "aria-hidden": "true" }, "›"),
            ],
      )
      .flat(),
  );
}

const called = (one) =>
  one.node ? `${one.node.id.slice(0, 8)} (${si(one.weight)})` : `${one.label} (${si(one.weight)})`;

function fillLegend(legend, scale) {
  const kind = scale === "idle" ? "heat" : "left";
  fill(
    legend,
    el("li", {}, SWITCH[scale]),
    SCALES[scale].words.map((word, step) =>
      el("li", {}, el("span", { class: `swatch fill-${kind}-${step}`, "aria-hidden": "true" }), word),
    ),
    el("li", {}, el("span", { class: "swatch is-promised", "aria-hidden": "true" }), "promised"),
    el("li", {}, el("span", { class: "swatch is-leased", "aria-hidden": "true" }), "in use"),
  );
}

function detail(one) {
  const { node } = one;
  if (!node) {
    const leaves = one.children.length;
    return [
      el(
        "dl",
        { class: "pairs" },
        pairs([
          ["Tokens", tokens(one.weight)],
          [one.id === ALL ? "Tenants" : "Prompt beginnings", count(leaves)],
        ]),
      ),
      el("p", { class: "note below" }, "Choose a stretch to see whose it is, how it is kept and how long it has left."),
    ];
  }
  return el(
    "dl",
    { class: "pairs" },
    pairs([
      ["Tenant", node.tenant],
      ["Model", node.model],
      ["Class", node.class],
      ["Kept", node.kept],
      ["Left", node.left_s < 0 ? "past its deadline, in use" : duration(node.left_s)],
      ["Idle", duration(node.idle_s)],
      ["Age", duration(node.age_s)],
      ["Reads", count(node.reads)],
      ["In use by", `${count(node.leases)} ${node.leases === 1 ? "request" : "requests"}`],
      ["Own tokens", count(node.tokens)],
      ["With all below", count(node.subtree_tokens)],
      ["Begins at token", count(node.start)],
      ["Continued by", `${count(one.children.length)} shown`],
      ["Hash", el("code", { title: node.id }, node.id.slice(0, 16))],
    ]),
  );
}

const pairs = (told) => told.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value ?? UNKNOWN)]);

function rows(onpick) {
  const span = (key, label) => ({ key, label, number: true, format: duration });
  const amount = (key, label) => ({ key, label, number: true, format: count });
  const made = table({
    caption: "Nodes of the tree",
    onrow: ({ id }) => onpick(id),
    sort: { key: "subtree_tokens", down: true },
    columns: [
      { key: "id", label: "Hash", format: (id) => el("code", {}, id.slice(0, 8)) },
      { key: "tenant", label: "Tenant" },
      { key: "class", label: "Class" },
      { key: "kept", label: "Kept" },
      amount("start", "Begins at"),
      amount("tokens", "Own tokens"),
      amount("subtree_tokens", "With all below"),
      span("left_s", "Left"),
      span("idle_s", "Idle"),
      span("age_s", "Age"),
      amount("reads", "Reads"),
      amount("leases", "In use by"),
    ],
  });
  made.element.classList.add("tree-table");
  return { element: made.element, update: (nodes) => made.update(nodes.slice(0, ROWS)) };
}
