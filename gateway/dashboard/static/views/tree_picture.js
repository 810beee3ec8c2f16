/**
 * The icicle on a canvas: drawing it, pointing at it, moving in it by the keyboard. What lies where is icicle.js's.
 */

import { duration, seconds, si, tokens } from "../format.js";
import { ink, onRepaint } from "../paint.js";
import { el, fill } from "../ui.js";
import { at, layout, shade, step } from "./icicle.js";

const HEIGHT = 440;
const ROW = { least: 12, most: 40 };
const TEXT = 44; // pixels from which a bar is labelled
const FONT = "12px system-ui, sans-serif";
const MOVES = { ArrowDown: "down", ArrowUp: "up", ArrowLeft: "left", ArrowRight: "right", Home: "first", End: "last" };

/** Gives {element, update({top, chosen, scale}), held(), destroy()}. */
export function picture({ onchoose, onzoom, announce, ontable }) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const tip = el("div", { class: "tip", hidden: true });
  const element = el(
    "div",
    {
      class: "icicle",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "icicle picture",
      "aria-label": "The radix tree. Arrow keys move, Enter zooms in, Escape out, t shows a table.",
    },
    canvas,
    tip,
  );
  let shown = null; // {top, chosen, scale}
  let laid = [];
  let pointed = null;

  const draw = () => {
    const width = Math.floor(element.clientWidth);
    if (!shown || !width) return;
    const levels = shown.top.depth + 1;
    const rowHeight = Math.max(ROW.least, Math.min(ROW.most, Math.floor(HEIGHT / levels)));
    laid = layout(shown.top, { width, rows: Math.floor(HEIGHT / rowHeight), rowHeight });
    const ratio = devicePixelRatio;
    Object.assign(canvas, { width: width * ratio, height: HEIGHT * ratio });
    canvas.style.setProperty("height", `${HEIGHT}px`);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    for (const box of laid) bar(pen, box, shown.scale);
    outline(pen, pointed, "--soft", 1);
    outline(pen, shown.chosen, "--focus", 2);
  };
  const outline = (pen, item, colour, wide) => {
    const box = item && laid.find((one) => one.item === item);
    if (!box) return;
    pen.strokeStyle = ink(colour);
    pen.lineWidth = wide;
    pen.strokeRect(box.x + wide / 2, box.y + wide / 2, Math.max(wide, box.width - wide - 1), box.height - wide - 1);
  };
  const point = (event) => {
    const area = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const found = at(laid, x, y);
    if (found !== pointed) {
      pointed = found;
      draw();
    }
    tip.hidden = !found;
    if (!found) return;
    fill(
      tip,
      told(found).map((line, place) => el(place ? "div" : "strong", {}, line)),
    );
    const side = x > area.width / 2;
    tip.style.setProperty("left", side ? "auto" : `${x + 16}px`);
    tip.style.setProperty("right", side ? `${area.width - x + 16}px` : "auto");
    tip.style.setProperty("top", `${Math.min(y + 16, HEIGHT - 96)}px`);
  };
  const leave = () => {
    pointed = null;
    tip.hidden = true;
    draw();
  };
  const zoom = (item) => {
    if (item && item !== shown.top) onzoom(item.id);
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("click", (event) => {
    point(event);
    if (pointed) onchoose(pointed.id);
  });
  canvas.addEventListener("dblclick", () => zoom(pointed === shown.top ? shown.top.parent : pointed));
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !shown) return;
    if (event.key in MOVES) move(step(laid, shown.chosen, MOVES[event.key]));
    else if (event.key === "Enter") zoom(shown.chosen);
    else if (event.key === "Escape" && shown.top.parent) onzoom(shown.top.parent.id);
    else if (event.key === "t") ontable();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const move = (item) => {
    if (!item || item === shown.chosen) return;
    onchoose(item.id);
    announce(told(item).join(", "));
  };
  const observer = new ResizeObserver(draw);
  observer.observe(element);
  const stop = onRepaint(draw);
  return {
    element,
    update: (next) => {
      shown = next;
      draw();
    },
    held: () => element.matches(":hover, :focus-within"),
    destroy: () => {
      observer.disconnect();
      stop();
    },
  };
}

/** What a bar is, in a few lines. */
function told(item) {
  const { node } = item;
  if (!node) return [item.parent ? `Tenant ${item.label}` : "Everything", tokens(item.weight)];
  return [
    `${node.tenant} · ${node.model}`,
    `${node.class} ${node.kept}, ${node.left_s < 0 ? "past its deadline" : `${duration(node.left_s)} left`}`,
    `${tokens(node.tokens)} from ${node.start.toLocaleString("en")}, ${tokens(item.weight)} with all below`,
    `idle ${seconds(node.idle_s)}, read ${node.reads} times, ${node.leases} in use`,
  ];
}

function bar(pen, { item, x, y, width, height }, scale) {
  const step = shade(item.node, scale);
  const colour = step === null ? "--raised" : `--${scale === "idle" ? "heat" : "left"}-${step}`;
  const gap = width > 3 ? 1 : 0;
  pen.fillStyle = ink(colour);
  pen.fillRect(x, y, width - gap, height - 1);
  const own = step === null ? ink("--ink") : readable(ink(colour));
  if (item.node?.kept === "promised" && width > 2) {
    pen.fillStyle = own;
    pen.globalAlpha = 0.85;
    pen.fillRect(x, y + height - 4, width - gap, 3);
    pen.globalAlpha = 1;
  }
  if (width < TEXT || height < 15) return;
  pen.font = FONT;
  pen.fillStyle = own;
  pen.textBaseline = "middle";
  const leased = item.node?.leases > 0;
  if (leased) disc(pen, x + width - 9, y + height / 2 - 1);
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width - (leased ? 18 : 6), height);
  pen.clip();
  pen.fillText(label(item, width), x + 6, y + (height - 1) / 2);
  pen.restore();
}

function disc(pen, x, y) {
  pen.beginPath();
  pen.arc(x, y, 3.5, 0, 2 * Math.PI);
  pen.fill();
}

function label(item, width) {
  const own = tokens(item.weight);
  if (!item.node) return width > 110 ? `${item.label} · ${own}` : item.label;
  if (width < 110) return si(item.weight);
  return `${item.node.class} · ${own}`;
}

/** Black or white, whichever is read better on a colour such as "rgb(12, 34, 56)". */
function readable(colour) {
  const [red, green, blue] = colour.match(/[\d.]+/g).map(Number);
  return 0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2 > 0.18
    ? "#11151a"
    : "#ffffff";
}
