// Clearing task instances through Airflow's own API.

/** @import { TaskInstanceKey } from "../payloads.d.ts" */

import { postJson } from "./requests.js";
import { base } from "./site.js";

/**
 * @typedef {{ task_id: string, map_index: number, state: string | null }} ClearedInstance in Airflow's response.
 */

/**
 * Clears a task instance and its downstream tasks.
 *
 * @param {TaskInstanceKey} instance
 * @param {{ dry: boolean }} options dry clears nothing and returns what would be cleared.
 */
export async function clearInstance({ dag_id, run_id, task_id, map_index }, { dry }) {
  /** @type {{ task_instances: ClearedInstance[] }} */
  const answer = await postJson(`${base}/api/v2/dags/${encodeURIComponent(dag_id)}/clearTaskInstances`, {
    dry_run: dry,
    dag_run_id: run_id,
    task_ids: [map_index >= 0 ? [task_id, map_index] : task_id],
    include_downstream: true,
    only_failed: false,
    reset_dag_runs: true,
  });
  return answer.task_instances;
}
