/**
 * Why tokens were not read: the words in their fixed order, what they mean, and the family whose colour they have.
 * Pure. A word that a newer server says goes last, with the unknown.
 */

/** The families in the order in which they are stacked: [name, what it says, what an operator can do about it]. */
export const FAMILIES = {
  changed: {
    label: "The prompt changed",
    told: "The client sent other text than before: a timestamp, another order, another model.",
  },
  gone: { label: "Gone from the cache", told: "The same text was kept once and was not there any more." },
  broken: { label: "Promise broken", told: "Pressure took it before the deadline that was promised." },
  first: { label: "Never kept", told: "Text that was not kept before: new, too short, or asked not to be kept." },
};

const TOLD = {
  model: ["changed", "another model than before"],
  tools: ["changed", "other tools, or in another order"],
  system: ["changed", "other system text"],
  messages: ["changed", "an earlier message is another"],
  template: ["changed", "the last turn renders differently as history"],
  retokenised: ["changed", "text that came back encodes differently"],
  expired: ["gone", "the deadline passed before the next use"],
  evicted: ["gone", "held, and pressure took it"],
  purged: ["gone", "an operator purged it"],
  policy_changed: ["gone", "a policy was lowered"],
  replica_lost: ["gone", "the replica that had it is gone"],
  weights_changed: ["gone", "the model has other weights now"],
  template_changed: ["gone", "the model has another chat template now"],
  broken_promise: ["broken", "promised, and pressure took it before its deadline"],
  never_written: ["first", "not kept before"],
  below_minimum: ["first", "shorter than the policy's min_tokens"],
  no_cache: ["first", "the request asked for no caching"],
  new: ["first", "it extends an earlier request"],
};

/** Every reason that is known, lowest in a stack first. */
export const ORDER = Object.keys(TOLD);

/** The family of a reason; "first" for a word that is not known here. */
export const family = (reason) => TOLD[reason]?.[0] ?? "first";

/** What a reason means. */
export const told = (reason) => TOLD[reason]?.[1] ?? "a reason this page does not know yet";

/** A reason as words: broken_promise → "broken promise". */
export const spoken = (reason) => reason.replaceAll("_", " ");

/** The name of its colour, as in `fill-…` and `--…`. */
export const kind = (reason) => (reason in TOLD ? `reason-${reason.replaceAll("_", "-")}` : "unknown");

/** The reasons among these words in the fixed order, those that are not known last. */
export function ordered(words) {
  const present = new Set(words);
  const known = ORDER.filter((reason) => present.has(reason));
  return [...known, ...[...present].filter((word) => !(word in TOLD)).sort()];
}

const HELPS = {
  time: "Move the time behind what stays the same, or round it to the day.",
  date: "Move the date behind what stays the same.",
  uuid: "Leave the identifier out, or put it in the last message.",
  counter: "Move the counter behind what stays the same.",
  hash: "Leave the hash out, or put it in the last message.",
  signed_url: "Send a link that does not change with each request.",
  white_space: "Send the same white space each time.",
  number: "Move the number behind what stays the same.",
};

const STRUCTURAL = {
  tools: "Send the tools in one order, spelt the same each time.",
  system: "Keep system text the same; put what changes into the last message.",
  messages: "Append to the conversation; do not rewrite earlier messages.",
  model: "Each model has a cache of its own; stay with one in a conversation.",
};

/** What helps against a break at such a place, or null where nothing is known to. */
export const helps = (reason, looksLike) => HELPS[looksLike] ?? STRUCTURAL[reason] ?? null;
