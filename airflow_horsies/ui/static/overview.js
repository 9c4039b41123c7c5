// All of horsies: queues, workers, failures, what happens now.

import {
  airflowLink, badge, bytes, clearInstance, clockTime, confirmAction, duration, getJson, h, horsies, instanceLink,
  instanceName, number, plural, poll, problemBox, setServerTime, staleNotice, ticking, time, update,
} from "./common.js";
import { plot } from "./charts.js";

const SECONDS = 3;
const FAILURES_EVERY = 5;
const MOST_FAILURES = 500;
const page = document.getElementById("page");
const place = {
  notice: h("div"),
  header: h("header"),
  queues: h("section", { class: "card", id: "queues" }),
  workers: h("section", { class: "card", id: "workers" }),
  failures: h("section", { class: "card", id: "failures" }),
  plots: h("section", { class: "card", id: "plots" }),
  reports: h("section", { class: "card", id: "reports" }),
  activity: h("section", { class: "card", id: "activity" }),
};
const main = h("div", { class: "columns" }, h("div", {}, place.queues, place.workers, place.failures, place.plots, place.reports), place.activity);
let data = null;

// Older failures that were asked for stay; the newest stretch is read again and again.
const dead = { newest: [], older: [], next: null, searchedTo: null, wentBack: false, rounds: 0, chosen: new Set(), cleared: new Set(), code: "" };

async function read() {
  data = await getJson(`${horsies}/api/overview`);
  if (dead.rounds % FAILURES_EVERY === 0) await readFailures();
  dead.rounds += 1;
  setServerTime(data.now);
  if (!main.isConnected) page.replaceChildren(place.notice, place.header, main);
  place.notice.replaceChildren();
  show();
  return SECONDS;
}

const look = poll(read, {
  failed(error) {
    if (data) place.notice.replaceChildren(staleNotice(error));
    else page.replaceChildren(problemBox(error));
  },
});

function show() {
  update(place.header, [data.can_monitor], () => [
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Horsies"),
      data.can_monitor ? h("span", { class: "actions" }, h("a", { class: "button small", href: `${horsies}/monitoring/`, id: "monitoring" }, "horsies' own monitoring")) : null,
    ),
  ]);
  update(place.queues, data.queues, queues);
  update(place.workers, data.workers, workers);
  update(place.plots, [data.buckets, data.recent_tasks], plots);
  update(place.activity, data.activity, activity);
  update(place.reports, data.reports, reports);
  showFailures();
}

function table(columns, rows, attributes = {}) {
  return h(
    "div",
    { class: "scroll" },
    h("table", attributes, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)),
  );
}

// -- queues and workers -----------------------------------------------------------------------------------------------

function queues() {
  if (!data.queues.length) {
    return [h("h2", {}, "Queues"), h("p", { class: "quiet" }, "No task waits and no worker is there. Start one with: python -m airflow_horsies.worker my_tasks:app")];
  }
  return [
    h("h2", {}, "Queues"),
    table(
      ["Queue", "Waiting", "Delayed", "Running", "Oldest waiting", "Ended per minute", "Served by"],
      data.queues.map((queue) =>
        h(
          "tr",
          {},
          h("td", {}, queue.queue),
          h("td", {}, number(queue.ready)),
          h("td", {}, number(queue.delayed)),
          h("td", {}, number(queue.running + queue.claimed)),
          h("td", {}, queue.oldest_ready_at ? ticking((now) => duration(Math.max(now - Date.parse(queue.oldest_ready_at), 0) / 1000)) : "–"),
          h("td", {}, number(queue.per_minute)),
          h("td", {}, queue.served_by ? plural(queue.served_by, "worker") : h("span", { class: queue.ready ? "failed" : "quiet" }, "nobody")),
        ),
      ),
    ),
  ];
}

function workers() {
  if (!data.workers.length) return [h("h2", {}, "Workers"), h("p", { class: "quiet" }, "No worker was heard of in the last hour.")];
  return [
    h("h2", {}, "Workers"),
    table(
      ["Worker", "State", "Queues", "Load", "Memory", "CPU", "Up for", "Heard of"],
      data.workers.map((worker) =>
        h(
          "tr",
          {},
          h("td", { title: worker.worker_id }, `${worker.hostname}, process ${worker.pid}`),
          h("td", {}, badge(worker.alive ? "alive" : "silent")),
          h("td", {}, worker.queues.join(", ")),
          h("td", {}, worker.alive ? `${worker.tasks_running} of ${worker.processes}` : "–"),
          h("td", {}, worker.memory_mb === null ? "–" : bytes(worker.memory_mb * 1024 * 1024)),
          h("td", {}, worker.cpu_percent === null ? "–" : `${Math.round(worker.cpu_percent)} %`),
          h("td", {}, worker.alive ? ticking((now) => duration((now - Date.parse(worker.started_at)) / 1000)) : "–"),
          h("td", {}, ticking((now) => `${duration(Math.max(now - Date.parse(worker.seen_at), 0) / 1000)} ago`)),
        ),
      ),
    ),
  ];
}

