/**
 * The policies: a table, a form for each, what a change would do before it is made, and how it is undone.
 */

import * as api from "../api.js";
import { count } from "../format.js";
import { act, el, loader, modal, panel, say, table, unique } from "../ui.js";
import { FIELDS, differences, governs, parsed, spelt, sums } from "./policy_words.js";
import { expiry } from "./preview.js";
import { purging } from "./purge.js";

const MADE = { name: "", model: null, tenant: null, version: 0 };

/** Gives {panel, load(state), stop(), undo(wanted)}; `changed` is called when something was done. */
export function policies(context, changed) {
  const edit = (policy) => form(policy, changed);
  let known = [];
  let last = null;
  const make = el(
    "button",
    { type: "button", onclick: () => edit({ ...known.find(({ name }) => name === "default"), ...MADE }) },
    "New policy",
  );
  const purge = el("button", { type: "button", onclick: () => purging(context, changed) }, "Purge …");
  const holder = panel({
    title: "Policies",
    span: 12,
    actions: [make, purge],
    definition: {
      text: "What operators decide for each model and tenant. The most specific governs: model and tenant, tenant, model, default.",
    },
  });
  holder.element.querySelector(".actions").classList.add("spaced");
  const percent = (share) => `${Math.round(share * 1000) / 10}\u202f%`;
  const rows = table({
    caption: "All policies, default first",
    columns: [
      {
        key: "name",
        label: "Name",
        format: (name, policy) =>
          el(
            "button",
            { type: "button", class: "linked", "aria-label": `Edit policy ${name}`, onclick: () => edit(policy) },
            name,
          ),
      },
      { key: "governs", label: "Governs", value: governs },
      { key: "default_ttl", label: "Default TTL", format: (ttl) => ttl ?? "none" },
      { key: "allowed_ttls", label: "Allowed TTLs", value: ({ allowed_ttls: ttls }) => spelt(ttls) || "none" },
      { key: "max_ttl", label: "Max TTL" },
      { key: "mode", label: "Mode" },
      { key: "min_tokens", label: "Min tokens", number: true, format: count },
      { key: "promise_budget", label: "Promise budget", number: true, format: percent },
      { key: "pool_share", label: "Pool share", number: true, format: percent },
      { key: "priority", label: "Priority", number: true, format: count },
      { key: "version", label: "Version", number: true, format: count },
    ],
  });
  holder.body.append(rows.element);
  const load = loader({
    panels: [holder],
    fetch: (_, signal) => api.get("policies", {}, { signal }),
    show: (answer) => {
      const told = JSON.stringify(answer.policies);
      if (told === JSON.stringify(known)) return;
      known = answer.policies;
      rows.update(known);
    },
  });
  return {
    panel: holder,
    load: (state = last) => {
      last = state;
      return load.load(state);
    },
    stop: load.stop,
    undo: (wanted) =>
      wanted.put
        ? change(wanted.put, known.find(({ name }) => name === wanted.put.name) ?? null, changed, "Put back")
        : removal(
            known.find(({ name }) => name === wanted.remove.name),
            changed,
          ),
  };
}

/** Ask for a policy's fields. The change is looked at before it is made, and the form waits behind that. */
function form(policy, changed) {
  const made = policy.version === 0 && policy.name === "";
  const before = made ? null : policy;
  const { dialog, content } = modal(made ? "New policy" : `Policy ${policy.name}`);
  const fields = Object.fromEntries(FIELDS.map((field) => [field[0], input(field, policy, made)]));
  const problem = el("p", { class: "broken", role: "alert" });
  const go = el("button", { type: "submit", class: "main" }, "Preview");
  const remove =
    !made &&
    policy.name !== "default" &&
    el("button", { type: "button", onclick: () => removal(policy, changed, () => dialog.close()) }, "Delete …");
  const look = async (event) => {
    event.preventDefault();
    go.disabled = true;
    const wanted = parsed(
      Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value()])),
      policy.version,
    );
    Object.values(fields).forEach((field) => field.wrong(null));
    say(problem, "");
    try {
      const seen = await api.post("policies/preview", wanted);
      change(
        wanted,
        before,
        () => {
          dialog.close();
          changed();
        },
        "Change it",
        seen,
      );
    } catch (error) {
      if (!("status" in error)) throw error;
      const field = fields[error.field];
      if (field) field.wrong(error);
      else say(problem, error.message);
    }
    go.disabled = false;
  };
  content.append(
    el(
      "form",
      { class: "content", onsubmit: look, novalidate: true },
      el(
        "div",
        { class: "fields" },
        Object.values(fields).map(({ element }) => element),
      ),
      problem,
      el(
        "footer",
        {},
        remove,
        el("span", { class: "spring" }),
        el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        go,
      ),
    ),
  );
}

