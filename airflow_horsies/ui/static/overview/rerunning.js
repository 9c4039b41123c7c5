// Reruns selected task instances.

/** @import { Failure } from "../payloads.d.ts" */

import { clearInstance, repairInstances } from "../common/clearing.js";
import { confirmAction } from "../common/dialog.js";
import { h } from "../common/dom.js";
import { instanceName } from "../common/links.js";
import { asProblem } from "../common/requests.js";
import { number, plural } from "../common/text.js";

const LISTED = 10;

/**
 * @param {Failure[]} chosen
 * @param {(cleared: Failure[]) => void} done
 */
export function askRerun(chosen, done) {
  const keep = h("input", { type: "checkbox", id: "keep-completed" });
  confirmAction({
    title: `Rerun ${plural(chosen.length, "task instance")}?`,
    content: [
      h("p", {}, "Airflow clears failure of them and its downstream tasks, and their DAG runs continue from there."),
      h("ul", {}, chosen.slice(0, LISTED).map((failure) => h("li", {}, `${failure.dag_id}: ${instanceName(failure)}`))),
      chosen.length > LISTED ? h("p", { class: "quiet" }, `and ${number(chosen.length - LISTED)} more`) : "",
      h("label", {}, keep, " Run only the failed items of a batch, and keep the values of its completed items."),
    ],
    action: "Clear and rerun",
    act: async (say) => {
      keep.disabled = true;
      const { cleared, problems } = await clearAll(chosen, keep.checked, say);
      done(cleared);
      return describe(cleared.length, problems);
    },
  });
}

/**
 * @param {Failure[]} chosen
 * @param {boolean} keepsCompleted
 * @param {(text: string) => void} say
 */
async function clearAll(chosen, keepsCompleted, say) {
  /** @type {Failure[]} */
  const cleared = [];
  /** @type {string[]} */
  const problems = [];
  for (const group of keepsCompleted ? groupByRun(chosen) : chosen.map((failure) => [failure])) {
    say(`Clearing ${cleared.length + problems.length + 1} of ${chosen.length}…`);
    try {
      await (keepsCompleted ? repairInstances(group) : clearInstance(group[0], { dry: false }));
      cleared.push(...group);
    } catch (error) {
      const { status, message } = asProblem(error);
      const why = status === 403 ? "your role in Airflow does not allow this" : message;
      problems.push(...group.map((failure) => `${instanceName(failure)}: ${why}`));
    }
  }
  return { cleared, problems };
}

/**
 * A request for a repair is for the next clear of a DAG run, so all of a run are cleared together.
 *
 * @param {Failure[]} chosen
 */
function groupByRun(chosen) {
  /** @type {Map<string, Failure[]>} */
  const runs = new Map();
  for (const failure of chosen) {
    const run = JSON.stringify([failure.dag_id, failure.run_id]);
    runs.set(run, [...(runs.get(run) ?? []), failure]);
  }
  return [...runs.values()];
}

/**
 * @param {number} cleared
 * @param {string[]} problems
 */
function describe(cleared, problems) {
  const text = `${plural(cleared, "task instance")} cleared; Airflow runs ${cleared === 1 ? "it" : "them"} again.`;
  if (!problems.length) return text;
  return h("span", {}, text, h("ul", {}, problems.slice(0, LISTED).map((failure) => h("li", {}, failure))));
}
