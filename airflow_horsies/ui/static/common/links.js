// Links to pages of Airflow.

/** @import { Child } from "./types.d.ts" */
/** @import { TaskInstanceKey } from "../payloads.d.ts" */

import { h } from "./dom.js";
import { base, host } from "./site.js";

/**
 * Where Airflow shows a task instance, at our tab.
 *
 * @param {TaskInstanceKey} instance
 */
export function instanceAddress({ dag_id, run_id, task_id, map_index }) {
  const path = `${base}/dags/${encodeURIComponent(dag_id)}/runs/${encodeURIComponent(run_id)}`;
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  return `${path}/tasks/${encodeURIComponent(task_id)}${mapped}/plugin/horsies-task`;
}

/** @param {Pick<TaskInstanceKey, "task_id" | "map_index">} instance */
export function instanceName({ task_id, map_index }) {
  return map_index >= 0 ? `${task_id} [${map_index}]` : task_id;
}

/** @param {TaskInstanceKey} instance */
export function instanceLink(instance) {
  return airflowLink(instanceAddress(instance), instanceName(instance));
}

/**
 * A link to a page of Airflow's: in a frame it moves the Airflow around, which a plain link may not.
 *
 * @param {string} address
 * @param {Child[]} children
 */
export function airflowLink(address, ...children) {
  return h("a", { href: address, onclick: (event) => followInAirflow(event, address) }, ...children);
}

/**
 * @param {MouseEvent} event
 * @param {string} address
 */
export function followInAirflow(event, address) {
  const parent = host();
  if (!parent || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  parent.history.pushState({}, "", address);
  parent.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
}