function input([name, label, hint, kind], policy, made) {
  const [id, told] = [unique("field"), unique("hint")];
  const given = { id, name, "aria-describedby": told, autocomplete: "off", spellcheck: "false" };
  const numeric = { whole: { inputmode: "numeric" }, share: { inputmode: "decimal" } }[kind] ?? {};
  const control =
    kind === "mode"
      ? el(
          "select",
          given,
          ["sliding", "fixed"].map((mode) => el("option", { value: mode, selected: policy.mode === mode }, mode)),
        )
      : el("input", {
          type: "text",
          ...given,
          ...numeric,
          value: spelt(policy[name]),
          readonly: name === "name" && !made,
        });
  const below = el("span", { class: "hint", id: told }, hint);
  return {
    element: el("label", { class: "field", for: id }, label, control, below),
    value: () => control.value,
    wrong: (error) => {
      control.setAttribute("aria-invalid", String(Boolean(error)));
      below.classList.toggle("wrong", Boolean(error));
      say(below, error ? error.message : hint);
      if (error) control.focus();
    },
  };
}

/** Show what a policy would change, make it when told to, and say how it is undone. */
function change(wanted, before, changed, verb, seen = null) {
  let effect = null;
  const dialog = act({
    title: `${before ? "Change" : "Make"} policy ${wanted.name}`,
    verb,
    preview: async () => {
      effect = seen ?? (await api.post("policies/preview", wanted));
      return el("div", { class: "preview" }, changes(before, wanted), expiry(effect));
    },
    confirm: async () => {
      const stored = await api.put(`policies/${encodeURIComponent(wanted.name)}`, wanted);
      changed();
      const gone = sums(effect.tenants, "expire").tokens;
      const undone = before ? { ...before, version: stored.version } : null;
      const back = () => {
        dialog.close();
        if (undone) change(undone, stored, changed, "Put back");
        else removal(stored, changed);
      };
      return el(
        "div",
        { class: "preview" },
        el(
          "p",
          {},
          `Policy ${stored.name} is version ${stored.version} now. ${gone ? `${count(gone)} tokens expired.` : "Nothing expired."}`,
        ),
        el(
          "p",
          { class: "note" },
          undone
            ? "To undo it, put the old fields back; what expired stays gone and is computed again at its next use."
            : "To undo it, delete it.",
        ),
        el("p", {}, el("button", { type: "button", onclick: back }, undone ? "Put back the old version" : "Delete it")),
      );
    },
  });
}

function changes(before, after) {
  const found = differences(before, after);
  if (!found.length) return el("p", {}, "No field changes but the version.");
  return el(
    "dl",
    { class: "changes" },
    found.flatMap((one) => [el("dt", {}, one.name), el("dd", {}, before ? `${one.before} → ${one.after}` : one.after)]),
  );
}

/** Show what a policy's going would change, delete it when told to. */
function removal(policy, changed, done = () => {}) {
  const dialog = act({
    title: `Delete policy ${policy.name}`,
    verb: "Delete it",
    typed: policy.name,
    preview: async () =>
      el(
        "div",
        { class: "preview" },
        el("p", {}, `What it governs (${governs(policy)}) falls to the next policy that fits.`),
        expiry(await api.post("policies/preview", { delete: policy.name })),
      ),
    confirm: async () => {
      await api.remove(`policies/${encodeURIComponent(policy.name)}`, { version: policy.version });
      done();
      changed();
      const back = () => {
        dialog.close();
        change({ ...policy, version: 0 }, null, changed, "Put back");
      };
      return el(
        "div",
        { class: "preview" },
        el("p", {}, `Policy ${policy.name} is deleted.`),
        el("p", { class: "note" }, "To undo it, make it again with the same fields; what expired stays gone."),
        el("p", {}, el("button", { type: "button", onclick: back }, "Put it back")),
      );
    },
  });
}
