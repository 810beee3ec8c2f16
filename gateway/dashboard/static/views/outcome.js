/**
 * How a request ended, as a sign and a word: the sign tells it without colour.
 */

import { el } from "../ui.js";

const SIGNS = { finished: "✓", failed: "!", refused: "⊘", cancelled: "✕" };

/** An outcome, its status on hover. */
export const outcome = ({ outcome: word, prewarm, status }) =>
  el(
    "span",
    { class: `outcome is-${word}`, title: status ? `HTTP ${status}` : null },
    el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[word] ?? "•"),
    el("span", { class: "word" }, prewarm && word === "finished" ? "pre-warmed" : word),
  );
