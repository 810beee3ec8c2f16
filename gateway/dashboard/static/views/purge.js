/**
 * Purging: choose what is forgotten, see how much that is, type whose it is, be told what was done.
 */

import * as api from "../api.js";
import { count } from "../format.js";
import { act, el, modal, say } from "../ui.js";
import { purge, sums } from "./policy_words.js";
import { effect } from "./preview.js";

const SHOWN = { gone: "purged", stay: "kept" };

/** Ask what to purge. `changed` is called when something was. */
export function purging(context, changed) {
  const about = context.about();
  const { dialog, content } = modal("Purge");
  const select = (first, values) =>
    el(
      "select",
      {},
      el("option", { value: "" }, first),
      (values ?? []).map((value) => el("option", { value }, value)),
    );
  const fields = {
    tenant: select("All tenants", about?.tenants),
    model: select("All models", about?.models),
    klass: select(
      "All classes",
      about?.classes.map((one) => one.class),
    ),
    older: el("input", { type: "text", placeholder: "any age", autocomplete: "off", spellcheck: "false" }),
  };
  const problem = el("p", { class: "broken", role: "alert" });
  const labelled = (label, hint, control) =>
    el("label", { class: "field" }, label, control, el("span", { class: "hint" }, hint));
  const look = async (event) => {
    event.preventDefault();
    say(problem, "");
    const { body, typed } = purge(
      Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value])),
    );
    try {
      const seen = await api.post("purge", { ...body, dry_run: true });
      confirm(body, typed, seen, () => {
        dialog.close();
        changed();
      });
    } catch (error) {
      if (!("status" in error)) throw error;
      say(problem, error.message);
    }
  };
  content.append(
    el(
      "form",
      { class: "content", onsubmit: look, novalidate: true },
      el(
        "p",
        { class: "note" },
        "Entries that fit every choice are forgotten at once. The prompts still work; they are computed again at their next use.",
      ),
      el(
        "div",
        { class: "fields" },
        labelled("Tenant", "whose entries", fields.tenant),
        labelled("Model", "of which model", fields.model),
        labelled("Class", "kept under which class", fields.klass),
        labelled("Older than", "a duration such as 30m or 2h", fields.older),
      ),
      problem,
      el(
        "footer",
        {},
        el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        el("button", { type: "submit", class: "main" }, "Dry run"),
      ),
    ),
  );
}

function confirm(body, typed, seen, changed) {
  const words = Object.entries(body)
    .map(([name, value]) => (name === "all" ? "everything" : `${name.replaceAll("_", " ")} ${value}`))
    .join(", ");
  act({
    title: `Purge ${words}`,
    verb: "Purge",
    typed,
    preview: async () =>
      el(
        "div",
        { class: "preview" },
        el("p", {}, `This was a dry run: ${count(sums(seen.tenants, "purged").tokens)} tokens would go.`),
        effect(seen, { ...SHOWN, heads: ["Goes, tokens", "Stays, tokens"] }),
      ),
    confirm: async () => {
      const done = await api.post("purge", body);
      changed();
      return el(
        "div",
        { class: "preview" },
        el(
          "p",
          {},
          `${count(sums(done.tenants, "purged").tokens)} tokens are purged.${done.audited ? "" : " It could not be written into the audit trail."}`,
        ),
        effect(done, { ...SHOWN, heads: ["Purged, tokens", "Kept, tokens"] }),
        el(
          "p",
          { class: "note" },
          "Nothing brings them back; each prompt is computed again at its next use and kept as before.",
        ),
      );
    },
  });
}
