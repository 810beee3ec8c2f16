/**
 * Numbers, times and shares as words. Pure: the clock, the zone and the sample are arguments.
 *
 * Rules: unknown is `–`, zero is `0`, NaN and infinity never leave this module. A share of few requests is told as
 * counts, for a percentage of three says more than is known.
 */

export const UNKNOWN = "–";
export const FEW = 20; // requests below which a share is told as counts
const SPACE = "\u202f"; // narrow, and no line ends there
const SI = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12], ["P", 1e15]];
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Whether this is a number that can be shown. */
export const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 1234567 → "1,234,567": every digit, for tables and exact titles. */
export const count = (value) =>
  known(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",") : UNKNOWN;

/** 1234567 → "1.2 M"; whole below 10,000. */
export const si = (value) => {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 10_000) return small(value);
  return scaled(value);
};

/** 5000 → "5 k": as short as it goes, for axes. */
export const short = (value) => (known(value) && Math.abs(value) >= 1000 ? scaled(value) : si(value));

/** 1234567 → "1.2 M tokens". */
export const tokens = (value) => (known(value) ? `${si(value)}${SPACE}${value === 1 ? "token" : "tokens"}` : UNKNOWN);

/** 1536 → "1.5 KiB". */
export const bytes = (value) => {
  if (!known(value)) return UNKNOWN;
  const step = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), BINARY.length - 1);
  return `${step === 0 ? count(value) : trim(value / 1024 ** step)}${SPACE}${BINARY[step]}`;
};

/** 0.1842 → "184 ms": how long something took. */
export const seconds = (value) => {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return `0${SPACE}s`;
  const size = Math.abs(value);
  if (size < 0.001) return `${trim(value * 1e6)}${SPACE}µs`;
  if (size < 0.9995) return `${trim(value * 1e3)}${SPACE}ms`;
  return size < 99.95 ? `${size < 9.995 ? trim2(value) : trim(value)}${SPACE}s` : duration(value);
};

/** 5400 → "1 h 30 min": a length of time that people count in minutes, hours or days. */
export const duration = (value) => {
  if (!known(value)) return UNKNOWN;
  const whole = Math.round(Math.abs(value));
  const parts = [[Math.floor(whole / 86_400), "d"], [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"], [whole % 60, "s"]];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return `0${SPACE}s`;
  const shown = parts.slice(first, first + 2).filter(([amount]) => amount > 0);
  return (value < 0 ? "−" : "") + shown.map(([amount, unit]) => `${amount}${SPACE}${unit}`).join(" ");
};

/** 0.8241 → "82.4 %"; of few requests (n) it is told as counts: "2 of 3". */
export const percent = (ratio, n = Infinity) => {
  if (!known(ratio)) return UNKNOWN;
  if (n === 0) return UNKNOWN;
  if (n < FEW) return `${count(ratio * n)} of ${count(n)}`;
  return `${(ratio * 100).toFixed(1)}${SPACE}%`;
};

/** A part of a whole as per cent, or as counts when it comes of few requests. */
export const share = (part, whole, requests = Infinity) => {
  if (!known(part) || !known(whole) || whole === 0) return UNKNOWN;
  return requests < FEW ? `${si(part)} of ${si(whole)}` : percent(part / whole);
};

/** An amount of money with its currency: "12.40 USD". */
export const money = (amount, currency) =>
  known(amount) ? `${amount < 0 ? "−" : ""}${fixed(Math.abs(amount))}${SPACE}${currency ?? ""}`.trim() : UNKNOWN;

/** How long ago: "12 s ago", "in 3 min". */
export const when = (at, now) => {
  if (!known(at) || !known(now)) return UNKNOWN;
  const ago = now - at;
  if (Math.abs(ago) < 1) return "now";
  const largest = duration(ago < 0 ? -ago : ago).split(" ")[0];
  return ago < 0 ? `in ${largest}` : `${largest} ago`;
};

/** A moment as "2026-03-01 14:05:09 UTC", or in the browser's own zone. */
export const exact = (at, zone = "utc") => {
  if (!known(at)) return UNKNOWN;
  const part = parts(at, zone);
  return `${part.date} ${part.time} ${zone === "utc" ? "UTC" : offset(at)}`;
};

/** A moment as "14:05". */
export const clock = (at, zone = "utc") => (known(at) ? parts(at, zone).time.slice(0, 5) : UNKNOWN);

/** A span of time as "1 Mar 14:05 to 14:06". */
export const between = (from, to, zone = "utc") => {
  const [a, b] = [parts(from, zone), parts(to, zone)];
  const day = ({ date }) => `${Number(date.slice(8))} ${MONTHS[Number(date.slice(5, 7)) - 1]}`;
  const time = to - from < 60 ? (part) => part.time : (part) => part.time.slice(0, 5);
  return `${day(a)} ${time(a)} to ${a.date === b.date ? "" : `${day(b)} `}${time(b)}`;
};

/** A moment as "1 Mar", "14:05" or "14:05:30": what a tick of this many seconds needs. */
export const tick = (at, step, zone = "utc") => {
  const { date, time } = parts(at, zone);
  const day = `${Number(date.slice(8))} ${MONTHS[Number(date.slice(5, 7)) - 1]}`;
  if (step >= 86_400 || time === "00:00:00") return day;
  return step >= 60 ? time.slice(0, 5) : time;
};

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const parts = (at, zone) => {
  const moment = new Date(at * 1000);
  const shifted = zone === "utc" ? moment : new Date(moment - moment.getTimezoneOffset() * 60_000);
  const text = shifted.toISOString();
  return { date: text.slice(0, 10), time: text.slice(11, 19) };
};

const offset = (at) => {
  const minutes = -new Date(at * 1000).getTimezoneOffset();
  const size = Math.abs(minutes);
  const two = (part) => String(Math.floor(part)).padStart(2, "0");
  return `${minutes < 0 ? "−" : "+"}${two(size / 60)}:${two(size % 60)}`;
};

const scaled = (value) => {
  const [unit, size] = SI.findLast(([, each]) => Math.abs(value) >= each * 0.9995) ?? SI[0];
  return `${trim(value / size)}${SPACE}${unit}`;
};

const small = (value) => {
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 100) return count(value);
  return size < 1 ? String(Number(value.toPrecision(2))) : trim(value);
};

/** Three digits or one behind the point: 1.25 → "1.3", 184.2 → "184". */
const trim = (value) => (Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, ""));

const trim2 = (value) => value.toFixed(2).replace(/\.?0+$/, "");

const fixed = (amount) => {
  const [whole, rest] = amount.toFixed(amount !== 0 && amount < 0.1 ? 4 : 2).split(".");
  return `${count(Number(whole))}.${rest}`;
};
