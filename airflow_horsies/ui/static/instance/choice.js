// Selects the submission and the item to show.

/** @import { Child } from "../common/types.d.ts" */
/** @import { Instance, Submission } from "../payloads.d.ts" */
/** @import { Shown } from "./address.js" */

import { h } from "../common/dom.js";
import { isLive } from "../common/text.js";
import { canRepair } from "./actions.js";

const FAILED = ["FAILED", "EXPIRED", "CANCELLED"];

/**
 * @typedef {object} ChoiceActions
 * @property {() => void} close shows all items.
 * @property {() => void} cancel cancels the item.
 * @property {() => void} repair reruns the item.
 * @property {(change: { life: number, round: number }) => void} choose
 */

/**
 * @param {Instance} data
 * @param {Submission} selected
 * @param {Shown} shown
 * @param {ChoiceActions} actions
 */
export function choice(data, selected, shown, { close, cancel, repair, choose }) {
  /** @type {Child[]} */
  const pieces = [];
  if (shown.isBatch) {
    pieces.push(
      h("button", { type: "button", class: "small", onclick: close }, "← All items"),
      h("strong", {}, ` Item ${shown.position} `),
      data.can_act && isLive(data.submissions[0].task?.state)
        ? h("button", { type: "button", class: "small danger", onclick: cancel }, "Cancel this item")
        : null,
      canRepair(data) && isFailed(data.submissions[0].task?.state)
        ? h("button", { type: "button", id: "repair-item", class: "small", onclick: repair }, "Rerun this item")
        : null,
    );
  }
  if (data.submissions.length > 1) pieces.push(h("label", {}, "Submission ", select(data, selected, choose)));
  return pieces;
}

/** @param {string | undefined} state of the newest task; undefined if it is past its retention. */
function isFailed(state) {
  return state === undefined || FAILED.includes(state);
}

/**
 * @param {Instance} data
 * @param {Submission} selected
 * @param {ChoiceActions["choose"]} choose
 */
function select(data, selected, choose) {
  const element = h(
    "select",
    { id: "submission", "data-focus": "submission" },
    data.submissions.map((item, at) =>
      h(
        "option",
        { value: `${item.life} ${item.round}`, selected: item === selected },
        `${at === 0 ? "Newest: " : ""}${describe(item)}`,
      )
    ),
  );
  element.addEventListener("change", () => {
    const [life, round] = element.value.split(" ").map(Number);
    choose({ life, round });
  });
  return element;
}

/** @param {Submission} submission */
function describe({ life, round, try_number, task, workflow_state }) {
  const state = (workflow_state ?? task?.state ?? "past retention").toLowerCase();
  return `life ${life}, round ${round} (Airflow try ${try_number}), ${state}`;
}
