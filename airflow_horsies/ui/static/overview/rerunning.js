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
      h("p", {}, "Airflow clears each of them and its downstream tasks, and their DAG runs continue from there."),
      h("ul", {}, chosen.slice(0, LISTED).map((each) => h("li", {}, `${each.dag_id}: ${instanceName(each)}`))),
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
  for (const [at, each] of chosen.entries()) {
    say(`Clearing ${at + 1} of ${chosen.length}…`);
    try {
      await clearInstance(each, { dry: false });
      cleared.push(each);
    } catch (error) {
      const { status, message } = asProblem(error);
      problems.push(`${instanceName(each)}: ${status === 403 ? "your role in Airflow does not allow this" : message}`);
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
  return h("span", {}, text, h("ul", {}, problems.slice(0, LISTED).map((each) => h("li", {}, each))));
}
