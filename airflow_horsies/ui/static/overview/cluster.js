// Queues and workers.

/** @import { Queue, Worker } from "../payloads.d.ts" */

import { since, ticking } from "../common/clock.js";
import { h, table } from "../common/dom.js";
import { badge, bytes, number, plural } from "../common/text.js";
import { duration } from "../common/times.js";

const NO_QUEUE =
  "There are no waiting tasks and no workers. Start a worker with: python -m airflow_horsies.worker my_tasks:app";
const QUEUE_COLUMNS = ["Queue", "Waiting", "Delayed", "Running", "Oldest waiting", "Ended per minute", "Served by"];
const WORKER_COLUMNS = ["Worker", "State", "Queues", "Load", "Memory", "CPU", "Uptime", "Last seen"];

/** @param {Queue[]} found */
export function queues(found) {
  if (!found.length) return [h("h2", {}, "Queues"), h("p", { class: "quiet" }, NO_QUEUE)];
  return [h("h2", {}, "Queues"), table(QUEUE_COLUMNS, found.map(queueRow))];
}

/** @param {Queue} queue */
function queueRow(queue) {
  const none = h("span", { class: queue.ready ? "failed" : "quiet" }, "no worker");
  return h(
    "tr",
    {},
    h("td", {}, queue.queue),
    h("td", {}, number(queue.ready)),
    h("td", {}, number(queue.delayed)),
    h("td", {}, number(queue.running + queue.claimed)),
    h("td", {}, queue.oldest_ready_at ? since(queue.oldest_ready_at) : "–"),
    h("td", {}, number(queue.per_minute)),
    h("td", {}, queue.served_by ? plural(queue.served_by, "worker") : none),
  );
}

/** @param {Worker[]} found */
export function workers(found) {
  const none = "No worker was seen in the last hour.";
  if (!found.length) return [h("h2", {}, "Workers"), h("p", { class: "quiet" }, none)];
  return [h("h2", {}, "Workers"), table(WORKER_COLUMNS, found.map(workerRow))];
}

/** @param {Worker} worker */
function workerRow(worker) {
  const startedAt = Date.parse(worker.started_at);
  return h(
    "tr",
    {},
    h("td", { title: worker.worker_id }, `${worker.hostname}, process ${worker.pid}`),
    h("td", {}, badge(worker.alive ? "alive" : "silent")),
    h("td", {}, worker.queues.join(", ")),
    h("td", {}, worker.alive ? `${worker.tasks_running} of ${worker.processes}` : "–"),
    h("td", {}, worker.memory_mb === null ? "–" : bytes(worker.memory_mb * 1024 * 1024)),
    h("td", {}, worker.cpu_percent === null ? "–" : `${Math.round(worker.cpu_percent)} %`),
    h("td", {}, worker.alive ? ticking((now) => duration((now - startedAt) / 1000)) : "–"),
    h("td", {}, since(worker.seen_at, " ago")),
  );
}
