/**
 * What numbers say, in words: findings for titles, summaries for charts. Pure: series in, a sentence out.
 */

import { FEW, clock, count, percent, seconds, si } from "./format.js";

const STEP = 0.1; // how far a ratio must move, in tenths of all tokens, to be a finding
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
 * Where a ratio changed and stayed changed: {at, before, after} or null. parts and wholes are of each bucket, so that
 * busy buckets weigh more; a side with fewer than FEW requests proves nothing.
 */
export function step({ times, parts, wholes, requests }) {
  let best = null;
  for (let place = SIDE; place <= times.length - SIDE; place += 1) {
    const [left, right] = [side(parts, wholes, requests, 0, place), side(parts, wholes, requests, place, times.length)];
    if (left.requests < FEW || right.requests < FEW || left.whole === 0 || right.whole === 0) continue;
    const [before, after] = [left.part / left.whole, right.part / right.whole];
    const weight = (after - before) ** 2 * ((left.whole * right.whole) / (left.whole + right.whole));
    if (Math.abs(after - before) >= STEP && weight > (best?.weight ?? 0)) best = { at: times[place], before, after, weight };
  }
  return best && { at: best.at, before: best.before, after: best.after };
}

function side(parts, wholes, requests, from, to) {
  const add = (numbers) => numbers.slice(from, to).reduce((all, one) => all + (one ?? 0), 0);
  return { part: add(parts), whole: add(wholes), requests: add(requests) };
}

/** The title of the read ratio: what happened to it, else what it is. */
export function readRatio(usage, zone = "utc") {
  const { requests, prompt_tokens: prompt, read_tokens: read } = usage.total;
  if (!requests || !prompt) return "Read ratio: no prompts in this range";
  if (requests < FEW) return `${si(read)} of ${si(prompt)} prompt tokens were read, in ${count(requests)} ${plural(requests, "request")}`;
  const moved = step({
    times: usage.buckets.map(({ start }) => start),
    parts: usage.buckets.map(({ total }) => total.read_tokens),
    wholes: usage.buckets.map(({ total }) => total.prompt_tokens),
    requests: usage.buckets.map(({ total }) => total.requests),
  });
  if (!moved) return `Read ratio holds at ${percent(read / prompt)}`;
  const verb = moved.after < moved.before ? "fell" : "rose";
  return `Read ratio ${verb} from ${whole(moved.before)} to ${whole(moved.after)} at ${clock(moved.at, zone)}`;
}

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
