/**
 * Requests: the latest, narrowed by filters, and one of them beside the list. What comes live waits behind a button, so
 * that nothing jumps.
 */

import * as api from "../api.js";
import { UNKNOWN, count, exact, seconds, si, share } from "../format.js";
import * as state from "../state.js";
import { el, empty, fill, loader, panel, say, swatch } from "../ui.js";
import { outcome } from "./outcome.js";
import { detail } from "./request_detail.js";
import { accepts, mainReason, merged, strip } from "./request_layout.js";
import { kind, spoken, told } from "./reasons.js";
import { filters } from "./request_filters.js";

export const title = "Requests";
export const icon = "requests";

const PAGE = 100;
const WAITING = 500; // live requests kept behind the button
const NOTHING = {
  say: "No request came in this range. Send one, or play an hour of made-up traffic:",
  command: "keepwarm demo --traffic",
};

/** Build the view; gives {update(state, {quiet}), destroy()}. */
export function mount(root, context) {
  const view = { shown: [], waiting: [], next: null, asked: null, kept: 0 };
  const heading = el("h1", {}, title);
  const holder = panel({ title: "Latest requests", span: 7, rows: 40 });
  const more = el("button", { type: "button", class: "quiet fresh", disabled: true }, "up to date");
  const older = el("button", { type: "button", hidden: true }, `Show ${PAGE} older`);
  const chosen = filters();
  const rows = list((id) => state.set({ request: id }, { replace: Boolean(state.get().request) }));
  const one = detail(context, () => state.set({ request: null }));
  const nothing = el("div", { class: "none" });
  holder.element.querySelector(".actions").append(more);
  holder.element.querySelector("header").after(chosen.element);
  holder.body.append(rows.element, nothing, older);
  root.append(heading, holder.element, one.panel.element);

  const wanted = (now) => view.shown.filter((request) => accepts(request, now));
  const draw = (now) => {
    const seen = wanted(now);
    rows.update(seen, now);
    say(heading, finding(seen));
    older.hidden = !view.next;
    const none = !seen.length && view.shown.length > 0;
    fill(
      nothing,
      none &&
        empty({ say: `None of the ${count(view.shown.length)} requests that are here has so many prompt tokens.` }),
    );
    fresh(now);
    choose(now, seen);
  };
  const choose = (now, seen) => {
    const id = now.request ?? view.asked ?? seen[0]?.id ?? null;
    view.asked ??= id;
    root.toggleAttribute("data-open", Boolean(now.request));
    rows.mark(id);
    one.show(view.shown.find((request) => request.id === id) ?? null, id, now);
  };
  const fresh = (now) => {
    const come = view.waiting.filter((request) => accepts(request, now));
    say(
      more,
      come.length ? `${come.length === WAITING ? `over ${count(WAITING)}` : count(come.length)} new` : "up to date",
    );
    more.disabled = !come.length;
    more.hidden = now.to !== "now";
  };
  more.addEventListener("click", () => {
    view.shown = merged(
      view.waiting.filter((request) => accepts(request, state.get())),
      view.shown,
    );
    view.waiting = [];
    holder.state(view.shown.length ? "ready" : "empty", NOTHING);
    draw(state.get());
    rows.first();
  });
  const ask = (now, before, signal) =>
    api.get("requests", state.query({ limit: PAGE, before, outcome: now.outcome, reason: now.reason }, now), {
      signal,
    });
  const load = loader({
    panels: [holder],
    fetch: (now, signal) => ask(now, null, signal),
    isEmpty: ({ requests }, now) =>
      requests.length ? false : narrowed(now) ? { say: "No request of this range fits these filters." } : NOTHING,
    show: ({ requests, next }, now) => {
      Object.assign(view, { shown: requests, waiting: [], next, asked: null });
      draw(now);
    },
  });
  older.addEventListener("click", async () => {
    older.disabled = true;
    try {
      const answer = await ask(state.get(), view.next);
      Object.assign(view, { shown: merged([], [...view.shown, ...answer.requests]), next: answer.next });
      draw(state.get());
    } catch (error) {
      if (!("status" in error)) throw error;
      holder.state("broken", { error, since: error.at, zone: state.get().zone });
    }
    older.disabled = false;
  });
  const off = api.on("request", (request) => {
    if (state.get().to !== "now") return;
    view.waiting = merged([request], view.waiting).slice(0, WAITING);
    fresh(state.get());
  });
  let last = null;
  one.show(null, null, state.get());
  return {
    update: (now, { quiet } = {}) => {
      chosen.update(now, context.about());
      if (quiet && holder.element.dataset.state === "ready") return;
      const key = asking(now);
      if (key === last && holder.element.dataset.state === "ready") return draw(now);
      last = key;
      load.load(now);
    },
    destroy: () => {
      off();
      load.stop();
      one.destroy();
    },
  };
}

