/**
 * What numbers say, in words: findings for titles, summaries for charts. Pure: series in, a sentence out.
 */

import { FEW, clock, count, percent, seconds, si, tick } from "./format.js";

const STEP = 0.1; // how far a ratio must move to be a finding
const SIDE = 3; // buckets on each side of a step that must agree

/** "Read ratio. 60 points from 13:05 to 14:04. by tokens: now 82.4 %, lowest 31.0 % at 13:40, highest 84.1 % at 13:12." */
export function summary({ name, times, values, series, format, zone = "utc" }) {
  if (!times.length) return `${name}. No data in this range.`;
  const told = series.map((one) => {
    const own = values[one.key] ?? [];
    const points = own.map((value, place) => ({ value, at: times[place] })).filter(({ value }) => value !== null && value !== undefined);
    if (!points.length) return `${one.label}: unknown`;
    const low = points.reduce((a, b) => (b.value < a.value ? b : a));
    const high = points.reduce((a, b) => (b.value > a.value ? b : a));
    return `${one.label}: last ${format(points.at(-1).value)}, lowest ${format(low.value)} at ${clock(low.at, zone)}, highest ${format(high.value)} at ${clock(high.at, zone)}`;
  });
  return `${name}. ${times.length} points from ${clock(times[0], zone)} to ${clock(times.at(-1), zone)}. ${told.join("; ")}.`;
}

/**
 * The stretches of a range in which a ratio held, oldest first: [{at, ratio}], at least one where anything is known.
 * Busy buckets weigh more; a stretch with fewer than FEW requests, or shorter than SIDE buckets, proves nothing.
 */
export function stretches({ times, parts, wholes, requests }) {
  const add = (numbers, from, to) => numbers.slice(from, to).reduce((all, one) => all + (one ?? 0), 0);
  const side = (from, to) => ({ part: add(parts, from, to), whole: add(wholes, from, to), requests: add(requests, from, to) });
  const usual = (from, to) => {  // what half of the requests came below: one odd bucket does not move it
    const buckets = times.slice(from, to).map((_, place) => ({ ratio: (parts[from + place] ?? 0) / wholes[from + place], requests: requests[from + place] }))
      .filter(({ ratio }) => Number.isFinite(ratio)).sort((a, b) => a.ratio - b.ratio);
    let left = buckets.reduce((all, one) => all + one.requests, 0) / 2;
    return buckets.find((one) => (left -= one.requests) <= 0)?.ratio ?? 0;
  };
  const split = (from, to) => {
    let best = null;
    for (let place = from + SIDE; place <= to - SIDE; place += 1) {
      const [left, right] = [side(from, place), side(place, to)];
      if (left.requests < FEW || right.requests < FEW || !left.whole || !right.whole) continue;
      const moved = right.part / right.whole - left.part / left.whole;
      const weight = moved ** 2 * ((left.whole * right.whole) / (left.whole + right.whole));
      if (Math.abs(moved) < STEP || weight <= (best?.weight ?? 0)) continue;
      if (Math.abs(usual(from, place) - usual(place, to)) >= STEP) best = { place, weight };
    }
    return best ? [...split(from, best.place), ...split(best.place, to)] : [from];
  };
  const starts = split(0, times.length);
  return starts.map((from, place) => ({ at: times[from], ...side(from, starts[place + 1] ?? times.length) }))
    .filter(({ whole }) => whole > 0).map(({ at, part, whole }) => ({ at, ratio: part / whole }));
}

/** The title of the read ratio: what happened to it, else what it is. */
export function readRatio(usage, zone = "utc") {
  const { requests, prompt_tokens: prompt, read_tokens: read } = usage.total;
  if (!requests || !prompt) return "Read ratio: no prompts in this range";
  if (requests < FEW) return `${si(read)} of ${si(prompt)} prompt tokens were read, in ${count(requests)} ${plural(requests, "request")}`;
  const held = stretches({
    times: usage.buckets.map(({ start }) => start),
    parts: usage.buckets.map(({ total }) => total.read_tokens),
    wholes: usage.buckets.map(({ total }) => total.prompt_tokens),
    requests: usage.buckets.map(({ total }) => total.requests),
  });
  if (held.length < 2) return `Read ratio holds at ${percent(read / prompt)}`;
  const [before, during, after] = [held.at(-3), held.at(-2), held.at(-1)];
  const days = usage.to - usage.from > 86_400;
  const at = (moment) => (days ? tick(moment, 86_400, zone) : clock(moment, zone));
  if (before && Math.abs(after.ratio - before.ratio) < STEP) {
    return `${moved(before, during)} at ${at(during.at)} and is back at ${whole(after.ratio)} since ${at(after.at)}`;
  }
  return `${moved(during, after)} at ${at(after.at)}`;
}

const moved = (from, to) => `Read ratio ${to.ratio < from.ratio ? "fell" : "rose"} from ${whole(from.ratio)} to ${whole(to.ratio)}`;

/** The title of the first token: how much sooner it comes on a hit. */
export function firstToken(total) {
  const { hit, miss } = total.first_token;
  if (!hit || !miss || Math.min(hit.count, miss.count) < FEW || !hit.p50) return "First token, hit against miss, s";
  const times = miss.p50 / hit.p50;
  if (times >= 1.1) return `A hit answers ${times.toFixed(1)} times sooner: first token ${seconds(hit.p50)} against ${seconds(miss.p50)}`;
  return `A hit answers no sooner: first token ${seconds(hit.p50)} against ${seconds(miss.p50)}`;
}

/** The title of amortisation: whether what is written is read often enough. */
export function amortisation(total) {
  const written = Object.values(total.write_tokens).reduce((all, one) => all + one, 0);
  if (!written) return "Nothing was written on request in this range";
  const each = total.read_tokens / written;
  const even = total.money?.break_even;
  const said = `Each token written was read ${each < 10 ? each.toFixed(1) : si(each)} times`;
  if (even === null || even === undefined) return said;
  return each >= even ? `${said}: writing pays` : `${said}: writing does not pay, it would from ${even.toFixed(1)} on`;
}

/** "3 requests", "1 request". */
export const plural = (amount, word) => (amount === 1 ? word : `${word}s`);

const whole = (ratio) => `${(ratio * 100).toFixed(0)}\u202f%`;
