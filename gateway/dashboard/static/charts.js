/**
 * Charts: lines(), stacked(), histogram(), bars(). Each gives {element, actions, update(data), destroy()}.
 *
 * `actions` are the buttons for a panel's head: the same data as a table (key `t` on the chart) and as CSV (key `c`).
 * Over time: hovering, or ← and → on the chart, shows all series at that time; dragging shows less of the range for the
 * whole page, and a double click returns; marks of events stand on the time axis.
 * A chart's name and its words go to screen readers as a summary.
 */

import { between, count, duration, short, si, tick } from "./format.js";
import {
  GUTTER, MARGIN, axis, binSheet, closed, decades, drawn, ends, filling, key, places, plumb, powers, roomy, rule, sheet, span,
  stroke, sums, ticks, told, zoned,
} from "./draw.js";
import { frame } from "./frame.js";
import { ink, onRepaint } from "./paint.js";
import * as state from "./state.js";
import { dash, el, fill } from "./ui.js";
import { summary } from "./words.js";

const NARROW = 264; // pixels of plot below which labels stand under the chart instead of beside it

/**
 * Lines over time. series = [{key, label, color: "--read", dash, width}], bands = [{upper, lower, color}] between two
 * series. update({times, values: {key: [...]}, marks: [EVENT], step}).
 */
export const lines = (options) => overTime({ ...options, stack: false });

/** Parts of a whole over time, lowest first. `hatched` fills with lines. update as for lines(), values not summed up. */
export const stacked = (options) => overTime({ ...options, stack: true });

function overTime({
  name, format, series, bands = [], stack, height = 184, max = null, log = false, signed = false, ceiling = null, margin = MARGIN,
  labelled = true, formatAxis = format === si ? short : format,
}) {
  let data = { times: [], values: {}, marks: [], step: 60 };
  let plot = null;
  let mine = false;
  const holder = frame({ name, height, table: () => sheet(data, series, format), csv: () => data.times.length > 0 });
  const legend = holder.legend(series, stack ? key : dash);

  const beside = (wide) => !labelled || wide - GUTTER - margin >= NARROW;
  const shown = () => [stack ? closed(data) : data.times, ...drawn(series, data, stack)];
  const options = (width) => ({
    width,
    height,
    tzDate: (at) => zoned(at),
    padding: [10, labelled && beside(width) ? margin : 16, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      points: { size: 7, width: 2 },
      sync: { key: "time", setSeries: false },
      bind: {
        mousedown: (_, __, handle) => (event) => { mine = true; return handle(event); },
        dblclick: () => () => { state.unzoom(); return null; },
      },
    },
    select: { show: true },
    scales: { x: { time: true, range: () => ends(data) }, y: log ? { distr: 3, range: (_, low, top) => decades(low, top) } : { range: (_, low, top) => [signed && low < 0 ? low * 1.1 : 0, max ?? roomy(ceiling?.() ?? top)] } },
    axes: [axis({ values: (_, splits, ___, ____, step) => splits.map((at) => tick(at, step, state.get().zone)), space: 64, size: 28 }),
      axis({ values: (_, splits) => splits.map((value) => (value === null ? null : formatAxis(value))), size: GUTTER, space: 36, grid: true, ...(log ? { splits: (_, __, low, top) => powers(low, top), filter: (_, splits) => splits } : {}) })],
    series: [{}, ...series.map((one) => stroke(one, stack))],
    bands: stack ? series.slice(1).map((_, place) => ({ series: [place + 2, place + 1] })) : bands.map((band) => filling(band, series)),
    hooks: { draw: [(u) => { plumb(u, data.marks); holder.marks(u, data.marks); label(u); }], setCursor: [(u) => hover(u)], setSelect: [(u) => zoom(u)] },
  });
  const label = (u) => holder.labels(labelled && beside(u.width) ? places(u, series, data, stack) : [], u);
  const hover = (u) => {
    if (u.cursor.idx === null || u.cursor.idx === undefined || !data.times.length) return holder.tip(null);
    const at = Math.min(u.cursor.idx, data.times.length - 1);
    const rows = (stack ? [...series].reverse() : series).map((one) => el("tr", {}, el("th", { scope: "row" }, stack ? key(one) : dash(one), one.label),
      el("td", {}, told(one, data, at, format))));
    const title = between(data.times[at], data.times[at] + data.step, state.get().zone);
    return holder.tip(u, el("table", {}, el("caption", {}, title), el("tbody", {}, rows)));
  };
  const zoom = (u) => {
    if (!mine || u.select.width < 4) return;  // a drag is told to the charts beside it too
    mine = false;
    const [from, to] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    state.zoom(from, to);
  };
  holder.onsize((wide) => {
    if (!wide) return;
    if (plot && beside(wide) !== beside(plot.width)) { plot.destroy(); plot = null; }
    if (plot) plot.setSize({ width: wide, height });
    else if (data.times.length) plot = new uPlot(options(wide), shown(), holder.canvas);
    holder.plot(plot);
    legend.hidden = beside(wide);
  });
  const stop = onRepaint(() => plot?.redraw(false));
  return {
    element: holder.element,
    actions: holder.actions,
    update: (next) => {
      data = { ...data, ...next };
      holder.say(summary({ name, times: data.times, values: data.values, series, format, zone: state.get().zone }));
      if (plot) plot.setData(shown());
      else holder.resize();
      holder.refresh();
    },
    destroy: () => { stop(); plot?.destroy(); holder.destroy(); },
  };
}

