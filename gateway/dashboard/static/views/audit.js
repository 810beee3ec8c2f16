/**
 * The audit trail: who did what and when, newest first, and the way back where there is one.
 */

import * as api from "../api.js";
import { exact, when } from "../format.js";
import { el, fill, loader, panel } from "../ui.js";
import { line, undo } from "./policy_words.js";

const PAGE = 10;

/** Gives {panel, load(state), stop(), onundo(f)}. */
export function audit() {
  const holder = panel({
    title: "Audit trail",
    span: 12,
    definition: { text: "Every policy that was changed and every purge, with who did it. Newest first." },
  });
  holder.element.classList.add("audit");
  const list = el("ol", { class: "list" });
  const more = el(
    "button",
    {
      type: "button",
      hidden: true,
      onclick: () => {
        shown += PAGE;
        load.load(last);
      },
    },
    "Show older",
  );
  let shown = PAGE;
  let last = null;
  let hearer = () => {};
  let told = "";
  holder.body.append(list, more);
  const entry = (each, policies, zone) => {
    const { title, detail } = line(each);
    const back = undo(each, policies);
    return el(
      "li",
      {},
      el(
        "time",
        { title: exact(each.at, zone), datetime: new Date(each.at * 1000).toISOString(), dataset: { at: each.at } },
        when(each.at, Date.now() / 1000),
      ),
      el(
        "span",
        {},
        title,
        el("span", { class: "note" }, ` by ${each.by}`),
        detail && el("span", { class: "note block" }, detail),
      ),
      back
        ? el(
            "button",
            { type: "button", class: "quiet", "aria-label": `Undo: ${title}`, onclick: () => hearer(back) },
            "Undo …",
          )
        : el("span"),
    );
  };
  const load = loader({
    panels: [holder],
    fetch: async (_, signal) => {
      const [trail, rules] = await Promise.all([
        api.get("audit", { limit: shown + 1 }, { signal }),
        api.get("policies", {}, { signal }),
      ]);
      return { lines: trail.lines, policies: rules.policies };
    },
    isEmpty: ({ lines }) => (lines.length ? false : { say: "Nobody changed a policy or purged anything yet." }),
    show: ({ lines, policies }, state) => {
      const key = JSON.stringify([lines, policies, state?.zone, shown]);
      if (key === told) return again(list);
      told = key;
      more.hidden = lines.length <= shown;
      return fill(
        list,
        lines.slice(0, shown).map((each) => entry(each, policies, state?.zone)),
      );
    },
  });
  return {
    panel: holder,
    load: (state = last) => {
      last = state;
      return load.load(state);
    },
    stop: load.stop,
    onundo: (told) => {
      hearer = told;
    },
  };
}

/** Say anew how long ago each was, and leave the rest. */
function again(list) {
  for (const time of list.querySelectorAll("time")) {
    const words = when(Number(time.dataset.at), Date.now() / 1000);
    if (time.textContent !== words) time.textContent = words;
  }
}
