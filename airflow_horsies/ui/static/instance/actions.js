// The actions of a task instance: cancel its horsies tasks, rerun it.

/** @import { Cancelled, CancelOutcome } from "../payloads.d.ts" */
/** @import { ClearedInstance } from "../common/clearing.js" */

import { clearInstance } from "../common/clearing.js";
import { confirmAction } from "../common/dialog.js";
import { h } from "../common/dom.js";
import { instanceName } from "../common/links.js";
import { asProblem, postJson } from "../common/requests.js";
import { badge, number, plural } from "../common/text.js";
import { api, instance } from "./address.js";

const LISTED = 10;
/** @type {Record<CancelOutcome, string>} */
const OUTCOMES = {
  CANCELLED: "cancelled",
  ALREADY_CANCELLED: "already cancelled",
  ALREADY_FINISHED: "already ended",
  STILL_WANTED: "kept, because another task instance shares it",
  REQUESTED: "will be cancelled as soon as horsies can record it",
};

/**
 * @param {number | null} position of the item; null cancels all live tasks.
 * @param {string} what is cancelled, as text.
 * @param {() => void} look
 */
export function askCancel(position, what, look) {
  const explanation = `This cancels ${what} and stops running attempts. ` +
    "The Airflow task then fails or is skipped, as on_cancelled of its operator says.";
  confirmAction({
    title: `Cancel ${what}?`,
    content: h("p", {}, explanation),
    action: "Cancel it",
    danger: true,
    act: async () => {
      /** @type {Cancelled} */
      const { outcomes } = await postJson(`${api}/cancel`, { position });
      look();
      return `${describeOutcomes(outcomes) || "Nothing to cancel"}.`;
    },
  });
}

/** @param {Cancelled["outcomes"]} outcomes */
function describeOutcomes(outcomes) {
  const found = /** @type {[CancelOutcome, number][]} */ (Object.entries(outcomes));
  return found.map(([outcome, count]) => `${number(count)} ${OUTCOMES[outcome]}`).join(", ");
}

/** @param {() => void} restart shows the newest submission. */
export async function askRerun(restart) {
  const content = confirmAction({
    title: "Rerun the task instance?",
    content: h("p", { class: "quiet" }, "Asking Airflow what it would clear…"),
    action: "Clear and rerun",
    act: async () => {
      const cleared = await clearInstance(instance, { dry: false });
      restart();
      const them = cleared.length === 1 ? "it" : "them";
      return `Cleared ${plural(cleared.length, "task instance")}; Airflow runs ${them} again.`;
    },
  });
  try {
    const affected = await clearInstance(instance, { dry: true });
    content.replaceChildren(...describeAffected(affected));
  } catch (error) {
    content.replaceChildren(h("p", { class: "failed" }, asProblem(error).message));
  }
}

/** @param {ClearedInstance[]} affected */
function describeAffected(affected) {
  const explanation =
    `Airflow clears ${plural(affected.length, "task instance")}, and the DAG run continues from here. ` +
    "A new life of the task instance begins, and its horsies tasks are sent again.";
  const items = affected.slice(0, LISTED).map((item) => h("li", {}, instanceName(item), " ", badge(item.state)));
  return [
    h("p", {}, explanation),
    h("ul", {}, items),
    affected.length > LISTED ? h("p", { class: "quiet" }, `and ${number(affected.length - LISTED)} more`) : "",
  ];
}
