// Formats numbers and states.

/** @import { Attributes } from "./types.d.ts" */
/** @import { TaskState } from "../payloads.d.ts" */

import { h } from "./dom.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** @param {number} value */
export function number(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

/** @param {number} size */
export function bytes(size) {
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toFixed(1) : size} ${UNITS[unit]}`;
}

/**
 * @param {number} count
 * @param {string} one
 * @param {string} many
 */
export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/**
 * A coloured badge for a state of a horsies task, an outcome of an attempt, or a state in Airflow.
 *
 * @param {string | null} state
 * @param {Attributes} attributes
 */
export function badge(state, attributes = {}) {
  const name = (state ?? "no state").toLowerCase();
  return h("span", { ...attributes, class: `badge ${name.replace(/[^a-z]+/g, "-")}` }, name.replaceAll("_", " "));
}

/** @param {string | null | undefined} state */
export function isLive(state) {
  return state === "PENDING" || state === "CLAIMED" || state === "RUNNING";
}

/**
 * @param {Partial<Record<TaskState, number>>} counts
 * @returns {[TaskState, number][]}
 */
export function stateCounts(counts) {
  return /** @type {[TaskState, number][]} */ (Object.entries(counts));
}