/**
 * A distribution over spans of time. series as for stacked(); update({edges, values: {key: [...]}, rules: [{at, label}]})
 * where values has one more than edges, the last beyond all; rules are drawn through it, such as a TTL.
 */
export function histogram({ name, format, series, height = 184, formatEdge = duration, formatAxis = format === si ? short : format }) {
  let data = { edges: [], values: {}, rules: [] };
  let plot = null;
  const bins = () => Array.from({ length: data.edges.length + 1 }, (_, place) => place);
  const holder = frame({ name, height, table: () => binSheet(name, data, series, format, formatEdge), csv: () => data.edges.length > 0 });
  const legend = holder.legend(series, key);
  const shown = () => [bins(), ...sums(series, data.values, bins().length).reverse()]; // the whole first, its parts over it
  const options = (width) => ({
    width,
    height,
    padding: [18, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, x: false, drag: { x: false, y: false }, points: { show: false }, bind: { dblclick: () => null } },
    scales: { x: { time: false, range: () => [0, Math.max(1, data.edges.length + 1)] }, y: { range: (_, __, top) => [0, roomy(top)] } },
    axes: [axis({ splits: () => ticks(data.edges, width), values: (_, splits) => splits.map((at) => formatEdge(data.edges[at - 1])), size: 28 }),
      axis({ values: (_, splits) => splits.map((value) => formatAxis(value)), size: GUTTER, space: 36, grid: true })],
    series: [{}, ...series.toReversed().map((one) => ({ ...stroke(one, true), fill: () => ink(one.color), width: 0, paths: uPlot.paths.bars({ size: [1, Infinity], align: 1, gap: 1 }) }))],
    hooks: { draw: [(u) => rule(u, data, holder)], setCursor: [(u) => hover(u)] },
  });
  const hover = (u) => {
    if (u.cursor.left < 0) return holder.tip(null);
    const at = Math.floor(u.posToVal(u.cursor.left, "x"));
    if (at < 0 || at > data.edges.length) return holder.tip(null);
    const rows = [...series].reverse().map((one) => el("tr", {}, el("th", { scope: "row" }, key(one), one.label),
      el("td", {}, format(data.values[one.key]?.[at] ?? null))));
    return holder.tip(u, el("table", {}, el("caption", {}, span(data.edges, at, formatEdge)), el("tbody", {}, rows)));
  };
  holder.onsize((wide) => {
    if (!wide) return;
    if (plot) plot.setSize({ width: wide, height });
    else if (data.edges.length) plot = new uPlot(options(wide), shown(), holder.canvas);
    holder.plot(plot);
    legend.hidden = series.length < 2;
  });
  const stop = onRepaint(() => plot?.redraw(false));
  return {
    element: holder.element,
    actions: holder.actions,
    update: (next) => {
      data = { ...data, ...next };
      holder.say(`${name}. ${series.map((one) => `${one.label}: ${count((data.values[one.key] ?? []).reduce((a, b) => a + b, 0))}`).join(", ")}.`);
      if (plot) plot.setData(shown());
      else holder.resize();
      holder.refresh();
    },
    destroy: () => { stop(); plot?.destroy(); holder.destroy(); },
  };
}

/**
 * Bars side by side with what they are of. update([{label, title, href, parts: [{kind, value, label}], value}]): the
 * parts of a bar add up; `value` is what is written behind it; `total` makes all bars parts of the same whole.
 */
export function bars({ name, format, onpick = null }) {
  let rows = [];
  const list = el("ol", { class: "bars" });
  const parts = (told) => rows.flatMap((row) => row.parts.map((part) => [row.label, part.label ?? part.kind, told(part.value)]));
  const sheet = () => ({ head: ["of", "part", name], rows: parts((value) => value), shown: parts(format) });
  const holder = frame({ name, height: null, table: sheet, csv: () => rows.length > 0, role: onpick ? "group" : "img" });
  holder.canvas.append(list);
  const whole = (row) => row.parts.reduce((all, part) => all + (part.value ?? 0), 0);
  const line = (row, longest) => el("li", {},
    onpick ? el("button", { type: "button", class: "bar-label", title: row.title, onclick: () => onpick(row) }, row.label)
      : el("span", { class: "bar-label", title: row.title }, row.label),
    el("span", { class: "bar" }, row.parts.filter((part) => part.value > 0).map((part) => el("span", {
      class: `part fill-${part.kind}`, title: `${part.label ?? part.kind}: ${format(part.value)}`,
      style: { width: `${(100 * part.value) / longest}%` },
    }))), el("span", { class: "bar-value" }, row.value ?? format(whole(row))));
  return {
    element: holder.element,
    actions: holder.actions,
    update: (next, { total = null } = {}) => {
      rows = next;
      const longest = total ?? Math.max(1e-9, ...rows.map(whole));
      fill(list, rows.map((row) => line(row, longest)));
      holder.say(`${name}. ${rows.slice(0, 8).map((row) => `${row.label}: ${row.value ?? format(whole(row))}`).join(", ")}.`);
      holder.refresh();
    },
    destroy: () => holder.destroy(),
  };
}
