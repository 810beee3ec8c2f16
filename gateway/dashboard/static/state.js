/**
 * What is shown: one frozen object, kept in the URL's hash so that a link shows a colleague the same.
 *
 * Shared by all views are the range, the filters, the zone and the theme; whatever else a view puts there goes when
 * another view is opened.
 */

export const FILTERS = ["tenant", "key", "model", "upstream", "api"];
const SHARED = ["from", "to", ...FILTERS, "zone", "theme"];
const DEFAULTS = { view: "overview", from: "-1h", to: "now", zone: "local", theme: "auto" };

const listeners = new Set();
const ranges = []; // what was shown before each zoom, so that a double click returns
let current = read(globalThis.location?.hash ?? "");

/** The state of a hash such as "#/tokens?from=-6h". */
export function read(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const given = Object.fromEntries(new URLSearchParams(search));
  return Object.freeze({ ...DEFAULTS, ...given, view: path || DEFAULTS.view });
}

/** The hash of a state; what is as by default is left out. */
export function write(state) {
  const { view, ...rest } = state;
  const told = Object.entries(rest).filter(([name, value]) => value && value !== DEFAULTS[name]);
  const search = new URLSearchParams(told).toString();
  return `#/${view}${search ? `?${search}` : ""}`;
}

/** What is shown now. */
export const get = () => current;

/** The state with a change made to it; null or "" takes a field away. */
export function changed(patch, from = current) {
  const moved = patch.view && patch.view !== from.view;
  const kept = moved ? Object.fromEntries(SHARED.filter((name) => name in from).map((name) => [name, from[name]])) : from;
  const next = { ...DEFAULTS, ...kept, ...patch };
  for (const [name, value] of Object.entries(next)) if (value === null || value === "") delete next[name];
  return Object.freeze({ ...DEFAULTS, ...next });
}

/** The address of a change, for links. */
export const href = (patch) => write(changed(patch));

/** Change what is shown. `replace` leaves no step in the browser's history. */
export function set(patch, { replace = false } = {}) {
  const next = changed(patch);
  if (write(next) === write(current)) return;
  history[replace ? "replaceState" : "pushState"](null, "", write(next));
  tell(next);
}

/** Be told of every change, with the new and the old state; returns what ends that. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Show a part of the range: seconds since the epoch. */
export function zoom(from, to) {
  ranges.push({ from: current.from, to: current.to });
  set({ from: String(Math.floor(from)), to: String(Math.ceil(to)) });
}

/** Show what was shown before the last zoom. */
export function unzoom() {
  const before = ranges.pop() ?? (isRelative(current) ? null : { from: DEFAULTS.from, to: DEFAULTS.to });
  if (before) set(before);
}

/** Whether the range ends now, so that it moves on with the clock. */
export const isRelative = (state) => state.to === "now" && state.from.startsWith("-");

/** What every endpoint of data is asked with: the range and the filters that are set, and what the view adds. */
export function query(extra = {}, state = current) {
  const asked = { from: state.from, to: state.to };
  for (const name of FILTERS) if (state[name]) asked[name] = state[name];
  return { ...asked, ...extra };
}

/** The filters that are set, without the range. */
export const filters = (state = current) =>
  Object.fromEntries(FILTERS.filter((name) => state[name]).map((name) => [name, state[name]]));

function tell(next) {
  const before = current;
  current = next;
  for (const listener of [...listeners]) listener(next, before);
}

globalThis.addEventListener?.("hashchange", () => tell(read(location.hash)));
globalThis.addEventListener?.("popstate", () => {
  const next = read(location.hash);
  if (write(next) !== write(current)) tell(next);
});
