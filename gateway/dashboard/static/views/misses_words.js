/**
 * What misses say: totals by family, a sudden rise, and the places at which prompts break. Pure.
 */

import { FEW, clock, percent, si } from "../format.js";
import { family, ordered, spoken } from "./reasons.js";

const RISE = 0.1; // how far the missed share of prompt tokens must rise to be a finding
const SHORTEST = 2; // buckets

/** Tokens missed by family: {changed, gone, broken, first}. */
export function byFamily(missed) {
  const sums = { changed: 0, gone: 0, broken: 0, first: 0 };
  for (const [reason, tokens] of Object.entries(missed ?? {})) sums[family(reason)] += tokens;
  return sums;
}

/**
 * The stretch in which one reason missed far more than before: {reason, from, until, before, inside, tokens} or null.
 * `until` is null while it lasts; `tokens` are those beyond what was usual before. Reasons that somebody can act on
 * come before text that is only new.
 */
export function rise(usage) {
  const reasons = ordered(usage.buckets.flatMap(({ total }) => Object.keys(total.missed_tokens ?? {})));
  const found = reasons.map((reason) => worst(usage.buckets, reason)).filter(Boolean);
  const rank = (one) => one.weight * (family(one.reason) === "first" ? 0.01 : 1);
  const best = found.reduce((most, one) => (!most || rank(one) > rank(most) ? one : most), null);
  if (!best) return null;
  const { weight: _, ...told } = best;
  return told;
}

function worst(buckets, reason) {
  const sums = [{ part: 0, whole: 0, requests: 0 }];
  for (const { total } of buckets) {
    const last = sums.at(-1);
    sums.push({
      part: last.part + (total.missed_tokens?.[reason] ?? 0),
      whole: last.whole + (total.prompt_tokens ?? 0),
      requests: last.requests + total.requests,
    });
  }
  let best = null;
  for (let from = SHORTEST; from <= buckets.length - SHORTEST; from += 1) {
    const before = sums[from];
    if (before.requests < FEW || !before.whole) continue;
    const usual = before.part / before.whole;
    for (let to = from + SHORTEST; to <= buckets.length; to += 1) {
      const inside = {
        part: sums[to].part - before.part,
        whole: sums[to].whole - before.whole,
        requests: sums[to].requests - before.requests,
      };
      if (inside.requests < FEW || !inside.whole) continue;
      const share = inside.part / inside.whole;
      const beyond = inside.part - usual * inside.whole;
      const weight = (share - usual) * beyond;
      if (share - usual < RISE || weight <= (best?.weight ?? 0)) continue;
      const until = to < buckets.length ? buckets[to].start : null;
      best = {
        reason,
        from: buckets[from].start,
        until,
        before: usual,
        inside: share,
        tokens: Math.round(beyond),
        weight,
      };
    }
  }
  return best;
}

/** The view's title: what happened, else what was missed and why. */
export function finding(usage, zone = "utc") {
  const { requests, prompt_tokens: prompt, missed_tokens: missed } = usage.total;
  if (!requests || !prompt) return "Misses: no prompts in this range";
  const up = rise(usage);
  if (up) {
    const end = up.until === null ? "" : `, until ${clock(up.until, zone)}`;
    return `Misses by “${spoken(up.reason)}” rose from ${whole(up.before)} to ${whole(up.inside)} of prompt tokens at ${clock(up.from, zone)}${end}`;
  }
  const sum = Object.values(missed ?? {}).reduce((all, one) => all + one, 0);
  if (!sum) return "Every prompt token of this range was read";
  const most = ordered(Object.keys(missed)).reduce((top, reason) =>
    missed[reason] > (missed[top] ?? 0) ? reason : top,
  );
  if (requests < FEW) return `${si(sum)} of ${si(prompt)} prompt tokens were not read, most by “${spoken(most)}”`;
  return `${percent(sum / prompt)} of prompt tokens were not read, most by “${spoken(most)}”`;
}

const whole = (ratio) => `${(ratio * 100).toFixed(0)}\u202f%`;

/**
 * The places at which prompts part from earlier ones, most tokens first: {message, looks_like, reason, tokens, requests,
 * tenants, last, first_token, last_token, example}. Requests that missed for want of a place are passed over.
 */
export function positions(requests) {
  const places = new Map();
  for (const request of requests) {
    const counted = new Set();
    for (const { reason, tokens, where } of request.misses ?? []) {
      if (!where) continue;
      const key = [where.message, where.looks_like, reason].join("\u0000");
      const place = places.get(key) ?? fresh(where, reason);
      places.set(key, place);
      place.tokens += tokens;
      place.requests += counted.has(key) ? 0 : 1;
      counted.add(key);
      place.tenants = place.tenants.includes(request.tenant)
        ? place.tenants
        : [...place.tenants, request.tenant].sort();
      place.first_token = Math.min(place.first_token, where.token);
      place.last_token = Math.max(place.last_token, where.token);
      if (request.at >= place.last) Object.assign(place, { last: request.at, example: request.id });
    }
  }
  return [...places.values()].sort((a, b) => b.tokens - a.tokens || (a.message < b.message ? -1 : 1));
}

const fresh = (where, reason) => ({
  message: where.message,
  looks_like: where.looks_like,
  reason,
  tokens: 0,
  requests: 0,
  tenants: [],
  last: -Infinity,
  first_token: Infinity,
  last_token: -Infinity,
  example: null,
});
