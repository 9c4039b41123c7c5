// The latest events.

/** @import { Event } from "../payloads.d.ts" */

import { h } from "../common/dom.js";
import { instanceLink } from "../common/links.js";
import { badge, number } from "../common/text.js";
import { clockTime } from "../common/times.js";

/** @param {Event[]} events */
export function activity(events) {
  return [
    h("h2", {}, "Recent activity"),
    events.length
      ? h("ol", { class: "feed" }, events.map(entry))
      : h("p", { class: "quiet" }, "There are no events yet."),
  ];
}

/** @param {Event} event */
function entry({ at, what, task_name, error_code, instance, count }) {
  return h(
    "li",
    {},
    h("time", { datetime: at }, clockTime(at)),
    h(
      "span",
      {},
      instance ? instanceLink(instance) : task_name,
      " ",
      badge(what.startsWith("failed") ? "failed" : what),
      count > 1 ? quiet(` × ${number(count)}`) : null,
      what === "failed, will be retried" ? quiet(" will be retried") : null,
      error_code ? quiet(` ${error_code}`) : null,
      quiet(` · ${instance ? instance.dag_id : "not sent by an Airflow task"}`),
    ),
  );
}

/** @param {string} text */
function quiet(text) {
  return h("span", { class: "quiet" }, text);
}
