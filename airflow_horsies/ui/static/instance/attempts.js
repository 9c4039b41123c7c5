// The attempts of one submission.

/** @import { Attempt, Submission } from "../payloads.d.ts" */

import { since } from "../common/clock.js";
import { h, table } from "../common/dom.js";
import { errorCode } from "../common/links.js";
import { badge, bytes, isLive, number } from "../common/text.js";
import { duration, time } from "../common/times.js";
import { worker } from "./facts.js";

const COLUMNS = ["#", "Outcome", "Started", "Duration", "Where", "Error"];

/** @param {Pick<Submission, "attempts" | "task">} submission */
export function attempts({ attempts, task }) {
  if (!attempts.length) {
    const why = isLive(task?.state) ? "No worker has started the task yet." : "There was no attempt.";
    return [h("h2", {}, "Attempts"), h("p", { class: "quiet" }, why)];
  }
  return [h("h2", {}, "Attempts"), table(COLUMNS, attempts.map(attemptRows), { id: "attempts" })];
}

/** @param {Attempt} attempt */
function attemptRows(attempt) {
  const isRetried = attempt.will_retry && attempt.outcome !== "PARKED";
  const isRunning = attempt.finished_at === null && attempt.outcome === "RUNNING";
  return [
    h(
      "tr",
      {},
      h("td", {}, attempt.attempt),
      h("td", {}, badge(attempt.outcome), isRetried ? h("span", { class: "quiet" }, " retried") : null),
      h("td", {}, time(attempt.started_at)),
      h("td", {}, isRunning ? since(attempt.started_at) : duration(attempt.duration_seconds)),
      h("td", {}, worker(attempt)),
      h("td", {}, errorCell(attempt)),
    ),
    metricsRow(Object.entries(attempt.metrics)),
  ];
}

/** @param {{ error_code: string | null, error_message: string | null, error_url: string | null }} failed */
export function errorCell({ error_code, error_message, error_url }) {
  if (!error_code) return "–";
  return [errorCode(error_code, error_url), h("div", { class: "message" }, error_message ?? "")];
}

/** @param {[string, unknown][]} metrics */
function metricsRow(metrics) {
  if (!metrics.length) return null;
  const cell = h("td", { colspan: "5" }, metrics.map(([name, value]) => h("span", {}, metric(name, value))));
  return h("tr", { class: "metrics" }, h("td"), cell);
}

/**
 * @param {string} name
 * @param {unknown} value
 */
function metric(name, value) {
  const words = name.replaceAll("_", " ");
  if (typeof value !== "number") return `${words} ${value}`;
  if (name.endsWith("_bytes")) return `${words.slice(0, -"_bytes".length)} ${bytes(value)}`;
  if (name.endsWith("_seconds")) return `${words.slice(0, -"_seconds".length)} ${duration(value)}`;
  return `${words} ${number(value)}`;
}
