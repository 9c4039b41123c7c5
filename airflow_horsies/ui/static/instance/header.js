// The header of the page: the task instance and its actions.

/** @import { Instance, Submission } from "../payloads.d.ts" */
/** @import { Shown } from "./address.js" */

import { h } from "../common/dom.js";
import { airflowLink, instanceAddress, instanceName } from "../common/links.js";
import { isEmbedded } from "../common/site.js";
import { badge, isLive, plural } from "../common/text.js";
import { canRepair, canRerun, failedItems } from "./actions.js";
import { instance } from "./address.js";

/**
 * @param {Instance} data
 * @param {Submission} submission
 * @param {Shown} shown
 * @param {{ cancel: () => void, rerun: () => void, repair: () => void }} actions
 */
export function header(data, submission, shown, { cancel, rerun, repair }) {
  const airflowState = data.tries.at(-1)?.state ?? null;
  const state = shown.isBatch ? null : submission.workflow_state ?? submission.task?.state;
  // A workflow has actions of its own.
  const canCancel = data.can_act && submission.kind !== "WORKFLOW" && Object.keys(data.counts).some(isLive);
  const hasRepair = shown.isBatch && canRepair(data) && failedItems(data) > 0;
  return [
    h(
      "div",
      { class: "title" },
      h("h1", {}, submission.task_name),
      state ? badge(state, { id: "state" }) : null,
      h("span", { class: "quiet" }, shown.isBatch ? plural(data.positions, "item") : ""),
      h(
        "span",
        { class: "actions" },
        canCancel ? button("cancel", shown.isBatch ? "Cancel all" : "Cancel", cancel, "danger") : null,
        hasRepair ? button("repair", "Rerun failed items", repair) : null,
        canRerun(data) ? button("rerun", shown.isBatch ? "Rerun all" : "Rerun", rerun) : null,
      ),
    ),
    // Airflow's own page shows all of this above the frame.
    isEmbedded ? null : whereabouts(data, airflowState),
  ];
}

/**
 * @param {string} id
 * @param {string} text
 * @param {() => void} onclick
 * @param {string | null} className
 */
function button(id, text, onclick, className = null) {
  return h("button", { type: "button", id, class: className, "data-focus": id, onclick }, text);
}

/**
 * @param {Instance} data
 * @param {string | null} airflowState
 */
function whereabouts(data, airflowState) {
  return h(
    "p",
    { class: "quiet" },
    airflowLink(instanceAddress(instance), "Open in Airflow"),
    ` · ${instance.dag_id} · ${instanceName(instance)} · ${instance.run_id} · in Airflow `,
    airflowState ? badge(airflowState) : data.tries.length ? "no state yet" : "no longer exists",
  );
}
