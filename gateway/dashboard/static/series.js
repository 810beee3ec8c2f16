/**
 * Answers of /admin/v1/usage as columns for charts. Pure.
 */

/** The starts of the buckets. */
export const times = (usage) => usage.buckets.map((bucket) => bucket.start);

/** One value of each bucket, or null where there is none. */
export const column = (usage, pick) => usage.buckets.map((bucket) => pick(bucket.total) ?? null);

/** One value of each bucket for the group that has these fields; 0 where the group did nothing. */
export const groupColumn = (usage, by, pick) => {
  const wanted = JSON.stringify(by);
  return usage.buckets.map((bucket) => {
    const found = bucket.groups.find((group) => JSON.stringify(group.by) === wanted);
    return found ? pick(found.total) ?? null : 0;
  });
};

/** A rate per second of each bucket; the one that still runs is left out. */
export const rate = (usage, pick) => usage.buckets.map((bucket) => {
  const value = pick(bucket.total);
  return bucket.start + usage.bucket_s > usage.to + 1 || value === null ? null : value / usage.bucket_s;
});

/** The sum of an object's numbers. */
export const sum = (numbers) => Object.values(numbers ?? {}).reduce((all, one) => all + one, 0);

/** The labels of classes, shortest first, that the answer or the server knows of. */
export function classes(usage, about) {
  const lengths = new Map((about?.classes ?? []).map((one) => [one.class, one.ttl_s]));
  const seen = new Set([...lengths.keys(), ...Object.keys(usage.total.write_tokens ?? {})]);
  return [...seen].sort((a, b) => (lengths.get(a) ?? length(a)) - (lengths.get(b) ?? length(b)));
}

const length = (label) => Number.parseFloat(label) * ({ s: 1, m: 60, h: 3600, d: 86_400 }[label.at(-1)] ?? 1);

/** The sums of a value since the range began, bucket by bucket. */
export function running(usage, pick) {
  let all = 0;
  return usage.buckets.map((bucket) => (all += pick(bucket.total) ?? 0));
}

/** The ends of a time axis: the range, or the first bucket where that begins before it. */
export const span = (usage) => [Math.min(usage.from, usage.buckets[0]?.start ?? usage.from), usage.to];