// -- failures ---------------------------------------------------------------------------------------------------------

async function readFailures() {
  const found = await getJson(`${horsies}/api/failures`);
  dead.newest = found.failures;
  if (!dead.wentBack) {
    dead.next = found.next;
    dead.searchedTo = found.searched_to;
  }
}

async function readOlder() {
  const asked = new URLSearchParams({ before_at: dead.next.at, before_id: dead.next.id });
  const found = await getJson(`${horsies}/api/failures?${asked}`);
  dead.wentBack = true;
  dead.older.push(...found.failures);
  dead.next = dead.older.length < MOST_FAILURES ? found.next : null;
  dead.searchedTo = found.searched_to ?? dead.searchedTo;
  showFailures();
}

function key(failure) {
  return JSON.stringify([failure.dag_id, failure.run_id, failure.task_id, failure.map_index]);
}

function allFailures() {
  const found = new Map();
  for (const failure of [...dead.newest, ...dead.older]) if (!found.has(key(failure))) found.set(key(failure), failure);
  return [...found.values()];
}

function showFailures() {
  const all = allFailures();
  const shownKeys = new Set(all.map(key));
  for (const each of dead.chosen) if (!shownKeys.has(each)) dead.chosen.delete(each);
  update(place.failures, [all, dead.code, [...dead.chosen], dead.next, dead.searchedTo], () => failures(all));
}

function failures(all) {
  const codes = new Map();
  for (const failure of all) codes.set(failure.error_code ?? failure.state, (codes.get(failure.error_code ?? failure.state) ?? 0) + 1);
  if (!codes.has(dead.code)) dead.code = "";
  const matching = all.filter((failure) => !dead.code || (failure.error_code ?? failure.state) === dead.code);
  const chosen = matching.filter((failure) => dead.chosen.has(key(failure)));
  const actable = matching.filter(canRerun);
  return [
    h(
      "div",
      { class: "toolbar" },
      h("h2", {}, "Dead letters"),
      h(
        "span",
        { class: "actions" },
        actable.length
          ? h("button", { type: "button", class: "primary small", id: "rerun-chosen", "data-focus": "rerun", disabled: !chosen.length, onclick: () => askRerun(chosen) }, chosen.length ? `Rerun ${plural(chosen.length, "task")}` : "Rerun")
          : null,
      ),
    ),
    h("p", { class: "quiet" }, "Task instances whose last horsies task failed for good or expired."),
    codes.size
      ? h(
          "div",
          { class: "groups", role: "group", "aria-label": "Error codes" },
          [["", all.length], ...[...codes].sort((a, b) => b[1] - a[1])].map(([code, count]) =>
            h("button", { type: "button", class: "small", "data-focus": `code-${code}`, "aria-pressed": String(dead.code === code), onclick: () => choose(code) }, `${code || "All"} ${number(count)}`),
          ),
        )
      : null,
    matching.length
      ? table([checkAll(actable), "Task", "Error", "Attempts", "Ended", "In Airflow"], matching.map(failureRow), { id: "dead-letters" })
      : h("p", { class: "good" }, "None. Everything that was looked at ended well, or runs again."),
    h(
      "p",
      { class: "quiet" },
      dead.searchedTo ? [`Looked at what was sent since `, time(dead.searchedTo), ". "] : "",
      dead.next ? h("button", { type: "button", class: "small", "data-focus": "older", onclick: readOlder }, "Look further back") : "",
    ),
  ];
}

function canRerun(failure) {
  return failure.can_act && failure.exists && !["running", "queued", "scheduled", "deferred"].includes(failure.airflow_state);
}

function checkAll(actable) {
  if (!actable.length) return "";
  const all = actable.every((failure) => dead.chosen.has(key(failure)));
  const box = h("input", { type: "checkbox", "aria-label": "Choose all", "data-focus": "all" });
  box.checked = all;
  box.addEventListener("change", () => {
    for (const failure of actable) if (box.checked) dead.chosen.add(key(failure)); else dead.chosen.delete(key(failure));
    showFailures();
  });
  return box;
}

function failureRow(failure) {
  let box = "";
  if (canRerun(failure)) {
    box = h("input", { type: "checkbox", "aria-label": `Choose ${instanceName(failure)}`, "data-focus": key(failure) });
    box.checked = dead.chosen.has(key(failure));
    box.addEventListener("change", () => {
      if (box.checked) dead.chosen.add(key(failure)); else dead.chosen.delete(key(failure));
      showFailures();
    });
  }
  return h(
    "tr",
    {},
    h("td", {}, box),
    h("td", {}, failure.exists ? instanceLink(failure) : instanceName(failure), h("div", { class: "quiet" }, `${failure.dag_id} · ${failure.run_id}`), failure.items > 1 ? h("div", { class: "quiet" }, `${plural(failure.items, "item")} of a batch`) : null),
    h("td", {}, h("strong", {}, failure.error_code ?? failure.state), h("div", { class: "message" }, failure.error_message ?? "")),
    h("td", {}, failure.attempts),
    h("td", {}, time(failure.finished_at)),
    h("td", {}, failure.exists ? badge(failure.airflow_state ?? "cleared") : h("span", { class: "quiet" }, "gone")),
  );
}

