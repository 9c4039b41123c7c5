// Reruns selected task instances.

/** @import { Failure } from "../payloads.d.ts" */

import { clearInstance } from "../common/clearing.js";
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
  confirmAction({
    title: `Rerun ${plural(chosen.length, "task instance")}?`,
    content: [
      h("p", {}, "Airflow clears failure of them and its downstream tasks, and their DAG runs continue from there."),
      h("ul", {}, chosen.slice(0, LISTED).map((failure) => h("li", {}, `${failure.dag_id}: ${instanceName(failure)}`))),
      chosen.length > LISTED ? h("p", { class: "quiet" }, `and ${number(chosen.length - LISTED)} more`) : "",
    ],
    action: "Clear and rerun",
    act: async (say) => {
      const { cleared, problems } = await clearAll(chosen, say);
      done(cleared);
      return describe(cleared.length, problems);
    },
  });
}

/**
 * @param {Failure[]} chosen
 * @param {(text: string) => void} say
 */
async function clearAll(chosen, say) {
  /** @type {Failure[]} */
  const cleared = [];
  /** @type {string[]} */
  const problems = [];
  for (const [at, failure] of chosen.entries()) {
    say(`Clearing ${at + 1} of ${chosen.length}…`);
    try {
      await clearInstance(failure, { dry: false });
      cleared.push(failure);
    } catch (error) {
      const { status, message } = asProblem(error);
      problems.push(
        `${instanceName(failure)}: ${status === 403 ? "your role in Airflow does not allow this" : message}`,
      );
    }
  }
  return { cleared, problems };
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
