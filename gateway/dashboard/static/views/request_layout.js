/**
 * One request as pictures: its time from queue to stop, its prompt as a strip; and which requests a view shows. Pure.
 */

const PHASES = [
  ["queue", "queue_s"],
  ["prefill", "prefill_s"],
  ["decode", "decode_s"],
];

/**
 * The phases on one time axis: {total, parts: [{name, start, seconds, left, width}], first: fraction | null, gaps}.
 * left and width are fractions of the whole. What is not known has no part; what no phase explains is "elsewhere":
 * reading, rendering and sending.
 */
export function timeline(request) {
  const known = PHASES.map(([name, field]) => ({ name, seconds: request[field] ?? null }));
  const phases = known.filter(({ seconds }) => seconds !== null);
  const sum = phases.reduce((all, { seconds }) => all + seconds, 0);
  const total = Math.max(request.seconds ?? 0, sum);
  const decode = phases.find(({ name }) => name === "decode");
  const before = phases.filter((one) => one !== decode).reduce((all, { seconds }) => all + seconds, 0);
  const spare = total - sum;
  const first = request.first_token_s ?? null;
  const early = first === null ? 0 : Math.min(spare, Math.max(0, first - before));
  const parts = [];
  let at = 0;
  const add = (name, seconds) => {
    if (seconds > 0 || name !== "elsewhere") parts.push({ name, start: at, seconds });
    at += seconds;
  };
  for (const { name, seconds } of phases) {
    if (name === "decode") add("elsewhere", early);
    add(name, seconds);
  }
  if (!decode) add("elsewhere", early);
  add("elsewhere", Math.max(0, total - at));
  const share = (seconds) => (total ? seconds / total : 0);
  return {
    total,
    parts: parts.map((part) => ({ ...part, left: share(part.start), width: share(part.seconds) })),
    first: first === null || !total ? null : Math.min(1, first / total),
    unknown: known.filter(({ seconds }) => seconds === null).map(({ name }) => name),
  };
}

/**
 * The prompt in order: {tokens, parts: [{kind, tokens, class, start, left, width}], marks: [{…, left}], breaks: [{…, left}]}.
 * A mark stands at the end of what it covers, a break where the prompt parts from the earlier one.
 */
export function strip(request) {
  const tokens = (request.strip ?? []).reduce((all, part) => all + part.tokens, 0);
  const share = (place) => (tokens ? Math.min(1, Math.max(0, place / tokens)) : 0);
  let start = 0;
  const parts = (request.strip ?? []).map((part) => {
    const placed = { ...part, start, left: share(start), width: share(part.tokens) };
    start += part.tokens;
    return placed;
  });
  const marks = (request.marks ?? []).map((mark) => ({ ...mark, left: share(mark.tokens) }));
  const seen = new Set();
  const breaks = [];
  for (const { reason, where } of request.misses ?? []) {
    if (!where || seen.has(where.token)) continue;
    seen.add(where.token);
    breaks.push({ ...where, reason, left: share(where.token) });
  }
  return { tokens, parts, marks, breaks: breaks.sort((a, b) => a.token - b.token) };
}

/** Where the prompt parts from the earlier one, as a sentence; null where it does not. */
export function divergence(request) {
  const [first] = strip(request).breaks;
  if (!first) return null;
  const at =
    first.character === null || first.character === undefined
      ? ""
      : `, character ${first.character.toLocaleString("en")}`;
  const like =
    first.looks_like && first.looks_like !== "text"
      ? `, where the text looks like ${LIKE[first.looks_like] ?? first.looks_like}`
      : "";
  return `Parts from the earlier request in ${first.message}, token ${first.token.toLocaleString("en")}${at}${like}`;
}

const LIKE = {
  time: "a time",
  date: "a date",
  uuid: "a UUID",
  counter: "a counter",
  hash: "a hash",
  signed_url: "a signed URL",
  white_space: "white space",
  number: "a number",
};

/** The reason by which most tokens were missed, or null. */
export function mainReason(request) {
  const sums = new Map();
  for (const { reason, tokens } of request.misses ?? []) sums.set(reason, (sums.get(reason) ?? 0) + tokens);
  return [...sums].reduce((most, one) => (!most || one[1] > most[1] ? one : most), null)?.[0] ?? null;
}

/** Whether a view with these filters shows a request. `min` is in prompt tokens. */
export function accepts(request, { tenant, key, model, upstream, api, outcome, reason, min }) {
  const exact = { tenant, key, model, upstream, api, outcome };
  if (Object.entries(exact).some(([field, wanted]) => wanted && request[field] !== wanted)) return false;
  if (reason && !(request.misses ?? []).some((miss) => miss.reason === reason)) return false;
  const least = Number(min);
  return !(least > 0) || (request.prompt ?? 0) >= least;
}

/** Newest first without doubles: what came live before what is shown. */
export function merged(newer, shown) {
  const ids = new Set(newer.map(({ id }) => id));
  return [...newer, ...shown.filter(({ id }) => !ids.has(id))].sort((a, b) => b.at - a.at);
}
