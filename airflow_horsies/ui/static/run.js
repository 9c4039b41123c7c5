// The page of a DAG run: its horsies tasks on one time axis, failures first.

/** @import { Run, RunRow } from "./payloads.d.ts" */

import "./common/theme.js";
import { emptyBox, problemBox, staleNotice } from "./common/boxes.js";
import { setServerTime } from "./common/clock.js";
import { h, page, table, update } from "./common/dom.js";
import { errorCode, instanceLink } from "./common/links.js";
import { poll } from "./common/polling.js";
import { getJson } from "./common/requests.js";
import { horsies } from "./common/site.js";
import { badge, isLive, number, plural, stateCounts } from "./common/text.js";
import { segmentBar, segmentLegend, timeline } from "./common/timeline.js";

const EMPTY_SECONDS = 3;
const LIVE_SECONDS = 3;
const RESTING_SECONDS = 10;

const [dag_id, run_id] = readAddress();
const api = `${horsies}/api/dags/${encodeURIComponent(dag_id)}/gantt/${encodeURIComponent(run_id)}`;
const place = { notice: h("div"), content: h("div") };

function readAddress() {
  const found = location.pathname.slice(horsies.length).match(/^\/dags\/([^/]+)\/gantt\/(.+)$/) ?? ["", "", ""];
  return found.slice(1).map((part) => decodeURIComponent(part));
}

async function read() {
  /** @type {Run} */
  const run = await getJson(api);
  setServerTime(run.now);
  if (!run.rows.length) {
    const detail = "No task of this run has submitted a horsies task yet. Tasks appear here automatically.";
    page.replaceChildren(emptyBox("No tasks yet", detail));
    return EMPTY_SECONDS;
  }
  if (!place.content.isConnected) page.replaceChildren(place.notice, place.content);
  place.notice.replaceChildren();
  update(place.content, [run.rows, run.total], () => content(run));
  return run.rows.some((row) => isLive(row.state)) ? LIVE_SECONDS : RESTING_SECONDS;
}

/** @param {Run} run */
function content(run) {
  const failed = run.rows.filter((row) => row.state === "FAILED" || row.state === "EXPIRED");
  const summary = `${dag_id} · ${run_id} · ${plural(run.total, "task instance")}`;
  return [
    h(
      "header",
      {},
      h("div", { class: "title" }, h("h1", {}, "Horsies tasks of this run")),
      h("p", { class: "quiet" }, summary, failed.length ? `, ${number(failed.length)} failed` : ""),
    ),
    gantt(run),
    failed.length ? failures(failed) : null,
  ];
}

/** @param {Run} run */
function gantt({ rows, total, is_cut }) {
  const drawn = rows.filter((row) => row.segments.length);
  return h(
    "section",
    { class: "card", id: "gantt" },
    drawn.length
      ? timeline(
        drawn.map((row) => ({
          label: label(row),
          bars: row.segments.map((segment) => segmentBar(segment, row.task_id)),
        })),
      )
      : h("p", { class: "quiet" }, "The tasks of this run are past their retention."),
    segmentLegend(),
    total > rows.length
      ? h(
        "p",
        { class: "notice" },
        `${number(rows.length)} of ${number(total)} task instances are shown. Failed and running ones come first.`,
      )
      : null,
    is_cut
      ? h(
        "p",
        { class: "notice" },
        "The run has more horsies tasks than this page reads. The last batches are incomplete.",
      )
      : null,
  );
}

/** @param {RunRow} row */
function label(row) {
  return [
    rowLink(row),
    " ",
    row.state ? badge(row.state) : h("span", { class: "quiet" }, "past retention"),
    row.items > 1 ? h("span", { class: "quiet" }, ` ${number(row.items)} items`) : null,
  ];
}

/** @param {RunRow} row */
function rowLink({ task_id, map_index }) {
  return instanceLink({ dag_id, run_id, task_id, map_index });
}

/** @param {RunRow[]} rows */
function failures(rows) {
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Failures"),
    table(["Task", "State", "Error"], rows.map(failureRow)),
  );
}

/** @param {RunRow} row */
function failureRow(row) {
  const states = stateCounts(row.counts).map((
    [state, count],
  ) => [badge(state), row.items > 1 ? ` ${number(count)} ` : ""]);
  const message = h("div", { class: "message" }, row.error_message ?? "");
  return h(
    "tr",
    {},
    h("td", {}, rowLink(row)),
    h("td", {}, states),
    h("td", {}, errorCode(row.error_code ?? "", row.error_url), message),
  );
}

poll(read, (problem) => {
  if (place.content.isConnected) place.notice.replaceChildren(staleNotice(problem));
  else page.replaceChildren(problemBox(problem));
});
