/**
 * The parts that views are built of: elements, panels with their four states, numbers with definitions, tables, and the
 * dialog by which something is done.
 *
 * Rules: text goes in as text, never as markup; nothing moves what stands below it when data arrives; whatever can be
 * pointed at can be reached by the keyboard.
 */

import { UNKNOWN, exact, when } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
let serial = 0;

/** A name that no other element has. */
export const unique = (word) => `${word}-${(serial += 1)}`;

/** Make an element: el("p", {class: "note", onclick: f, dataset: {…}, style: {…}}, "text", other). */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) give(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function give(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "class") element.className = value;
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name === "style") for (const [key, said] of Object.entries(value)) element.style.setProperty(key, said);
  else element.setAttribute(name, value === true ? "" : value);
}

/** Put other children in an element, only when they are others. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set an element's text only when it changes, so that selections and screen readers are left in peace. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  return element;
}

const ICONS = {
  overview: "M2 12.5 6 8l3 3 5-7M2 2v12h12",
  tokens: "M2 14V9l4-3 4 2 4-5v11zM2 11l4-2 4 1.5 4-3",
  misses: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM3.8 3.8l8.4 8.4",
  retention: "M4 2h8M4 14h8M5 2c0 4 6 4 6 12M11 2c0 4-6 4-6 12",
  requests: "M2 4h12M2 8h12M2 12h8",
  tree: "M2 2h12v3H2zM2 6.5h7v3H2zM10.5 6.5H14v3h-3.5zM2 11h3.5v3H2zM7 11h2v3H7z",
  fleet: "M8 1.5v3M8 4.5 3 9.5M8 4.5l5 5M8 4.5v5M1.5 9.5h3v4h-3zM6.5 9.5h3v4h-3zM11.5 9.5h3v4h-3z",
  table: "M2 3h12v10H2zM2 6.5h12M6.5 3v10",
  download: "M8 2v8M4.5 7 8 10.5 11.5 7M2 13.5h12",
  alarm: "M8 2 1.5 13.5h13zM8 6.5v3.5M8 11.8v.2",
  advice: "M5.5 10.5a4 4 0 1 1 5 0V12h-5zM6 14h4",
  good: "M2.5 8.5 6 12l7.5-8",
  keys: "M1.5 4h13v8h-13zM4 7h.01M7 7h.01M10 7h.01M12 7h.01M5 9.8h6",
};

/** A line drawing of 16 by 16. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" })) {
    svg.setAttribute(key, value);
  }
  path.setAttribute("d", ICONS[name] ?? ICONS.overview);
  svg.append(path);
  return svg;
}

/**
 * A `?` that tells a number's definition on hover, on focus, and all of them at once with the key `d`.
 * definition = {text, formula, metric}.
 */
export function what(definition) {
  const id = unique("what");
  const told = el("span", { class: "definition", id, role: "tooltip" }, definition.text,
    definition.formula && el("span", { class: "formula" }, definition.formula),
    definition.metric && el("code", {}, definition.metric));
  const button = el("button", { type: "button", class: "what-button", "aria-label": "What this is", "aria-describedby": id }, "?");
  const holder = el("span", { class: "what" }, button, told);
  const place = () => {
    told.classList.remove("left");
    if (told.getBoundingClientRect().right > document.documentElement.clientWidth - 8) told.classList.add("left");
  };
  holder.addEventListener("pointerenter", place);
  button.addEventListener("focus", place);
  button.addEventListener("keydown", (event) => { if (event.key === "Escape") button.blur(); });
  return holder;
}

/** One number with its label and definition; update({value, note, title, kind}). `kind` is a colour's name. */
export function number({ label, definition, kind = null }) {
  const value = el("span", { class: "value" }, UNKNOWN);
  const note = el("span", { class: "note" }, "\u00a0");
  const element = el("div", { class: `number${kind ? ` is-${kind}` : ""}` },
    el("span", { class: "label" }, kind && swatch(kind), label, definition && what(definition)), value, note);
  const update = (told) => {
    say(value, told.value);
    value.classList.toggle("long", told.value.length > 10);
    say(note, told.note || "\u00a0");
    value.title = told.title ?? "";
  };
  return { element, update };
}

/** A moment as "3 min ago", its exact time on hover. */
export const moment = (at, now, zone) => el("time", { title: exact(at, zone), datetime: at ? new Date(at * 1000).toISOString() : null }, when(at, now));

/** A key to a colour: a swatch of the same fill as in the charts. */
export const swatch = (kind) => el("span", { class: `swatch fill-${kind}`, "aria-hidden": "true" });

/** A key to a line: as it is drawn, dashes and weight. */
export const dash = ({ color, dash: dashed, width = 2 }) => el("span", {
  class: "dash", "aria-hidden": "true", style: { "border-top": `${Math.max(1, width)}px ${dashed ? "dashed" : "solid"} var(${color})` },
});

/**
 * A panel: heading, actions, body, and its four states. `span` is how many of 12 columns it takes.
 * state("loading" | "ready" | "empty" | "broken", {say, command, error, retry}); a broken panel keeps what it showed.
 */
export function panel({ title, span = 12, definition = null, rows = null, actions = [] }) {
  const id = unique("panel");
  const heading = el("h2", { id }, title);
  const notice = el("div", { class: "notice", role: "status" });
  const body = el("div", { class: "body" });
  const element = el("section", { class: `panel span-${span}`, "aria-labelledby": id },
    el("header", {}, heading, definition && what(definition), el("span", { class: "actions" }, ...actions)), notice, body);
  if (rows) body.style.setProperty("min-height", `${rows * 8}px`);
  const state = (name, told = {}) => {
    element.dataset.state = name;
    element.setAttribute("aria-busy", String(name === "loading"));
    if (name === "empty") fill(notice, empty(told));
    else if (name === "broken") fill(notice, broken(told));
    else fill(notice);
    element.toggleAttribute("data-blank", name === "empty" || (name === "broken" && !told.since));
  };
  state("loading");
  return { element, body, heading, title: (text) => say(heading, text), state };
}

