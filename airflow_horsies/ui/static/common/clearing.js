// Clearing task instances through Airflow's own API.

/** @import { Repair, Submission, TaskInstanceKey } from "../payloads.d.ts" */

import { postJson } from "./requests.js";
import { base, instanceApi } from "./site.js";

/**
 * @typedef {{ task_id: string, map_index: number, state: string | null }} ClearedInstance in Airflow's response.
 */

/**
 * @typedef {{ position: number, horsies_task_id: string, number: number | null }} ShownItem an item as the page shows it.
 */

/**
 * A retry or a clear may put another item at the position. The server then refuses what was meant for this one.
 *
 * @param {Submission} newest of the item.
 * @returns {ShownItem}
 */
export function shownItem({ position, horsies_task_id, number }) {
  return { position, horsies_task_id, number };
}

/**
 * Clears a task instance and its downstream tasks.
 *
 * @param {TaskInstanceKey} instance
 * @param {{ dry: boolean }} options dry clears nothing and returns what would be cleared.
 */
export function clearInstance(instance, options) {
  return clearInstances([instance], options);
}

/**
 * Clears task instances of one DAG run and their downstream tasks, in one clear.
 *
 * @param {TaskInstanceKey[]} instances
 * @param {{ dry: boolean }} options
 */
async function clearInstances(instances, { dry }) {
  const [{ dag_id, run_id }] = instances;
  /** @type {{ task_instances: ClearedInstance[] }} */
  const answer = await postJson(`${base}/api/v2/dags/${encodeURIComponent(dag_id)}/clearTaskInstances`, {
    dry_run: dry,
    dag_run_id: run_id,
    task_ids: instances.map(({ task_id, map_index }) => (map_index >= 0 ? [task_id, map_index] : task_id)),
    include_downstream: true,
    only_failed: false,
    reset_dag_runs: true,
  });
  return answer.task_instances;
}

/**
 * Clears task instances of one DAG run, which then run again only what did not complete. The requests come before the
 * clear, because the task instances may start at once. They are all made before it, because each is for the next clear
 * of the run and for no later one.
 *
 * @param {TaskInstanceKey[]} instances
 * @param {ShownItem[] | null} items to run again; null for all that did not complete.
 */
export async function repairInstances(instances, items = null) {
  /** @type {{ instance: TaskInstanceKey, id: number }[]} */
  const made = [];
  try {
    for (const instance of instances) {
      /** @type {Repair} */
      const { id } = await postJson(`${instanceApi(instance)}/repair`, { items });
      made.push({ instance, id });
    }
    return await clearInstances(instances, { dry: false });
  } catch (error) {
    for (const { instance, id } of made) {
      await postJson(`${instanceApi(instance)}/withdraw-repair`, { id }).catch(() => null);
    }
    throw error;
  }
}
