/**
 * What charts draw and how: axes, strokes, fills, labels, plumb lines; and their data as tables.
 */

import { exact } from "./format.js";
import { hatch, ink } from "./paint.js";
import * as state from "./state.js";
import { swatch } from "./ui.js";

const FONT = "12px system-ui, sans-serif";
const ROW = 15; // pixels from one label to the next

export const key = (one) => swatch(one.color.slice(2));
export const told = (one, data, at, format) => (one.tell ? one.tell(data, at) : format(data.values[one.key]?.[at] ?? null));
export const GUTTER = 60; // the same for all, so that moments stand under each other
export const MARGIN = 92; // for labels

/** The ends of a scale of powers, with a little room. */
export const decades = (low, top) => (low > 0 ? [low / 1.3, top * 1.3] : [0.01, 10]);

/** 1, 2, 5, 10, 20 … between the ends of a scale of powers. */
export function powers(low, top) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(top); power += 1) {
    found.push(...[1, 2, 5].map((digit) => digit * 10 ** power));
  }
  const within = found.filter((value) => value >= low && value <= top);
  return within.length > 7 ? within.filter((value) => /^1/.test(value.toExponential())) : within;
}

export const roomy = (top) => (top > 0 ? top * 1.08 : 1);

export function zoned(at) {
  const moment = new Date(at * 1000);
  return state.get().zone === "utc" ? uPlot.tzDate(moment, "Etc/UTC") : moment;
}

export function ends({ times, step, range }) {
  if (range) return range;
  if (!times.length) return [0, 1];
  return [times[0], times.at(-1) + step];
}

export function axis({ grid = false, ...rest }) {
  return {
    font: FONT, gap: 6, stroke: () => ink("--soft"),
    grid: { show: grid, stroke: () => ink("--line"), width: 1 }, ticks: { show: !grid, stroke: () => ink("--line"), size: 4, width: 1 },
    ...rest,
  };
}

export function stroke(one, stack) {
  const paint = (u) => (one.hatched ? hatch(u.ctx, one.color) : ink(one.color, stack ? 0.85 : one.alpha ?? 0.1));
  return {
    label: one.label, stroke: () => ink(one.color), width: one.width ?? (stack ? 1 : 2), dash: one.dash,
    fill: stack || one.fill ? paint : undefined, points: { show: stack ? false : undefined, size: 5 },
    paths: stack ? uPlot.paths.stepped({ align: 1 }) : undefined,
  };
}

export function filling({ upper, lower, color, alpha = 0.14 }, series) {
  const place = (wanted) => series.findIndex((one) => one.key === wanted) + 1;
  return { series: [place(upper), place(lower)], fill: () => ink(color, alpha) };
}

/** The times with the end of the last step, so that it has its width. */
export const closed = ({ times, step }) => (times.length ? [...times, times.at(-1) + step] : times);

/** Columns as they are drawn: summed up where they are stacked. */
export function drawn(series, data, stack) {
  if (!stack) return series.map((one) => data.values[one.key] ?? data.times.map(() => null));
  return sums(series, data.values, data.times.length).map((column) => (column.length ? [...column, column.at(-1)] : column));
}

export function sums(series, values, length) {
  const below = new Array(length).fill(0);
  return series.map((one) => below.map((base, place) => (below[place] = base + (values[one.key]?.[place] ?? 0))));
}

/** Where each label stands beside the plot: at the last value, moved apart where they would overlap. */
export function places(u, series, data, stack) {
  const columns = u.data.slice(1);
  const scale = (value) => u.valToPos(value, "y");
  const wanted = series.map((one, place) => {
    const own = data.values[one.key] ?? [];
    const last = own.findLastIndex((value) => value !== null && value !== undefined);
    if (one.quiet || last < 0 || (stack && !own.some((value) => value > 0))) return null;
    const top = columns[place][last];
    return { text: one.label, color: one.color, y: stack ? scale(top - own[last] / 2) : scale(top) };
  }).filter(Boolean).sort((a, b) => a.y - b.y);
  const floor = u.bbox.height / devicePixelRatio;
  wanted.forEach((one, place) => { if (place && one.y < wanted[place - 1].y + ROW) one.y = wanted[place - 1].y + ROW; });
  const over = wanted.length ? wanted.at(-1).y - floor : 0;
  if (over > 0) for (let place = wanted.length - 1, limit = floor; place >= 0 && wanted[place].y > limit; place -= 1, limit -= ROW) wanted[place].y = limit;
  return wanted;
}

export function plumb(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ink("--mark");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks ?? []) {
    const x = Math.round(u.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x + 0.5, bbox.top);
    ctx.lineTo(x + 0.5, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

export function rule(u, { edges, rules = [] }, holder) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ink("--ink");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  const stands = rules.filter((one) => edges.length && one.at > 0).map((one) => ({ ...one, x: Math.round(u.valToPos(where(edges, one.at), "x", true)) }));
  for (const { x } of stands) {
    ctx.beginPath();
    ctx.moveTo(x, bbox.top - 4 * devicePixelRatio);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
  holder.rules(stands.map(({ x, label }) => ({ x: x / devicePixelRatio, label })));
}

/** The place of a length of time among bins of unequal width. */
function where(edges, at) {
  const bin = edges.findIndex((edge) => at <= edge);
  if (bin < 0) return edges.length + 0.5;
  const low = bin ? edges[bin - 1] : edges[0] / 2;
  return bin + Math.min(1, Math.max(0, Math.log(at / low) / Math.log(edges[bin] / low)));
}

export function ticks(edges, wide) {
  const every = Math.max(1, Math.ceil((edges.length * 52) / wide));
  return edges.map((_, place) => place + 1).filter((_, place) => place % every === 0);
}

export const span = (edges, at, format) => {
  if (at === 0) return `up to ${format(edges[0])}`;
  return at === edges.length ? `over ${format(edges.at(-1))}` : `${format(edges[at - 1])} to ${format(edges[at])}`;
};

// ---- as tables ----

export function sheet(data, series, format) {
  const { times, values } = data;
  const zone = state.get().zone;
  const row = (place) => series.map((one) => values[one.key]?.[place] ?? null);
  return {
    head: ["time", ...series.map((one) => one.label)],
    rows: times.map((at, place) => [new Date(at * 1000).toISOString(), ...row(place)]),
    shown: times.map((at, place) => [exact(at, zone), ...series.map((one) => told(one, data, place, format))]),
  };
}

export function binSheet(name, { edges, values }, series, format, formatEdge) {
  const bins = Array.from({ length: edges.length + 1 }, (_, place) => place);
  const row = (place) => series.map((one) => values[one.key]?.[place] ?? null);
  return {
    head: [name, ...series.map((one) => one.label)],
    rows: bins.map((place) => [span(edges, place, formatEdge), ...row(place)]),
    shown: bins.map((place) => [span(edges, place, formatEdge), ...row(place).map((value) => format(value))]),
  };
}
