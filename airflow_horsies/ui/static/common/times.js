// Formats times in the zone that the user selected in Airflow, and durations.

import { h } from "./dom.js";

const DAY = { year: "numeric", month: "2-digit", day: "2-digit" };
const MINUTES = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const CLOCK = { ...MINUTES, second: "2-digit" };
const DAY_MS = 86_400_000;

/** @returns {string | undefined} */
function chosenTimeZone() {
  try {
    const zone = JSON.parse(localStorage.getItem("timezone") ?? "null");
    new Intl.DateTimeFormat("en", { timeZone: zone });
    return zone ?? undefined;
  } catch {
    return undefined;
  }
}

const timeZone = chosenTimeZone();
// Swedish writes dates as ISO does, which is how Airflow shows them.
const format = {
  full: dateFormat({ ...DAY, ...CLOCK }),
  clock: dateFormat(CLOCK),
  minutes: dateFormat(MINUTES),
  day: dateFormat(DAY),
};

/** @param {object} options */
function dateFormat(options) {
  return new Intl.DateTimeFormat("sv-SE", { ...options, timeZone });
}

window.addEventListener("storage", (event) => {
  if (event.key === "timezone") location.reload();
});

/** @param {string | number | null} instant */
export function fullTime(instant) {
  return instant ? format.full.format(new Date(instant)) : "–";
}

/** @param {string | number} instant */
export function clockTime(instant) {
  return format.clock.format(new Date(instant));
}

/**
 * @param {number} instant
 * @param {number} span of the axis, in milliseconds.
 */
export function axisTime(instant, span) {
  if (span > 5 * DAY_MS) return format.day.format(instant);
  return (span > 1_200_000 ? format.minutes : format.clock).format(instant);
}

/** @param {string | null} instant */
export function time(instant) {
  if (!instant) return "–";
  const title = `${fullTime(instant)} ${timeZone ?? Intl.DateTimeFormat().resolvedOptions().timeZone}`;
  return h("time", { datetime: instant, title }, fullTime(instant));
}

/**
 * @param {number | null} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const days = Math.floor(whole / 86400);
  const hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${whole % 60} s`;
}
