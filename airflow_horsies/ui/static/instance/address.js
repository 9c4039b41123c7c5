// The task instance in the page's address, and the address of its API.

/** @import { TaskInstanceKey } from "../payloads.d.ts" */

import { horsies, instanceApi } from "../common/site.js";

/**
 * What the page shows: a position of a batch and one of its submissions; without life and round, the newest.
 *
 * @typedef {object} Shown
 * @property {number} position
 * @property {number | null} life
 * @property {number | null} round
 * @property {boolean | null} isBatch
 * @property {boolean} opened whether an item of the batch is open.
 */

export const instance = readAddress();
export const api = instanceApi(instance);

/** @returns {TaskInstanceKey} */
function readAddress() {
  const path = location.pathname.slice(horsies.length);
  const found = path.match(/^\/dags\/([^/]+)\/runs\/(.+)\/tasks\/([^/]+)\/([^/]+)$/) ?? ["", "", "", "", ""];
  const [dag_id, run_id, task_id, map_index] = found.slice(1).map((part) => decodeURIComponent(part));
  const given = Number.parseInt(map_index, 10);
  return { dag_id, run_id, task_id, map_index: Number.isNaN(given) ? -1 : given };
}

/**
 * @param {Pick<Shown, "position" | "life" | "round">} shown
 * @param {Record<string, number>} more
 */
export function query({ position, life, round }, more = {}) {
  const given = Object.entries({ position, life, round, ...more });
  return new URLSearchParams(given.flatMap(([name, value]) => (value === null ? [] : [[name, String(value)]])));
}
