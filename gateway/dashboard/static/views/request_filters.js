/**
 * What narrows the list of requests besides the bar on top: outcome, reason, least prompt tokens. All in the URL.
 */

import * as state from "../state.js";
import { el, fill } from "../ui.js";
import { ORDER, ordered, spoken } from "./reasons.js";

const OUTCOMES = ["finished", "failed", "refused", "cancelled"];
const LEAST = [0, 256, 1024, 4096, 16_384, 65_536];

/** Gives {element, update(state, about)}. */
export function filters() {
  const pick = (name, label, first, options) => {
    const select = el("select", {
      "aria-label": label,
      onchange: () => state.set({ [name]: select.value || null }, { replace: true }),
    });
    offer(select, first, options);
    return select;
  };
  const outcome = pick(
    "outcome",
    "Outcome",
    "All outcomes",
    OUTCOMES.map((word) => [word, word]),
  );
  const reason = pick(
    "reason",
    "Reason of a miss",
    "All reasons",
    ORDER.map((word) => [word, spoken(word)]),
  );
  const min = pick(
    "min",
    "Prompt tokens at least",
    "Prompts of any length",
    LEAST.filter(Boolean).map((least) => [String(least), `at least ${least.toLocaleString("en")} tokens`]),
  );
  let known = "";
  return {
    element: el("div", { class: "narrow" }, outcome, reason, min),
    update: (now, about) => {
      const reasons = ordered([...(about?.reasons ?? ORDER), ...(now.reason ? [now.reason] : [])]);
      if (reasons.join() !== known)
        offer(
          reason,
          "All reasons",
          reasons.map((word) => [word, spoken(word)]),
        );
      known = reasons.join();
      if (now.min && ![...min.options].some((option) => option.value === now.min))
        min.append(el("option", { value: now.min }, `at least ${now.min} tokens`));
      outcome.value = now.outcome ?? "";
      reason.value = now.reason ?? "";
      min.value = now.min ?? "";
    },
  };
}

const offer = (select, first, options) =>
  fill(
    select,
    el("option", { value: "" }, first),
    options.map(([value, label]) => el("option", { value }, label)),
  );
