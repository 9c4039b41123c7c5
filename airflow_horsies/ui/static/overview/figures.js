// Figures over time, and the reports of tasks.

/** @import { Bucket, Overview, Report } from "../payloads.d.ts" */

import { h } from "../common/dom.js";
import { plot } from "../common/plot.js";
import { plural } from "../common/text.js";
import { duration, time } from "../common/times.js";

/** @param {Overview} data */
export function plots({ buckets, bucket_seconds, recent_tasks }) {
  const title = h("h2", {}, "Attempts over time");
  if (!buckets.length) return [title, h("p", { class: "quiet" }, "No attempt has ended yet.")];
  const summary = `Of the last ${plural(recent_tasks, "task")}, in steps of ${duration(bucket_seconds)}.`;
  return [
    title,
    h("p", { class: "quiet" }, summary),
    h("div", { class: "plots" }, endedPlot(buckets), successPlot(buckets), durationPlot(buckets)),
  ];
}

/** @param {Bucket[]} buckets */
function endedPlot(buckets) {
  return plot({
    title: "Attempts that ended",
    starts: buckets.map((bucket) => bucket.start),
    bars: true,
    series: [
      { name: "completed", className: "completed", values: buckets.map((bucket) => bucket.ended - bucket.failed) },
      { name: "failed", className: "failed", values: buckets.map((bucket) => bucket.failed) },
    ],
  });
}

/** @param {Bucket[]} buckets */
function successPlot(buckets) {
  const rates = buckets.map(({ ended, failed }) => (ended ? (100 * (ended - failed)) / ended : null));
  return plot({
    title: "Success rate",
    starts: buckets.map((bucket) => bucket.start),
    top: 100,
    unit: (value) => `${Math.round(value)} %`,
    series: [{ name: "of attempts", className: "completed", values: rates }],
  });
}

/** @param {Bucket[]} buckets */
function durationPlot(buckets) {
  return plot({
    title: "Duration of attempts",
    starts: buckets.map((bucket) => bucket.start),
    unit: duration,
    series: [
      { name: "median", className: "running", values: buckets.map((bucket) => bucket.p50_seconds) },
      { name: "95th percentile", className: "expired", values: buckets.map((bucket) => bucket.p95_seconds) },
    ],
  });
}

/** @param {Report[]} found */
export function reports(found) {
  return found.length ? [h("h2", {}, "Reports"), h("ul", {}, found.map(reportItem))] : [];
}

/** @param {Report} report */
function reportItem({ name, start, end, made_at, url }) {
  return h(
    "li",
    {},
    h("a", { href: url }, `${name}, `, time(start), " to ", time(end)),
    h("span", { class: "quiet" }, " created ", time(made_at)),
  );
}
