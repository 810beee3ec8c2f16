/**
 * What a policy or a purge would do, or did, by tenant: what goes, what stays.
 */

import { bytes, count } from "../format.js";
import { el } from "../ui.js";
import { sums } from "./policy_words.js";

/** gone and stay are the answer's words: "expire" and "keep", "purged" and "kept". */
export function effect(answer, { gone, stay, heads }) {
  const tenants = Object.entries(answer.tenants);
  if (!tenants.length) return el("p", {}, "Nothing is kept that it would touch.");
  const cells = (tally) =>
    [gone, stay].map((part) =>
      el(
        "td",
        { class: "num", title: `${count(tally[part].entries)} entries, ${bytes(tally[part].bytes)}` },
        count(tally[part].tokens),
      ),
    );
  const all = { [gone]: sums(answer.tenants, gone), [stay]: sums(answer.tenants, stay) };
  const leased =
    answer.leased_tokens > 0 &&
    el(
      "p",
      { class: "note" },
      `${count(answer.leased_tokens)} of these tokens are in use now; they go when their requests end.`,
    );
  return el(
    "div",
    {},
    el(
      "div",
      { class: "table" },
      el(
        "table",
        {},
        el("caption", { class: "hidden" }, "Tokens by tenant"),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["Tenant", ...heads].map((head, place) => el("th", { scope: "col", class: place ? "num" : null }, head)),
          ),
        ),
        el(
          "tbody",
          {},
          tenants.map(([tenant, tally]) => el("tr", {}, el("td", {}, tenant), cells(tally))),
        ),
        el("tfoot", {}, el("tr", {}, el("td", {}, "All"), cells(all))),
      ),
    ),
    leased,
  );
}

/** What would expire and what is kept. */
export const expiry = (answer) =>
  effect(answer, { gone: "expire", stay: "keep", heads: ["Expires, tokens", "Kept, tokens"] });