function choose(code) {
  dead.code = code;
  showFailures();
}

function askRerun(chosen) {
  confirmAction({
    title: `Rerun ${plural(chosen.length, "task instance")}?`,
    content: [
      h("p", {}, "Airflow clears each of them with what is downstream of it, and their DAG runs go on from there."),
      h("ul", {}, chosen.slice(0, 10).map((each) => h("li", {}, `${each.dag_id}: ${instanceName(each)}`))),
      chosen.length > 10 ? h("p", { class: "quiet" }, `and ${number(chosen.length - 10)} more`) : "",
    ],
    action: "Clear and rerun",
    act: async (say) => {
      const failed = [];
      for (const [at, each] of chosen.entries()) {
        say(`Clearing ${at + 1} of ${chosen.length}…`);
        try {
          await clearInstance(each, { dry: false });
          dead.chosen.delete(key(each));
          dead.cleared.add(key(each));
        } catch (error) {
          failed.push(`${instanceName(each)}: ${error.status === 403 ? "your role in Airflow does not allow it" : error.message}`);
        }
      }
      dead.rounds = 0;
      dead.older = dead.older.filter((each) => !dead.cleared.has(key(each)));
      look();
      const done = chosen.length - failed.length;
      const told = `${plural(done, "task instance")} cleared; Airflow runs ${done === 1 ? "it" : "them"} again.`;
      return failed.length ? h("span", {}, told, h("ul", {}, failed.slice(0, 10).map((each) => h("li", {}, each)))) : told;
    },
  });
}

// -- figures ----------------------------------------------------------------------------------------------------------

function plots() {
  if (!data.buckets.length) return [h("h2", {}, "Attempts over time"), h("p", { class: "quiet" }, "No attempt has ended yet.")];
  const starts = data.buckets.map((bucket) => bucket.start);
  const values = (pick) => data.buckets.map(pick);
  return [
    h("h2", {}, "Attempts over time"),
    h("p", { class: "quiet" }, `Of the last ${plural(data.recent_tasks, "task")}, in steps of ${duration(data.bucket_seconds)}.`),
    h(
      "div",
      { class: "plots" },
      plot({
        title: "Attempts that ended",
        starts,
        bars: true,
        series: [
          { name: "completed", className: "completed", values: values((bucket) => bucket.ended - bucket.failed) },
          { name: "failed", className: "failed", values: values((bucket) => bucket.failed) },
        ],
      }),
      plot({
        title: "Success rate",
        starts,
        top: 100,
        unit: (value) => `${Math.round(value)} %`,
        series: [{ name: "of attempts", className: "completed", values: values((bucket) => (bucket.ended ? (100 * (bucket.ended - bucket.failed)) / bucket.ended : null)) }],
      }),
      plot({
        title: "Duration of attempts",
        starts,
        unit: duration,
        series: [
          { name: "median", className: "running", values: values((bucket) => bucket.p50_seconds) },
          { name: "95th percentile", className: "expired", values: values((bucket) => bucket.p95_seconds) },
        ],
      }),
    ),
  ];
}

function reports() {
  if (!data.reports.length) return [];
  return [
    h("h2", {}, "Reports"),
    h(
      "ul",
      {},
      data.reports.map((report) =>
        h("li", {}, h("a", { href: report.url }, `${report.name}, `, time(report.start), " to ", time(report.end)), h("span", { class: "quiet" }, " made ", time(report.made_at))),
      ),
    ),
  ];
}

function activity() {
  return [
    h("h2", {}, "Just now"),
    data.activity.length
      ? h(
          "ol",
          { class: "feed" },
          data.activity.map((event) =>
            h(
              "li",
              {},
              h("time", { datetime: event.at }, clockTime(event.at)),
              h(
                "span",
                {},
                event.instance ? instanceLink(event.instance) : event.task_name,
                " ",
                badge(event.what.startsWith("failed") ? "failed" : event.what),
                event.count > 1 ? h("span", { class: "quiet" }, ` × ${number(event.count)}`) : null,
                event.what === "failed, will be retried" ? h("span", { class: "quiet" }, " will be retried") : null,
                event.error_code ? h("span", { class: "quiet" }, ` ${event.error_code}`) : null,
                h("span", { class: "quiet" }, ` · ${event.instance ? event.instance.dag_id : "not sent by a task of Airflow"}`),
              ),
            ),
          ),
        )
      : h("p", { class: "quiet" }, "Nothing has happened yet."),
  ];
}
