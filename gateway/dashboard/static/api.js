/**
 * The operators' API as promises, and its live stream. Owns the admin key, kept for this tab alone.
 *
 * A call that is told 401 waits until the key was asked for, once for all calls that wait, and is made again.
 */

const BASE = "admin/v1/";
const KEPT = "keepwarm-admin-key";
const RETRY_S = [1, 2, 5, 10, 30];

let askForKey = async () => null;
let asking = null;

/** An answer that is no success; status 0 where none came. */
export class ApiError extends Error {
  constructor(status, message, { field = null, allowed = null, version = null } = {}) {
    super(message);
    Object.assign(this, { status, field, allowed, version, at: Date.now() / 1000 });
  }
}

/** Say how the key is asked for: a function that resolves to the key, or to null. */
export const onUnauthorized = (ask) => { askForKey = ask; };

/** GET a path below /admin/v1/, such as get("usage", {from: "-1h"}). */
export const get = (path, params = {}, options = {}) => json("GET", path, { params, ...options });

/** POST a body. */
export const post = (path, body, options = {}) => json("POST", path, { body, ...options });

/** PUT a body. */
export const put = (path, body, options = {}) => json("PUT", path, { body, ...options });

/** DELETE with query parameters. */
export const remove = (path, params = {}, options = {}) => json("DELETE", path, { params, ...options });

/** GET a path and keep it as a file. */
export async function download(path, params, name) {
  const answer = await call("GET", path, { params });
  save(await answer.blob(), name);
}

/** Hand a blob or text to the browser as a file. */
export function save(content, name, type = "text/csv") {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Build an address; absent parameters are left out. */
export function address(path, params = {}) {
  const told = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(told).toString();
  return `${BASE}${path}${search ? `?${search}` : ""}`;
}

async function json(method, path, options) {
  const answer = await call(method, path, options);
  return answer.status === 204 ? null : answer.json();
}

async function call(method, path, { params, body, signal } = {}) {
  const answer = await send(method, path, { params, body, signal });
  if (answer.status === 401 && (await newKey())) return checked(await send(method, path, { params, body, signal }));
  return checked(answer);
}

async function send(method, path, { params, body, signal, accept = "application/json" }) {
  const headers = { Accept: accept };
  const key = sessionStorage.getItem(KEPT);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(address(path, params), {
      method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The gateway does not answer.");
  }
}

async function checked(answer) {
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  const said = told.error ?? {};
  throw new ApiError(answer.status, said.message ?? `The gateway answered ${answer.status}.`, said);
}

function newKey() {
  asking ??= askForKey().finally(() => { asking = null; });
  return asking.then((key) => {
    if (key) sessionStorage.setItem(KEPT, key);
    return Boolean(key);
  });
}

// ---- live ----

const hearers = new Map();
const newest = new Map(); // of what holds until the next of its kind, for who begins to listen later
const HOLDS = ["state", "link"];

/** Hear the live stream's events "request", "state", "change", "lost", and "link" with {open, since}. Returns what ends it. */
export function on(event, hearer) {
  if (!hearers.has(event)) hearers.set(event, new Set());
  hearers.get(event).add(hearer);
  if (newest.has(event)) hearer(newest.get(event));
  return () => hearers.get(event).delete(hearer);
}

/** Keep the live stream open while the tab can be seen. Returns what ends it. */
export function live() {
  let stream = null;
  const follow = () => {
    if (document.hidden) {
      stream?.abort();
      stream = null;
    } else if (!stream) {
      stream = new AbortController();
      keepOpen(stream.signal);
    }
  };
  document.addEventListener("visibilitychange", follow);
  follow();
  return () => {
    document.removeEventListener("visibilitychange", follow);
    stream?.abort();
  };
}

async function keepOpen(signal) {
  for (let failures = 0; !signal.aborted; failures += 1) {
    try {
      const answer = await stream(signal);
      tell("link", { open: true, since: Date.now() / 1000 });
      failures = 0;
      for await (const [event, data] of events(answer.body)) tell(event, JSON.parse(data));
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    if (signal.aborted) return;
    tell("link", { open: false, since: Date.now() / 1000 });
    await new Promise((go) => setTimeout(go, 1000 * RETRY_S[Math.min(failures, RETRY_S.length - 1)]));
  }
}

async function stream(signal) {
  const ask = () => send("GET", "live", { signal, accept: "text/event-stream" });
  const answer = await ask();
  if (answer.status === 401 && (await newKey())) return checked(await ask());
  return checked(answer);
}

/** The events of a stream of bytes, as [name, data]; comment lines are passed over. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => line.match(/^(\w+): ?(.*)$/)).filter(Boolean);
      const data = fields.filter(([, name]) => name === "data").map(([, , text]) => text).join("\n");
      if (data) yield [fields.find(([, name]) => name === "event")?.[2] ?? "message", data];
    }
  }
}

function tell(event, data) {
  if (HOLDS.includes(event)) newest.set(event, data);
  for (const hearer of [...(hearers.get(event) ?? [])]) hearer(data);
}
