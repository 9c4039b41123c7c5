// The actions of a task instance: cancel its horsies tasks, rerun it.

/** @import { Cancelled, CancelOutcome, Instance } from "../payloads.d.ts" */
/** @import { ClearedInstance, ShownItem } from "../common/clearing.js" */

import { clearInstance, repairInstances } from "../common/clearing.js";
import { confirmAction } from "../common/dialog.js";
import { h } from "../common/dom.js";
import { instanceName } from "../common/links.js";
import { asProblem, postJson } from "../common/requests.js";
import { badge, number, plural } from "../common/text.js";
import { api, instance } from "./address.js";

const LISTED = 10;
const BUSY = ["running", "deferred", "queued", "scheduled"];
/** @type {Record<CancelOutcome, string>} */
const OUTCOMES = {
  CANCELLED: "cancelled",
  ALREADY_CANCELLED: "already cancelled",
  ALREADY_FINISHED: "already ended",
  STILL_WANTED: "kept, because another task instance shares it",
  REQUESTED: "will be cancelled as soon as horsies can record it",
};

/**
 * @param {ShownItem | null} item null cancels all live tasks.
 * @param {string} what is cancelled, as text.
 * @param {() => void} look
 */
export function askCancel(item, what, look) {
  const explanation = `This cancels ${what} and stops running attempts. ` +
    "The Airflow task then fails or is skipped, as on_cancelled of its operator says.";
  confirmAction({
    title: `Cancel ${what}?`,
    content: h("p", {}, explanation),
    action: "Cancel it",
    danger: true,
    act: async () => {
      /** @type {Cancelled} */
      const { outcomes } = await postJson(`${api}/cancel`, { item });
      look();
      return `${describeOutcomes(outcomes) || "Nothing to cancel"}.`;
    },
  });
}

/** @param {Cancelled["outcomes"]} outcomes */
export function describeOutcomes(outcomes) {
  const found = /** @type {[CancelOutcome, number][]} */ (Object.entries(outcomes));
  return found.map(([outcome, count]) => `${number(count)} ${OUTCOMES[outcome]}`).join(", ");
}

/** @param {() => void} restart shows the newest submission. */
export function askRerun(restart) {
  return askClear({
    title: "Rerun the task instance?",
    action: "Clear and rerun",
    explanation: "A new life of the task instance begins, and its horsies tasks are sent again.",
    clear: () => clearInstance(instance, { dry: false }),
    restart,
  });
}

/**
 * Reruns what did not complete, or only one of these items.
 *
 * @param {Instance} data
 * @param {ShownItem | null} item null for all that did not complete.
 * @param {() => void} restart
 */
export function askRepair(data, item, restart) {
  const count = failedItems(data);
  return askClear({
    title: item === null ? `Rerun ${plural(count, "item")}?` : `Rerun item ${item.position}?`,
    action: "Clear and rerun",
    explanation: item === null ? describeRepair(data, count) : describeSingleRepair(count - 1),
    clear: () => repairInstances([instance], item === null ? null : [item]),
    restart,
  });
}

/** @param {Instance} data */
export function canRerun({ can_act, tries }) {
  return can_act && tries.length > 0 && !BUSY.includes(tries.at(-1)?.state ?? "");
}

/**
 * A task instance that was cleared, and has not started since, runs everything again.
 *
 * @param {Instance} data
 */
export function canRepair(data) {
  const state = data.tries.at(-1)?.state ?? null;
  return canRerun(data) && state !== null && state !== "restarting";
}

/** @param {Instance} data */
export function failedItems({ counts, past_retention }) {
  return (counts.FAILED ?? 0) + (counts.EXPIRED ?? 0) + (counts.CANCELLED ?? 0) + past_retention;
}

/**
 * @param {Instance} data
 * @param {number} count
 */
function describeRepair({ positions }, count) {
  const kept = positions - count;
  const sent = count === 1 ? "1 item that did not complete is" : `${number(count)} items that did not complete are`;
  const others = kept === 1
    ? "1 other item does not run again and keeps its value."
    : `${number(kept)} other items do not run again and keep their values.`;
  return `${sent} sent again. ${kept ? others : ""}`;
}

/** @param {number} others */
function describeSingleRepair(others) {
  const text = "Only this item is sent again. ";
  if (!others) return `${text}All other items keep their values.`;
  return `${text}${plural(others, "other item")} that did not complete ${others === 1 ? "stays" : "stay"} as before. ` +
    `The Airflow task fails again after this item has ended, unless its max_failures allows ${others}.`;
}

/**
 * Asks Airflow what it would clear, shows that, and clears it.
 *
 * @param {object} question
 * @param {string} question.title
 * @param {string} question.action
 * @param {string} question.explanation
 * @param {() => Promise<ClearedInstance[]>} question.clear
 * @param {() => void} question.restart
 */
async function askClear({ title, action, explanation, clear, restart }) {
  const content = confirmAction({
    title,
    content: h("p", { class: "quiet" }, "Asking Airflow what it would clear…"),
    action,
    act: async () => {
      const cleared = await clear();
      restart();
      const them = cleared.length === 1 ? "it" : "them";
      return `Cleared ${plural(cleared.length, "task instance")}; Airflow runs ${them} again.`;
    },
  });
  try {
    const affected = await clearInstance(instance, { dry: true });
    content.replaceChildren(...describeAffected(affected, explanation));
  } catch (error) {
    content.replaceChildren(h("p", { class: "failed" }, asProblem(error).message));
  }
}

/**
 * @param {ClearedInstance[]} affected
 * @param {string} explanation
 */
function describeAffected(affected, explanation) {
  const cleared = `Airflow clears ${plural(affected.length, "task instance")}, and the DAG run continues from here. `;
  const items = affected.slice(0, LISTED).map((item) => h("li", {}, instanceName(item), " ", badge(item.state)));
  return [
    h("p", {}, cleared, explanation),
    h("ul", {}, items),
    affected.length > LISTED ? h("p", { class: "quiet" }, `and ${number(affected.length - LISTED)} more`) : "",
  ];
}
