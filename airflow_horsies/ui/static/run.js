// A DAG run: its horsies tasks on one clock, failures first.

import { badge, emptyBox, getJson, h, horsies, instanceLink, number, plural, poll, problemBox, setServerTime, staleNotice, update } from "./common.js";
import { legend, segmentBar, timeline } from "./charts.js";

const LIVE = new Set(["PENDING", "CLAIMED", "RUNNING"]);
const page = document.getElementById("page");
const [, dag_id, run_id] = location.pathname.slice(horsies.length).match(/^\/dags\/([^/]+)\/gantt\/(.+)$/).map((each) => decodeURIComponent(each));
const api = `${horsies}/api/dags/${encodeURIComponent(dag_id)}/gantt/${encodeURIComponent(run_id)}`;
const place = { notice: h("div"), content: h("div") };
let data = null;

poll(
  async () => {
    data = await getJson(api);
    setServerTime(data.now);
    if (!data.rows.length) {
      page.replaceChildren(emptyBox("Nothing here yet", "No task of this run has submitted anything to horsies. When one does, it appears here by itself."));
      return 3;
    }
    if (!place.content.isConnected) page.replaceChildren(place.notice, place.content);
    place.notice.replaceChildren();
    update(place.content, [data.rows, data.total], content);
    return data.rows.some((row) => LIVE.has(row.state)) ? 3 : 10;
  },
  {
    failed(error) {
      if (place.content.isConnected) place.notice.replaceChildren(staleNotice(error));
      else page.replaceChildren(problemBox(error));
    },
  },
);

function content() {
  const failed = data.rows.filter((row) => ["FAILED", "EXPIRED"].includes(row.state)).length;
  const rows = data.rows.filter((row) => row.segments.length);
  return [
    h(
      "header",
      {},
      h("div", { class: "title" }, h("h1", {}, "Horsies tasks of this run")),
      h("p", { class: "quiet" }, `${dag_id} · ${run_id} · ${plural(data.total, "task instance")}`, failed ? `, ${number(failed)} failed` : ""),
    ),
    h(
      "section",
      { class: "card", id: "gantt" },
      rows.length
        ? timeline(rows.map((row) => ({ label: label(row), bars: row.segments.map((segment) => segmentBar(segment, row.task_id)) })))
        : h("p", { class: "quiet" }, "horsies no longer keeps the tasks of this run."),
      legend([["waiting", "waiting"], ["claimed", "claimed"], ["running", "running"], ["completed", "completed"], ["failed", "failed"], ["backing-off", "backing off"], ["cancelled", "cancelled"]]),
      data.total > data.rows.length ? h("p", { class: "notice" }, `${number(data.rows.length)} of ${number(data.total)} task instances are shown: those that failed or run come first.`) : null,
      data.is_cut ? h("p", { class: "notice" }, "The run has more horsies tasks than this page reads; the batches at its end are not whole.") : null,
    ),
    failed ? failures() : null,
  ];
}

function label(row) {
  const instance = { dag_id, run_id, task_id: row.task_id, map_index: row.map_index };
  return [
    instanceLink(instance),
    " ",
    row.state ? badge(row.state) : h("span", { class: "quiet" }, "past retention"),
    row.items > 1 ? h("span", { class: "quiet" }, ` ${number(row.items)} items`) : null,
  ];
}

function failures() {
  const rows = data.rows.filter((row) => ["FAILED", "EXPIRED"].includes(row.state));
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "What failed"),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["Task", "State", "Error"].map((name) => h("th", { scope: "col" }, name)))),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              h("td", {}, instanceLink({ dag_id, run_id, task_id: row.task_id, map_index: row.map_index })),
              h("td", {}, Object.entries(row.counts).map(([state, count]) => [badge(state), row.items > 1 ? ` ${number(count)} ` : ""])),
              h("td", {}, h("strong", {}, row.error_code ?? ""), h("div", { class: "message" }, row.error_message ?? "")),
            ),
          ),
        ),
      ),
    ),
  );
}
