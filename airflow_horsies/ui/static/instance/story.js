// Airflow's tries and the submissions on one time axis.

/** @import { Instance, Try } from "../payloads.d.ts" */
/** @import { Bar, Row } from "../common/timeline.js" */

import { h } from "../common/dom.js";
import { segmentBar, segmentLegend, timeline } from "../common/timeline.js";

const OVER = ["success", "failed", "skipped", "upstream_failed", "removed", "up_for_retry"];

/** @param {Instance} data */
export function story({ tries, submissions }) {
  const tryBars = tries.flatMap(tryBar);
  /** @type {Row[]} */
  const rows = tryBars.length ? [{ label: "Airflow tries", strong: true, bars: tryBars }] : [];
  for (const { life, round, segments } of [...submissions].reverse()) {
    if (!segments.length) continue;
    const bars = segments.map((segment) =>
      segmentBar(segment, segment.kind === "running" && segment.attempt ? `attempt ${segment.attempt}` : null)
    );
    rows.push({ label: `life ${life}, round ${round}`, bars });
  }
  if (!rows.length) return [];
  const starts = [...submissions.map((item) => item.submitted_at), ...tryBars.map((bar) => bar.start)];
  const isAnyLost = tries.some((item) => item.started_at && item.state === "lost") ||
    submissions.some((item) => item.segments.some((segment) => segment.outcome === "LOST"));
  return [
    h("h2", {}, "Timeline"),
    timeline(rows, Math.min(...starts.map((start) => Date.parse(start)))),
    isAnyLost ? segmentLegend(["lost", "lost"]) : segmentLegend(),
  ];
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
