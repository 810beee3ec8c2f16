/**
 * The bar on top: range, filters, zone, theme, and whether the live stream is open. Every view obeys it.
 */

import { clock, exact } from "./format.js";
import { themed } from "./paint.js";
import * as state from "./state.js";
import { el, fill, modal, say, unique } from "./ui.js";

const RANGES = { "-15m": "Last 15 min", "-1h": "Last hour", "-6h": "Last 6 hours", "-24h": "Last 24 hours", "-7d": "Last 7 days", "-30d": "Last 30 days" };
const NAMES = { tenant: "tenants", model: "models", key: "keys", upstream: "upstreams", api: "APIs" };
const THEMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

/** Fill the bar; gives {about(answer), link({open, since}), update(state), focus()}. */
export function bar(root, { onkeys }) {
  const range = el("select", { "aria-label": "Range", onchange: () => chooseRange(range.value) });
  const back = el("button", { type: "button", class: "quiet", title: "Back to the range before (z)", hidden: true, onclick: state.unzoom }, "Back");
  const selects = Object.fromEntries(Object.keys(NAMES).map((name) => [name, filter(name)]));
  const summary = el("summary", {}, "Filter");
  const filters = el("details", { class: "filters" }, summary, el("div", { class: "selects" }, Object.values(selects)));
  const zone = el("button", { type: "button", class: "quiet", title: "Times in UTC or in your zone", onclick: () => state.set({ zone: state.get().zone === "utc" ? "local" : "utc" }, { replace: true }) });
  const theme = el("button", { type: "button", class: "quiet", onclick: nextTheme });
  const link = el("span", { class: "link", role: "status" }, "connecting");
  const keys = el("button", { type: "button", class: "quiet for-keys", "aria-label": "Keys", title: "All keys (?)", onclick: onkeys }, "?");
  root.append(range, back, filters, el("span", { class: "spring" }), link, zone, theme, keys);

  const wide = matchMedia("(min-width: 761px)");
  const unfold = () => { filters.open = wide.matches; };
  wide.addEventListener("change", unfold);
  unfold();

  const update = (now) => {
    fillRange(range, now);
    back.hidden = state.isRelative(now);
    for (const [name, select] of Object.entries(selects)) choose(select, now[name] ?? "");
    const set = Object.keys(state.filters(now)).length;
    say(summary, set ? `Filter (${set})` : "Filter");
    say(zone, now.zone === "utc" ? "UTC" : "Local");
    paint(theme, now.theme);
  };
  update(state.get());
  return {
    update,
    focus: () => { filters.open = true; selects.tenant.focus(); },
    about: (answer) => {
      for (const [name, select] of Object.entries(selects)) offer(select, name, answer[`${name}s`] ?? []);
      update(state.get());
    },
    link: ({ open, since }) => {
      link.dataset.open = String(open);
      link.title = exact(since, state.get().zone);
      say(link, open ? "live" : `no live data since ${clock(since, state.get().zone)}`);
    },
  };
}

/** Go to the next theme: as the system, light, dark. */
export function nextTheme() {
  const names = Object.keys(THEMES);
  const theme = names[(names.indexOf(state.get().theme) + 1) % names.length];
  localStorage.setItem("keepwarm-theme", theme);
  state.set({ theme }, { replace: true });
}

function paint(button, theme) {
  say(button, { auto: "Auto", light: "Light", dark: "Dark" }[theme] ?? "Auto");
  button.title = `${THEMES[theme] ?? THEMES.auto} (l)`;
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  themed();
}

function filter(name) {
  const select = el("select", { "aria-label": `Which ${NAMES[name]}`, dataset: { name }, onchange: () => state.set({ [name]: select.value || null }) });
  offer(select, name, []);
  return select;
}

function offer(select, name, values) {
  const chosen = state.get()[name];
  const all = chosen && !values.includes(chosen) ? [...values, chosen] : values;
  fill(select, el("option", { value: "" }, `All ${NAMES[name]}`), all.map((value) => el("option", { value }, value)));
  select.hidden = all.length < 2 && !chosen;
}

function choose(select, value) {
  if (value && ![...select.options].some((option) => option.value === value)) offer(select, select.dataset.name, [value]);
  select.value = value;
  select.hidden = select.options.length < 3 && !value;
}

function fillRange(select, now) {
  const named = now.to === "now" && RANGES[now.from];
  const options = Object.entries(RANGES).map(([value, label]) => el("option", { value }, label));
  const own = named ? [] : [el("option", { value: "own" }, told(now))];
  fill(select, own, options, el("option", { value: "choose" }, "Choose …"));
  select.value = named ? now.from : "own";
}

function told({ from, to, zone }) {
  const word = (moment) => (/^\d/.test(moment) && Number.isFinite(Number(moment)) ? exact(Number(moment), zone).slice(5, 16) : moment);
  return `${word(from)} to ${word(to)}`;
}

function chooseRange(value) {
  if (value === "choose") ask();
  else if (value !== "own") state.set({ from: value, to: "now" });
}

/** Ask for a range of one's own. */
function ask() {
  const { dialog, content } = modal("Choose a range");
  const field = (label) => {
    const input = el("input", { type: "datetime-local", step: "60", id: unique("at") });
    content.append(el("label", { class: "field" }, label, input));
    return input;
  };
  const [from, to] = [field("From"), field("To")];
  const problem = el("p", { class: "broken", role: "alert" });
  const go = () => {
    const [start, end] = [seconds(from.value), seconds(to.value)];
    if (!(start < end)) return say(problem, "From must be before To.");
    dialog.close();
    return state.set({ from: String(start), to: String(end) });
  };
  content.append(problem, el("footer", {}, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), el("button", { type: "button", class: "main", onclick: go }, "Show")));
  dialog.addEventListener("close", () => fillRange(document.querySelector("#bar select"), state.get()));
}

const seconds = (text) => new Date(state.get().zone === "utc" ? `${text}Z` : text).getTime() / 1000;
