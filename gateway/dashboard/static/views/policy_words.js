/**
 * Policies, purges and the audit trail in words; a form's fields into a policy. Pure.
 */

import { count } from "../format.js";

/** The fields of a policy in the order in which they are shown: name, words, what they mean, kind. */
export const FIELDS = [
  ["name", "Name", "letters, digits, “.”, “_” and “-”", "text"],
  ["model", "Model", "empty for any", "optional"],
  ["tenant", "Tenant", "empty for any", "optional"],
  ["default_ttl", "Default TTL", "how long unmarked prompts are held; empty keeps none", "optional"],
  ["allowed_ttls", "Allowed TTLs", "what clients may ask for, with commas between", "list"],
  ["max_ttl", "Max TTL", "nothing outlasts it without being read", "text"],
  ["mode", "Mode", "sliding: a read renews the deadline; fixed: it is never moved", "mode"],
  ["min_tokens", "Min tokens", "shorter prompts are not kept", "whole"],
  ["promise_budget", "Promise budget", "share of the pool that promises may hold, 0 to 1", "share"],
  ["pool_share", "Pool share", "share of the pool beyond which this tenant's entries go first, 0 to 1", "share"],
  ["priority", "Priority", "0 to 100; higher stays longer", "whole"],
];

/** A field's value as a form's text. */
export const spelt = (value) =>
  value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value);

/** What a form's texts say as a policy of this version. What is no number is sent as it is, for the server to refuse. */
export function parsed(texts, version) {
  const read = {
    text: (text) => text.trim(),
    optional: (text) => text.trim() || null,
    list: (text) => text.split(/[,\s]+/).filter(Boolean),
    mode: (text) => text,
    whole: number,
    share: number,
  };
  const told = FIELDS.map(([name, , , kind]) => [name, read[kind](texts[name] ?? "")]);
  return { ...Object.fromEntries(told), version };
}

const number = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text.trim());

/** Which fields differ: [{name, before, after}] as texts. `version` is no difference. */
export function differences(before, after) {
  return FIELDS.map(([name]) => ({
    name,
    before: before ? shown(before[name]) : null,
    after: after ? shown(after[name]) : null,
  })).filter((one) => one.before !== one.after);
}

const shown = (value) =>
  value === null || value === undefined ? "none" : Array.isArray(value) ? value.join(", ") || "none" : String(value);

/** What a policy governs: "every model and tenant", "tenant acme", "model tiny, tenant acme". */
export function governs({ model, tenant }) {
  const parts = [model && `model ${model}`, tenant && `tenant ${tenant}`].filter(Boolean);
  return parts.join(", ") || "every model and tenant";
}

/** One line of the audit trail as {title, detail}. */
export function line(entry) {
  const { what, subject, before, after } = entry;
  if (what === "policy.put") {
    const changes = differences(before, after).map(
      ({ name, before: was, after: is }) => `${name} ${was ?? "none"} → ${is}`,
    );
    if (!before) return { title: `Policy ${subject} made`, detail: after ? governs(after) : "" };
    return {
      title: `Policy ${subject} changed to version ${after?.version ?? "?"}`,
      detail: changes.join("; ") || "nothing but its version",
    };
  }
  if (what === "policy.delete")
    return {
      title: `Policy ${subject} deleted`,
      detail: before ? `it was version ${before.version}, for ${governs(before)}` : "",
    };
  if (what === "purge") return { title: `Purged ${subject || "all tenants"}`, detail: purged(before, after) };
  if (what === "policies.reseed")
    return { title: "Policies put back into the shared state", detail: Object.keys(after ?? {}).join(", ") };
  return { title: `${what}${subject ? ` ${subject}` : ""}`, detail: spelt(after?.title) };
}

function purged(filter, after) {
  const tokens = sums(after?.tenants ?? {}, "purged").tokens;
  const chosen = Object.entries(filter ?? {})
    .filter(([name, value]) => value && !["dry_run", "tenant"].includes(name))
    .map(([name, value]) => (value === true ? name : `${name.replaceAll("_", " ")} ${value}`));
  return [`${count(tokens)} tokens`, ...chosen].join("; ");
}

/** Entries, tokens and bytes of all tenants together, of "expire", "keep", "purged" or "kept". */
export function sums(tenants, part) {
  const all = { entries: 0, tokens: 0, bytes: 0 };
  for (const tenant of Object.values(tenants))
    for (const field of Object.keys(all)) all[field] += tenant[part]?.[field] ?? 0;
  return all;
}

/** The purge that a form's texts mean, and the word that must be typed before it is done. */
export function purge({ tenant, klass, older, model }) {
  const chosen = {
    tenant: tenant || undefined,
    model: model || undefined,
    class: klass || undefined,
    older_than: older.trim() || undefined,
  };
  const body = Object.fromEntries(Object.entries(chosen).filter(([, value]) => value !== undefined));
  return { body: Object.keys(body).length ? body : { all: true }, typed: tenant || "all tenants" };
}

/** The state that undoes a line of the audit trail: {put: policy} or {remove: {name, version}}, null where none can. */
export function undo(entry, policies) {
  const now = policies.find(({ name }) => name === entry.subject) ?? null;
  if (!["policy.put", "policy.delete"].includes(entry.what)) return null;
  if (entry.before)
    return differences(now, entry.before).length ? { put: { ...entry.before, version: now?.version ?? 0 } } : null;
  return now && entry.subject !== "default" ? { remove: { name: now.name, version: now.version } } : null;
}

/** The view's title: what needs a look, else how the pool is used. */
export function finding(answer, tokens, percent) {
  const broken = answer.broken.reduce((all, { blocks }) => all + blocks, 0);
  const { blocks, block_tokens: size, free } = answer.capacity;
  const [promised, held] = ["promised", "held"].map((part) => answer.classes.reduce((all, one) => all + one[part].tokens, 0));
  if (broken) {
    const worst = answer.broken.reduce((most, one) => (one.blocks > most.blocks ? one : most));
    return `${count(broken)} promised ${broken === 1 ? "block" : "blocks"} went before the deadline, most of ${worst.tenant} in ${worst.class}`;
  }
  if (!blocks) return "Retention";
  if (!promised && !held) return "The cache is empty";
  return `${percent(promised / (blocks * size))} of the pool is promised, ${percent(held / (blocks * size))} held, ${percent(free / blocks)} free`;
}

/** How much of what was read again came within a length of time: 0 to 1, by whole bins; null where nothing was read. */
export function within({ edges_s: edges, blocks }, seconds) {
  const all = blocks.reduce((sum, one) => sum + one, 0);
  if (!all) return null;
  return edges.reduce((sum, edge, place) => (edge <= seconds ? sum + blocks[place] : sum), 0) / all;
}
