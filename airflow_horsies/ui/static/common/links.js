// Links to pages of Airflow, and to the documentation.

/** @import { Child } from "./types.d.ts" */
/** @import { TaskInstanceKey } from "../payloads.d.ts" */

import { h } from "./dom.js";
import { base, host } from "./site.js";

/**
 * The address of a task instance in Airflow, on the Horsies tab.
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
 * A link to a page of Airflow. In a frame it navigates the Airflow around it, which a plain link may not do.
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

/**
 * An error code, with a link to its explanation if the documentation has one.
 *
 * @param {string} code
 * @param {string | null} address
 */
export function errorCode(code, address) {
  if (!address) return h("strong", {}, code);
  const attributes = { href: address, target: "_blank", rel: "noopener noreferrer", title: `What ${code} means` };
  return h("strong", {}, h("a", { ...attributes, onclick: (event) => openBesideAirflow(event, address) }, code));
}

/**
 * Airflow's frame may not open a window, but a link of the page around it may.
 *
 * @param {MouseEvent} event
 * @param {string} address
 */
function openBesideAirflow(event, address) {
  const parent = host();
  if (!parent || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const link = parent.document.createElement("a");
  Object.assign(link, { href: address, target: "_blank", rel: "noopener noreferrer" });
  link.click();
}
