/**
 * The radix tree as an icicle picture: where each node lies, which one is at a point, which is next to another. Pure.
 *
 * Width is tokens: a node is as wide as all that continues it and itself, its children lie below it, oldest first so that
 * nothing changes places when something is added. Above the nodes lie a bar for each tenant and one for all.
 */

export const ALL = "all";

/** Build the tree: {root, byId: Map}. A node is {id, parent, children, level, weight, node | null, label}. */
export function build(nodes) {
  const root = item(ALL, null, "everything");
  const byId = new Map([[ALL, root]]);
  const tenants = new Map();
  for (const node of nodes) {
    if (!tenants.has(node.tenant))
      tenants.set(node.tenant, put(byId, root, item(`tenant ${node.tenant}`, null, node.tenant)));
    const above = byId.get(node.parent) ?? tenants.get(node.tenant);
    put(byId, above, item(node.id, node, node.class));
  }
  for (const one of [...byId.values()].reverse()) weigh(one);
  for (const one of byId.values()) one.children.sort(order);
  return { root, byId };
}

const item = (id, node, label) => ({
  id,
  node,
  label,
  parent: null,
  children: [],
  level: 0,
  weight: node ? Math.max(node.subtree_tokens, node.tokens) : 0,
  depth: 0,
});

function put(byId, above, one) {
  byId.set(one.id, one);
  one.parent = above;
  one.level = above.level + 1;
  above.children.push(one);
  return one;
}

/** A bar is as heavy as what lies below it; a node at least as heavy as its shown children and itself. */
function weigh(one) {
  const below = one.children.reduce((all, child) => all + child.weight, 0);
  one.weight = Math.max(one.weight, below + (one.node?.tokens ?? 0));
  one.depth = one.children.reduce((most, child) => Math.max(most, child.depth + 1), 0);
}

function order(a, b) {
  if (!a.node || !b.node) return a.label < b.label ? -1 : 1;
  return b.node.age_s - a.node.age_s || (a.id < b.id ? -1 : 1);
}

/**
 * Lay out what is at and below `top` in a picture of this size: [{item, x, y, width, height}], above before below. What is
 * narrower than `least` pixels is left out with all below it, and so is what does not fit in height.
 */
export function layout(top, { width, rows, rowHeight, least = 0.75 }) {
  const laid = [];
  const place = (one, x, wide, row) => {
    if (wide < least || row >= rows) return;
    laid.push({ item: one, x, y: row * rowHeight, width: wide, height: rowHeight });
    let left = x;
    for (const child of one.children) {
      const share = one.weight ? (child.weight / one.weight) * wide : 0;
      place(child, left, share, row + 1);
      left += share;
    }
  };
  place(top, 0, width, 0);
  return laid;
}

/** What is drawn at a point, or null. */
export const at = (laid, x, y) =>
  laid.findLast((box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height)?.item ?? null;

/** Where a key leads from an item: "down", "up", "left", "right", "first", "last"; the item itself where nothing is. */
export function step(laid, from, direction) {
  const here = laid.find(({ item: one }) => one === from);
  if (!here) return laid[0]?.item ?? null;
  const beside = laid.filter(({ y }) => y === here.y);
  const place = beside.indexOf(here);
  const found = {
    down: () => laid.find(({ item: one }) => one.parent === from),
    up: () => laid.find(({ item: one }) => one === from.parent),
    left: () => beside[place - 1],
    right: () => beside[place + 1],
    first: () => laid[0],
    last: () => beside.at(-1),
  }[direction]?.();
  return found?.item ?? from;
}

/** The items from the top down to this one. */
export function path(one) {
  const found = [];
  for (let here = one; here; here = here.parent) found.unshift(here);
  return found;
}

/** The steps of each scale in seconds, and their words: a node's step is the first whose edge it does not exceed. */
export const SCALES = {
  idle: { edges: [10, 60, 300, 1800], words: ["up to 10 s", "1 min", "5 min", "30 min", "longer"], field: "idle_s" },
  left: { edges: [60, 300, 1800, 7200], words: ["up to 1 min", "5 min", "30 min", "2 h", "longer"], field: "left_s" },
};

/** The step of a node on a scale, from 0; null where it does not apply. */
export function shade(node, scale) {
  if (!node) return null;
  const value = node[SCALES[scale].field];
  const found = SCALES[scale].edges.findIndex((edge) => value <= edge);
  return found < 0 ? SCALES[scale].edges.length : found;
}

/** The view's title. */
export function finding(answer, count, tokens) {
  if (!answer.nodes.length) return "The tree is empty";
  const roots = answer.nodes.filter(({ parent }) => parent === null);
  const sum = roots.reduce((all, node) => all + node.subtree_tokens, 0);
  const largest = roots.reduce((most, node) => (node.subtree_tokens > most.subtree_tokens ? node : most));
  const nodes = `${count(answer.total)} ${answer.total === 1 ? "node" : "nodes"}`;
  if (roots.length < 2) return `The tree holds ${tokens(sum)} in ${nodes}`;
  return `The tree holds ${tokens(sum)} in ${nodes}; its largest prompt beginning, of ${largest.tenant}, ${tokens(largest.subtree_tokens)}`;
}