/** What to do to see something here. */
export const empty = ({ say: words, command = null, brief = false }) =>
  el("div", { class: "empty" }, el("p", {}, brief ? "Nothing in this range." : words), command && !brief && copyable(command));

/** Since when something is stale and why; the rest of the page stays usable. */
export const broken = ({ error, since, retry = null, zone, brief = false }) =>
  el("p", { class: "broken" }, icon("alarm"),
    `${since ? `Stale since ${exact(since, zone)}` : "Nothing to show yet"}${brief ? "." : `: ${error?.message ?? "no answer"}`}`,
    retry && !brief && el("button", { type: "button", onclick: retry }, "Try again"));

function copyable(command) {
  const button = el("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", () => navigator.clipboard?.writeText(command).then(() => say(button, "Copied")));
  return el("p", { class: "command" }, el("code", {}, command), button);
}

/**
 * Fetch for panels: they run through loading, ready, empty and broken together; the first says why. Only the newest
 * answer is shown.
 * load(state) → promise; `show(answer, state)` draws it; `isEmpty(answer)` → false, or {say, command}.
 */
export function loader({ panels, fetch, show, isEmpty = () => false }) {
  let running = null;
  let since = null;
  let last = null;
  const each = (name, told) => panels.forEach((one, place) => one.state(name, place ? { ...told, brief: true } : told));
  const load = async (state) => {
    running?.abort();
    const mine = (running = new AbortController());
    last = state;
    try {
      const answer = await fetch(state, mine.signal);
      if (mine.signal.aborted) return;
      since = Date.now() / 1000;
      const nothing = isEmpty(answer, state);
      each(nothing ? "empty" : "ready", nothing || {});
      show(answer, state);
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) return;
      if (!("status" in error)) throw error;
      each("broken", { error, since, retry: () => load(last), zone: state.zone });
    }
  };
  return { load, stop: () => running?.abort() };
}

/**
 * A table: columns = [{key, label, value(row), format(value), number, title(value)}]. update(rows); `onrow` makes rows
 * buttons; a click on a heading sorts.
 */
export function table({ columns, caption, onrow = null, sort = null }) {
  let rows = [];
  let by = sort;
  const value = (column, row) => (column.value ? column.value(row) : row[column.key]);
  const heads = columns.map((column) => {
    const button = el("button", { type: "button", onclick: () => order(column.key) }, column.label);
    return el("th", { scope: "col", class: column.number ? "num" : null, dataset: { key: column.key } }, button);
  });
  const body = el("tbody");
  const element = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, ...heads)), body));
  const order = (key) => {
    by = { key, down: by?.key === key ? !by.down : true };
    draw();
  };
  const draw = () => {
    const column = by && columns.find((one) => one.key === by.key);
    const shown = column ? [...rows].sort((a, b) => compare(value(column, a), value(column, b)) * (by.down ? -1 : 1)) : rows;
    for (const head of heads) {
      const sorted = head.dataset.key === by?.key;
      head.setAttribute("aria-sort", sorted ? (by.down ? "descending" : "ascending") : "none");
    }
    fill(body, shown.map((row) => line(row)));
  };
  const line = (row) => el("tr", onrow ? { class: "pick", tabindex: "0", onclick: () => onrow(row), onkeydown: (event) => { if (event.key === "Enter") onrow(row); } } : {},
    columns.map((column) => {
      const cell = value(column, row);
      const shown = column.format ? column.format(cell, row) : cell ?? UNKNOWN;
      return el("td", { class: column.number ? "num" : null, title: column.title?.(cell, row) }, shown);
    }));
  return { element, update: (next) => { rows = next; draw(); } };
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

/**
 * Do something in three steps: see what it would do, say yes, be told what was done and how to undo it.
 * preview() and confirm() → promise of a node or text; `typed` is a word that must be typed first.
 */
export function act({ title, preview, confirm, verb = "Do it", typed = null }) {
  const body = el("div", { class: "act-body", role: "status" }, el("p", { class: "note" }, "Looking at what it would do …"));
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const go = el("button", { type: "button", class: typed ? "danger" : "main", disabled: true }, verb);
  const word = typed && el("input", { type: "text", autocomplete: "off", spellcheck: "false", id: unique("typed") });
  const ask = typed && el("label", { class: "typed" }, "Type ", el("strong", {}, typed), " to go on ", word);
  const { dialog, content } = modal(title);
  content.append(body, ...(ask ? [ask] : []), el("footer", {}, cancel, go));
  const show = (told) => fill(body, typeof told === "string" ? el("p", {}, told) : told);
  const failed = (error) => show(el("p", { class: "broken" }, icon("alarm"), error.message));
  const ready = () => { go.disabled = Boolean(typed) && word.value !== typed; };
  preview().then((told) => { show(told); ready(); word?.addEventListener("input", ready); }, failed);
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      show(await confirm());
      ask?.remove();
      go.remove();
      say(cancel, "Close");
      cancel.focus();
    } catch (error) {
      failed(error);
      ready();
    }
  });
  return dialog;
}

/** A dialog that is open: {dialog, content}; it leaves the page when it is closed. */
export function modal(title) {
  const id = unique("dialog");
  const content = el("div", { class: "content" });
  const dialog = el("dialog", { "aria-labelledby": id }, el("h2", { id }, title), content);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, content };
}
