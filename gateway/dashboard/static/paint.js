/**
 * Colours for canvases, taken from the stylesheet so that both speak alike, in light and dark.
 */

const inks = new Map();
const probe = document.createElement("i");
const repaint = new Set();

/** The colour of a custom property such as "--read", as the theme has it now; `alpha` thins it. */
export function ink(name, alpha = 1) {
  const key = `${name} ${alpha}`;
  if (!inks.has(key)) {
    if (!probe.isConnected) document.body.append(Object.assign(probe, { hidden: true }));
    probe.style.color = alpha === 1 ? `var(${name})` : `color-mix(in srgb, var(${name}) ${alpha * 100}%, transparent)`;
    inks.set(key, getComputedStyle(probe).color);
  }
  return inks.get(key);
}

/** Grey lines on nothing: what is unknown, told from all that is known without colour. */
export function hatch(context, name = "--unknown") {
  const size = 6 * devicePixelRatio;
  const tile = Object.assign(document.createElement("canvas"), { width: size, height: size });
  const pen = tile.getContext("2d");
  pen.strokeStyle = ink(name);
  pen.lineWidth = 1.5 * devicePixelRatio;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

/** Be told when the colours have changed. Returns what ends that. */
export function onRepaint(listener) {
  repaint.add(listener);
  return () => repaint.delete(listener);
}

/** Say that the colours have changed. */
export function themed() {
  inks.clear();
  for (const listener of repaint) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

/** The custom property of each kind of token, in the order in which they are stacked. */
export const COLOURS = { read: "--read", uncached: "--uncached", unknown: "--unknown", hit: "--hit", miss: "--miss" };

/** The colour of writes of the class at this place among the classes by length: darker for longer. */
export const writeColour = (place) => `--write-${Math.min(place, 3) + 1}`;
