// Airflow's tries and the submissions on one time axis.

/** @import { Instance, Moments, Submission, Try } from "../payloads.d.ts" */
/** @import { Bar, Row } from "../common/timeline.js" */

import { h } from "../common/dom.js";
import { segmentBar, segmentLegend, timeline } from "../common/timeline.js";
import { callbackRows, momentList, rowsOf, waitAt } from "./moments.js";

const OVER = ["success", "failed", "skipped", "upstream_failed", "removed", "up_for_retry"];

/** @param {Instance} data */
export function story(data) {
  const { tries, submissions, moments } = data;
  const tryBars = tries.flatMap(tryBar);
  /** @type {Row[]} */
  const rows = tryBars.length ? [{ label: "Airflow tries", strong: true, bars: tryBars }] : [];
  for (const submission of [...submissions].reverse()) {
    const { life, round, segments } = submission;
    if (segments.length) rows.push({ label: `life ${life}, round ${round}`, bars: barsOf(submission, moments) });
    rows.push(...rowsOf(moments, { life, round, hasOwnSegments: segments.length > 0 }));
  }
  rows.push(...callbackRows(moments));
  if (!rows.length) return [];
  const starts = [...submissions.map((item) => item.submitted_at), ...tryBars.map((bar) => bar.start)];
  const isAnyLost = tries.some((item) => item.started_at && item.state === "lost") ||
    submissions.some((item) => item.segments.some((segment) => segment.outcome === "LOST"));
  const { signals, pauses } = moments;
  return [
    h("h2", {}, "Timeline"),
    timeline(rows, Math.min(...starts.map((start) => Date.parse(start)))),
    segmentLegend(
      ...pick(isAnyLost, "lost"),
      ...pick(signals.length > 0, "signal"),
      ...pick(pauses.length > 0, "paused"),
    ),
    ...momentList(data),
  ];
}

/**
 * @param {boolean} isThere
 * @param {string} name
 * @returns {[className: string, text: string][]}
 */
function pick(isThere, name) {
  return isThere ? [[name, name]] : [];
}

/**
 * @param {Submission} submission
 * @param {Moments} moments
 * @returns {Bar[]}
 */
function barsOf({ segments, horsies_task_id }, moments) {
  return segments.map((segment) => {
    if (segment.kind === "running") return segmentBar(segment, segment.attempt ? `attempt ${segment.attempt}` : null);
    const bar = segmentBar(segment, null);
    const why = segment.kind === "parked" ? waitAt(moments, horsies_task_id, segment.start) : null;
    return why ? { ...bar, text: `parked, ${why}` } : bar;
  });
}

/**
 * @param {Try} item
 * @returns {Bar[]}
 */
function tryBar({ try_number, state, started_at, ended_at }) {
  if (!started_at) return [];
  const end = ended_at ?? (OVER.includes(state ?? "") ? started_at : null);
  const what = state === "lost" ? "lost: Airflow has no record of it" : state ?? "no state";
  return [{ start: started_at, end, className: `try ${state ?? ""}`, text: `try ${try_number}, ${what}` }];
}
