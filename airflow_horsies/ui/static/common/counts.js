// The number of items per state.

/** @import { TaskState } from "../payloads.d.ts" */

import { h } from "./dom.js";
import { badge, number, stateCounts } from "./text.js";

/**
 * @param {Partial<Record<TaskState, number>>} counts
 * @param {number} total
 */
export function countBar(counts, total) {
  const found = stateCounts(counts);
  const label = found.map(([state, count]) => `${count} ${state}`).join(", ");
  return h(
    "div",
    { class: "counts" },
    h(
      "div",
      { class: "count-bar", role: "img", "aria-label": label },
      found.map(([state, count]) =>
        h("span", { class: `bar ${state.toLowerCase()}`, style: { width: `${(count / total) * 100}%` } })
      ),
    ),
    h("p", {}, found.map(([state, count]) => [badge(state), ` ${number(count)}  `])),
  );
}