const asking = (now) => JSON.stringify([state.query({}, now), now.outcome, now.reason]);
const narrowed = (now) => Boolean(now.outcome || now.reason || Object.keys(state.filters(now)).length);

function finding(seen) {
  if (!seen.length) return title;
  const failed = seen.filter(({ outcome }) => outcome === "failed").length;
  const many = `${count(seen.length)} ${seen.length === 1 ? "request" : "requests"}`;
  if (failed) return `${count(failed)} of the latest ${many} failed`;
  const prompt = seen.reduce((all, request) => all + (request.prompt ?? 0), 0);
  const read = seen.reduce((all, request) => all + (request.read ?? 0), 0);
  return prompt
    ? `The latest ${many} read ${share(read, prompt, seen.length)} of their prompt tokens`
    : `The latest ${many}`;
}

/** The list: rows are kept by id, so that focus and place stay when others are added. */
function list(onpick) {
  const heads = ["Time", "Outcome", "Tenant", "Prompt", "Tokens", "Read", "Missed most by", "First token"];
  const numeric = new Set(["Tokens", "Read", "First token"]);
  const body = el("tbody");
  const element = el(
    "div",
    { class: "table requests" },
    el(
      "table",
      {},
      el("caption", { class: "hidden" }, "Requests, newest first; arrow keys move, Enter shows one"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) =>
            el(
              "th",
              {
                scope: "col",
                class: numeric.has(head) ? "num" : null,
                dataset: { key: head.toLowerCase().replaceAll(" ", "-") },
              },
              head,
            ),
          ),
        ),
      ),
      body,
    ),
  );
  let kept = new Map();
  let drawn = "";
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const to = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[event.key];
    if (event.key === "Enter" && row) onpick(row.dataset.id);
    if (to) to.focus();
    if (to || event.key === "Enter") event.preventDefault();
  });
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) onpick(row.dataset.id);
  });
  return {
    element,
    update: (requests, now) => {
      if (drawn !== now.zone) kept = new Map();
      drawn = now.zone;
      const next = new Map(requests.map((request) => [request.id, kept.get(request.id) ?? line(request, now.zone)]));
      if ([...next.keys()].join() !== [...body.children].map((row) => row.dataset.id).join())
        fill(body, [...next.values()]);
      kept = next;
    },
    mark: (id) => {
      for (const [own, row] of kept) {
        if (own === id) row.setAttribute("aria-current", "true");
        else row.removeAttribute("aria-current");
      }
    },
    first: () => body.firstElementChild?.focus({ preventScroll: true }),
  };
}

function line(request, zone) {
  const reason = mainReason(request);
  const cell = (key, shown, given = {}) => el("td", { dataset: { key }, ...given }, shown);
  return el(
    "tr",
    { class: "pick", tabindex: "0", dataset: { id: request.id } },
    cell(
      "time",
      el(
        "time",
        { datetime: new Date(request.at * 1000).toISOString(), title: exact(request.at, zone) },
        stamp(request.at, zone),
      ),
    ),
    cell("outcome", outcome(request)),
    cell("tenant", request.tenant, { title: `${request.key ?? UNKNOWN} · ${request.model} · ${request.api}` }),
    cell("prompt", mini(request)),
    cell("tokens", si(request.prompt), { class: "num", title: count(request.prompt) }),
    cell("read", request.prompt ? `${((100 * request.read) / request.prompt).toFixed(1)}\u202f%` : UNKNOWN, {
      class: "num",
      title: `${count(request.read)} of ${count(request.prompt)} tokens`,
    }),
    cell(
      "missed-most-by",
      reason ? [swatch(kind(reason)), spoken(reason)] : request.prompt === null ? UNKNOWN : "nothing",
      { title: reason ? told(reason) : null },
    ),
    cell("first-token", seconds(request.first_token_s), { class: "num" }),
  );
}

/** "14:05:09", with its day when that is not today. */
function stamp(at, zone) {
  const said = exact(at, zone);
  return said.slice(0, 10) === exact(Date.now() / 1000, zone).slice(0, 10) ? said.slice(11, 19) : said.slice(5, 19);
}

function mini(request) {
  const { parts } = strip(request);
  const told = parts.map((part) => `${part.kind} ${count(part.tokens)}`).join(", ");
  return el(
    "span",
    { class: "mini", role: "img", "aria-label": told || "not known" },
    parts.map((part) =>
      el("span", {
        class: `part fill-${part.kind === "write" ? "write-2" : part.kind}`,
        style: { width: `${100 * part.width}%` },
      }),
    ),
  );
}
