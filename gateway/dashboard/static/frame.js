/**
 * What stands around every chart: the canvas's place, labels, marks and the box that hovering shows, the table beside
 * it, the file, the summary for screen readers, and the keys.
 */

import { exact } from "./format.js";
import * as state from "./state.js";
import { save } from "./api.js";
import { el, fill, icon, say, unique } from "./ui.js";

export const MARKS = { start: "▲", restart: "↻", policy: "◆", purge: "✕", deploy: "●", alert: "!" };
const APART = 10; // pixels below which marks are told together

/** Build it. table() → {head, rows, shown}; csv() → whether there is something to keep; role "group" where it has buttons. */
export function frame({ name, height, table, csv, role = "img" }) {
  const id = unique("chart");
  const canvas = el("div", { class: "canvas" });
  const over = el("div", { class: "over", "aria-hidden": "true" });
  const marks = el("div", { class: "marks" });
  const tip = el("div", { class: "tip", hidden: true });
  const sheet = el("div", { class: "sheet", hidden: true, tabindex: "0", role: "region", "aria-label": `${name}, as a table` });
  const words = el("figcaption", { class: "hidden", id });
  const stage = el("div", { class: "stage", tabindex: "0", role, "aria-label": `Chart: ${name}`, "aria-describedby": id }, canvas, over, tip);
  const element = el("figure", { class: "chart" }, stage, marks, sheet, words);
  if (height) stage.style.setProperty("height", `${height}px`);
  let plot = null;
  let sized = () => {};

  const toggle = () => {
    const open = sheet.hidden;
    if (open && height) sheet.style.setProperty("height", `${stage.offsetHeight + marks.offsetHeight}px`);
    sheet.hidden = !open;
    stage.hidden = marks.hidden = open;
    button.setAttribute("aria-pressed", String(open));
    refresh();
    (open ? sheet : stage).focus();
  };
  const keep = () => {
    const { head, rows } = table();
    save([head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n"), `keepwarm-${name.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.csv`);
  };
  const button = el("button", { type: "button", class: "quiet", "aria-pressed": "false", "aria-label": `${name} as a table`, title: "The same data as a table (t)", onclick: toggle }, icon("table"));
  const file = el("button", { type: "button", class: "quiet", "aria-label": `Download ${name} as CSV`, title: "Download as CSV (c)", onclick: keep }, icon("download"));
  const refresh = () => {
    file.disabled = !csv();
    if (sheet.hidden) return;
    const { head, shown } = table();
    fill(sheet, el("table", {}, el("thead", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, shown.toReversed().map((row) => el("tr", {}, row.map((value, place) => el(place ? "td" : "th", place ? { class: "num" } : { scope: "row" }, value)))))));
  };
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "t") toggle();
    else if (event.key === "c" && csv()) keep();
    else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && plot && !stage.hidden) step(event.key === "ArrowRight" ? 1 : -1);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  let pointed = false;
  stage.addEventListener("pointerenter", () => { pointed = true; });
  stage.addEventListener("pointerleave", () => { pointed = false; tip.hidden = true; });
  stage.addEventListener("blur", () => hide());
  const hide = () => { tip.hidden = true; plot?.setCursor({ left: -10, top: -10 }); };
  const step = (by) => {
    const columns = plot.data[0];
    if (!columns.length) return;
    const now = plot.cursor.left >= 0 ? plot.posToIdx(plot.cursor.left) : by > 0 ? -1 : columns.length;
    const next = Math.min(columns.length - 1, Math.max(0, now + by));
    const wide = plot.series[1]?.paths && plot.scales.x.time === false ? 0.5 : 0;
    plot.setCursor({ left: plot.valToPos(columns[next] + wide, "x") + 0.01, top: 10 });
  };
  const resize = () => { if (!stage.hidden) sized(Math.floor(stage.clientWidth)); };
  const observer = new ResizeObserver(resize);
  observer.observe(stage);

  return {
    element, canvas, refresh, resize, actions: [button, file],
    onsize: (listener) => { sized = listener; },
    plot: (made) => { plot = made; },
    say: (text) => say(words, text),
    legend: (series, key) => {
      const legend = el("ul", { class: "legend", hidden: true }, series.filter((one) => !one.quiet).map((one) => el("li", {}, key(one), one.label)));
      element.insertBefore(legend, sheet);
      return legend;
    },
    tip: (u, content) => {
      const focused = document.activeElement === stage;
      tip.hidden = !u || !(pointed || focused);
      if (tip.hidden) return;
      fill(tip, content);
      const left = u.cursor.left + u.bbox.left / devicePixelRatio;
      const side = left > u.width / 2;
      tip.style.setProperty("left", side ? "auto" : `${left + 12}px`);
      tip.style.setProperty("right", side ? `${stage.clientWidth - left + 12}px` : "auto");
    },
    labels: (wanted, u) => {
      const left = (u.bbox.left + u.bbox.width) / devicePixelRatio + 6;
      const top = u.bbox.top / devicePixelRatio;
      fill(over, wanted.map(({ text, color, y }) => el("span", { class: "label", style: { left: `${left}px`, top: `${top + y}px`, color: `var(${color}-text, var(${color}))` } }, text)));
    },
    rules: (wanted) => fill(over, wanted.map(({ x, label }) => el("span", { class: "rule", style: { left: `${x}px` } }, label))),
    marks: (u, events) => {
      const left = u.bbox.left / devicePixelRatio;
      const { min, max } = u.scales.x;
      const shown = (events ?? []).filter((one) => one.at >= min && one.at <= max).map((one) => ({ ...one, x: left + u.valToPos(one.at, "x") }));
      fill(marks, heaped(shown).map(mark));
    },
    destroy: () => observer.disconnect(),
  };
}

/** Marks that would lie on each other, together. */
function heaped(events) {
  const heaps = [];
  for (const one of [...events].sort((a, b) => a.x - b.x)) {
    const last = heaps.at(-1);
    if (last && one.x - last.at(-1).x < APART) last.push(one);
    else heaps.push([one]);
  }
  return heaps;
}

/** One mark, or how many lie here; all of them are told. */
function mark(heap) {
  const zone = state.get().zone;
  const alert = heap.some((one) => one.kind === "alert");
  return el("button", {
    type: "button", class: `mark is-${alert ? "alert" : heap[0].kind}`, style: { left: `${heap[0].x}px` },
    title: heap.map((one) => `${one.title}\n${exact(one.at, zone)}`).join("\n\n"),
    "aria-label": heap.map((one) => `${one.kind}: ${one.title}, ${exact(one.at, zone)}`).join("; "),
  }, heap.length > 1 ? String(heap.length) : MARKS[heap[0].kind] ?? "•");
}

/** One field of a CSV line. Text that a spreadsheet would take for a formula is told as text. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
