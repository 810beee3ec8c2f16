/**
 * What the fleet's numbers say: states as signs and words, the three rates as parts of one bar, findings. Pure.
 */

import { FEW, count, percent, si } from "../format.js";

/** Each state of an upstream: a sign that tells it without colour, its word, what it means, whether it needs a person. */
export const STATES = {
  well: { sign: "✓", word: "well", told: "Asked as routing chooses." },
  unwell: { sign: "!", word: "unwell", told: "Its probes fail, so it is not asked.", bad: true },
  open: { sign: "✕", word: "circuit open", told: "Its last answers failed, so it rests before one request tries again.", bad: true },
  trial: { sign: "↻", word: "on trial", told: "One request finds out whether it answers again.", bad: true },
  aside: { sign: "⊘", word: "set aside", told: "Too many of its answers failed, so others are asked first.", bad: true },
  draining: { sign: "▽", word: "draining", told: "It ends what it has and gets nothing new." },
  bundled: { sign: "●", word: "bundled", told: "The engine that comes with this gateway." },
};
const UNHEARD = { sign: "•", told: "" };

/** The sign and word of a state; one that this page does not know is told by its own name. */
export const stateOf = (name) => STATES[name] ?? { ...UNHEARD, word: name };

/** What decided where requests went, in words. */
export const WHY = {
  prefix: "The upstream that was believed to hold most of the prompt.",
  load: "Another one holds more of the prompt, but has more work waiting than that saves; or only load counts.",
  chance: "Nobody was believed to hold any of it: the less loaded of two drawn by chance.",
  turn: "One after the other.",
  session: "The upstream that this session always goes to.",
};

/**
 * What was available as parts that add up: delivered, lost at the replica, lost in routing. A replica that held more
 * than was believed has lost nothing. Null where no answer said what was read.
 */
export function parts({ available, captured, delivered }) {
  if (available === null || delivered === null) return null;
  const reached = Math.max(captured, delivered);
  return { delivered, replica: reached - delivered, routing: Math.max(0, available - reached) };
}

/** "62.4 % of what was available": delivered, of as many requests as said so. */
export function rate(told) {
  const said = told.requests - told.unreported_requests;
  if (told.delivered === null || !told.available) return null;
  return said < FEW ? `${si(told.delivered)} of ${si(told.available)}` : percent(told.delivered / told.available);
}

export const TITLE = "What was available, captured and delivered, tokens";

/** The title of the picture: where most was lost, or that nothing was. */
export function lost(total) {
  const found = parts(total);
  if (!found) return TITLE;
  const { replica, routing } = found;
  if (!total.available) return "Nothing was available yet: no upstream was believed to hold any prompt";
  const said = total.requests - total.unreported_requests;
  const told = (part) => (said < FEW ? `${si(part)} of ${si(total.available)} available tokens` : `${percent(part / total.available)} of the available tokens`);
  if (!replica && !routing) return "All that was available was delivered";
  return replica > routing ? `${told(replica)} were lost at the replicas` : `${told(routing)} were lost in routing`;
}

/** The view's headline: who needs a person, else how many are well. */
export function finding(upstreams) {
  const asked = upstreams.filter(({ state }) => state !== "bundled");
  if (!asked.length) return "Fleet: no upstreams";
  const bad = asked.filter(({ state }) => stateOf(state).bad);
  const all = `${count(asked.length)} ${asked.length === 1 ? "upstream" : "upstreams"}`;
  if (!bad.length) return asked.length === 1 ? `The upstream ${asked[0].name} is ${stateOf(asked[0].state).word}` : `All ${all} can be asked`;
  if (bad.length === 1) return `${bad[0].name} is ${stateOf(bad[0].state).word}; ${count(asked.length - 1)} of ${all} can be asked`;
  return `${count(bad.length)} of ${all} cannot be asked as usual`;
}
