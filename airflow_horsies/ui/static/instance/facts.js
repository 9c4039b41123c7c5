// The facts of a submission: its error, progress, worker and times.

/** @import { Child } from "../common/types.d.ts" */
/** @import { Attempt, ProgressValues, Submission, Task } from "../payloads.d.ts" */

import { since, ticking } from "../common/clock.js";
import { h } from "../common/dom.js";
import { errorCode } from "../common/links.js";
import { isLive, number, plural } from "../common/text.js";
import { duration, fullTime, time } from "../common/times.js";

const PAST_RETENTION =
  "This task is past its retention and no longer in the horsies database. Airflow's own log is still available.";

/** @param {Submission} submission */
export function facts(submission) {
  return taskFacts(submission, submission.task && errorBox(submission.task, submission.attempts.at(-1)));
}

/**
 * @typedef {object} FactsOfTask
 * @property {Task | null} task
 * @property {Attempt[]} attempts
 * @property {ProgressValues | null} progress
 * @property {string | null} submitted_at
 * @property {string | null} horsies_task_id
 */

/**
 * @param {FactsOfTask} submission
 * @param {Child} error
 */
export function taskFacts(submission, error = null) {
  const task = submission.task;
  if (!task) return h("p", {}, PAST_RETENTION);
  const last = submission.attempts.at(-1);
  return [
    progressBar(submission.progress, task),
    error,
    h(
      "dl",
      { class: "facts" },
      fact("Queue", `${task.queue}, priority ${task.priority}`),
      fact("Worker", worker(last ?? task, !last && isLive(task.state) ? "none yet" : "–")),
      fact("Attempts", countAttempts(task, submission.attempts.length)),
      fact("Submitted", time(submission.submitted_at)),
      fact(task.finished_at ? "Ended" : "Since", ends(task)),
      fact("Deadline", deadline(task)),
      fact("horsies task", h("code", {}, submission.horsies_task_id)),
    ),
  ];
}

/**
 * @param {Task} task
 * @param {Attempt | undefined} last
 */
function errorBox(task, last) {
  const failed = last?.error_code && !["RUNNING", "COMPLETED", "PARKED"].includes(last.outcome) ? last : null;
  if (!failed && (!task.error_code || last)) return null;
  return h(
    "div",
    { class: task.state === "COMPLETED" ? "callout" : "callout failed", id: "error" },
    errorCode(failed?.error_code ?? task.error_code ?? "", (failed ?? task).error_url),
    h("p", {}, failed?.error_message ?? task.failed_reason ?? ""),
  );
}

/**
 * @param {string} name
 * @param {Child} value
 */
export function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/**
 * @param {Pick<Task, "hostname" | "pid" | "worker_id">} where
 * @param {string} otherwise
 */
export function worker({ hostname, pid, worker_id }, otherwise = "–") {
  if (!hostname) return otherwise;
  const title = worker_id ? `worker ${worker_id}` : null;
  return h("span", { title }, `${hostname}${pid ? `, process ${pid}` : ""}`);
}

/**
 * @param {Task} task
 * @param {number} made
 */
function countAttempts(task, made) {
  if (!task.max_retries) return `${made} (no retries)`;
  const most = task.max_retries + 1;
  const left = plural(most - made, "retry", "retries");
  return isLive(task.state) ? `${made} of ${most}, ${left} left` : `${made} of ${most}`;
}

/** @param {Task} task */
function ends(task) {
  if (task.finished_at) return time(task.finished_at);
  if (task.next_retry_at && task.state === "PENDING") {
    const retryAt = Date.parse(task.next_retry_at);
    return ticking((now) => (retryAt > now ? `retried in ${duration((retryAt - now) / 1000)}` : "retry is due"));
  }
  const began = { RUNNING: task.started_at, CLAIMED: task.claimed_at, PENDING: null };
  const state = /** @type {keyof began} */ (task.state);
  return since(began[state] ?? task.enqueued_at);
}

/** @param {Task} task */
function deadline(task) {
  if (!task.good_until) return "none";
  if (task.finished_at) return time(task.good_until);
  const goodUntil = Date.parse(task.good_until);
  return ticking(
    (now) => {
      const left = (goodUntil - now) / 1000;
      return left > 0 ? `in ${duration(left)}` : `passed ${duration(-left)} ago`;
    },
    { title: fullTime(task.good_until), id: "deadline" },
  );
}

/**
 * @param {ProgressValues | null} progress
 * @param {Task} task
 */
function progressBar(progress, task) {
  if (!progress || task.state !== "RUNNING") return null;
  const { fraction, total, done, stage } = progress;
  const percent = fraction === null ? null : Math.floor(fraction * 100);
  const counted = total ? `${number(done)} of ${number(total)}` : `${number(done)} done`;
  return h(
    "div",
    { class: "progress", id: "progress" },
    h(
      "div",
      {
        class: "progress-bar",
        role: "progressbar",
        "aria-valuenow": percent,
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-label": "Progress",
      },
      h("span", { class: percent === null ? "unknown" : "", style: { width: `${percent ?? 100}%` } }),
    ),
    h(
      "p",
      {},
      percent === null ? counted : `${percent} % (${counted})`,
      stage ? h("span", { class: "quiet" }, `  ${stage}`) : null,
    ),
  );
}
