/**
 * The page: which view is open, when it is drawn again, the keys, the key. Views are modules of `views/` that export
 * `title` and `mount(root, context)` → {update(state, {quiet}), destroy()}.
 *
 * context = {about(), events(state, signal), on(event, hearer), announce(text), refresh()}. A view is updated when the
 * state changes, when something happens while the range ends now, and every 10 seconds besides, never in a hidden tab.
 */

import * as api from "./api.js";
import { bar, nextTheme } from "./bar.js";
import * as state from "./state.js";
import { el, empty, fill, icon, modal, say } from "./ui.js";

const VIEWS = [
  { name: "overview", label: "Overview", letter: "o" },
  { name: "tokens", label: "Tokens", letter: "t" },
  { name: "misses", label: "Misses", letter: "m" },
  { name: "retention", label: "Retention", letter: "r" },
  { name: "requests", label: "Requests", letter: "q" },
  { name: "tree", label: "Tree", letter: "e" },
  { name: "fleet", label: "Fleet", letter: "f" },
];
const KEYS = [
  ["1 … 7, or g and a letter", `Views: ${VIEWS.map(({ label, letter }) => `${letter} ${label.toLowerCase()}`).join(", ")}`],
  ["/", "To the filters"], ["z", "Back to the range before a zoom"], ["d", "All definitions of this view, there and away"],
  ["l", "Light, dark, as the system"], ["u", "UTC or local time"], ["Tab", "To the next chart or control"],
  ["← →", "On a chart: along the time axis"], ["t", "On a chart: the same data as a table"], ["c", "On a chart: the same data as CSV"],
  ["?", "These keys"], ["Esc", "Close what is open"],
];
const EVERY_S = 10;
const SOON_MS = 2000;

const main = document.getElementById("main");
let about = null;
let open = null; // {name, view}
let opening = 0;
let marks = []; // events last heard of
let soon = null;
let led = false; // whether `g` was the last key

const context = {
  about: () => about,
  events: eventsOf,
  on: api.on,
  announce: (text) => say(document.getElementById("aloud"), text),
  refresh: () => draw(),
};

const top = bar(document.getElementById("bar"), { onkeys: showKeys });
const links = nav(document.querySelector("#nav ul"));

function nav(list) {
  return VIEWS.map(({ name, label, letter }, place) => {
    const link = el("a", { href: state.href({ view: name }), title: `${label} (${place + 1}, or g ${letter})` }, icon(name), el("span", {}, label));
    list.append(el("li", {}, link));
    return { name, link };
  });
}

/** Open the view of a state, unless it is open. */
async function show(now) {
  for (const { name, link } of links) {
    link.href = state.href({ view: name });
    if (name === now.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  top.update(now);
  if (open?.name === now.view) return draw(false);
  const mine = (opening += 1);
  open?.view?.destroy();
  open = { name: now.view, view: null };
  const found = VIEWS.find(({ name }) => name === now.view);
  const made = await (found ? import(`./views/${found.name}.js`) : Promise.reject(new Error("unknown"))).catch(() => null);
  if (mine !== opening) return undefined;
  document.title = `${made?.title ?? "Nothing here"} · Keepwarm`;
  const root = el("div", { class: `view view-${now.view}` });
  fill(main, root);
  if (!made) return root.append(empty({ say: `There is no view ${now.view}.` }));
  open.view = made.mount(root, context);
  return draw(false);
}

/** Let the view that is open fetch and draw again. */
function draw(quiet = true) {
  clearTimeout(soon);
  soon = null;
  if (!document.hidden) open?.view?.update(state.get(), { quiet });
}

function drawSoon() {
  if (soon === null && state.get().to === "now") soon = setTimeout(draw, SOON_MS);
}

/** The events of a state's range, for marks on time axes; what was last known when they cannot be had. */
async function eventsOf(now, signal) {
  try {
    marks = (await api.get("events", { from: now.from, to: now.to }, { signal })).events;
  } catch (error) {
    if (!(error instanceof api.ApiError)) throw error;
  }
  return marks;
}

async function learn() {
  try {
    about = await api.get("about");
    top.about(about);
    draw();
  } catch (error) {
    if (!(error instanceof api.ApiError)) throw error;
    setTimeout(learn, EVERY_S * 1000);
  }
}

// ---- the admin key ----

api.onUnauthorized(() => new Promise((give) => {
  const { dialog, content } = modal("This gateway asks for its admin key");
  const input = el("input", { type: "password", autocomplete: "off", "aria-label": "Admin key" });
  const enter = () => { if (input.value) dialog.close(input.value); };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
  dialog.addEventListener("close", () => give(dialog.returnValue || null));
  content.append(el("p", { class: "note" }, "It is kept for this tab alone, until the tab is closed."), input,
    el("footer", {}, el("button", { type: "button", class: "main", onclick: enter }, "Go on")));
  input.focus();
}));

// ---- keys ----

function showKeys() {
  const { content } = modal("Keys");
  content.append(el("dl", { class: "keys" }, KEYS.flatMap(([key, told]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, told)])));
}

const ACTIONS = {
  "?": showKeys,
  "/": () => top.focus(),
  z: () => state.unzoom(),
  d: () => document.body.toggleAttribute("data-definitions"),
  l: nextTheme,
  u: () => state.set({ zone: state.get().zone === "utc" ? "local" : "utc" }, { replace: true }),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select")) return;
  const view = led ? VIEWS.find(({ letter }) => letter === event.key) : VIEWS[Number(event.key) - 1];
  led = !led && event.key === "g";
  const act = view ? () => state.set({ view: view.name }) : ACTIONS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

// ---- begin ----

const kept = localStorage.getItem("keepwarm-theme");
if (kept && state.get().theme === "auto") state.set({ theme: kept }, { replace: true });
state.subscribe((now, before) => {
  if (now.view !== before.view) main.focus({ preventScroll: true });
  show(now);
});
api.on("link", top.link);
api.on("request", drawSoon);
api.on("change", drawSoon);
document.addEventListener("visibilitychange", () => draw());
setInterval(() => { if (state.get().to === "now") draw(); }, EVERY_S * 1000);
show(state.get());
learn();
api.live();
