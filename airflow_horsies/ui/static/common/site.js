// The Airflow around a page: its address and its window.

/** @import { TaskInstanceKey } from "../payloads.d.ts" */

export const base = document.body.dataset.base ?? "";
export const horsies = `${base}/horsies`;

/**
 * The address of the API of a task instance.
 *
 * @param {TaskInstanceKey} key
 */
export function instanceApi({ dag_id, run_id, task_id, map_index }) {
  const run = `${horsies}/api/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}`;
  return `${run}/tasks/${encodeURIComponent(task_id)}/${map_index}`;
}

/** The window of Airflow, or null if the page is not in a frame of it. */
export function host() {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null;
  }
}

export const isEmbedded = host() !== null;
