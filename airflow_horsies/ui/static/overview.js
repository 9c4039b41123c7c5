// The overview page: queues, workers, failures and recent activity.

/** @import { Overview } from "./payloads.d.ts" */

import "./common/theme.js";
import { problemBox, staleNotice } from "./common/boxes.js";
import { setServerTime } from "./common/clock.js";
import { h, page, update } from "./common/dom.js";
import { poll } from "./common/polling.js";
import { getJson } from "./common/requests.js";
import { horsies } from "./common/site.js";
import { activity } from "./overview/activity.js";
import { queues, workers } from "./overview/cluster.js";
import { FailuresPanel } from "./overview/failures.js";
import { plots, reports } from "./overview/figures.js";

const SECONDS = 3;

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
const main = h(
  "div",
  { class: "columns" },
  h("div", {}, place.queues, place.workers, place.failures, place.plots, place.reports),
  place.activity,
);
const failures = new FailuresPanel(place.failures, () => look());

async function read() {
  /** @type {Overview} */
  const data = await getJson(`${horsies}/api/overview`);
  await failures.refresh();
  setServerTime(data.now);
  if (!main.isConnected) page.replaceChildren(place.notice, place.header, main);
  place.notice.replaceChildren();
  show(data);
  return SECONDS;
}

/** @param {Overview} data */
function show(data) {
  update(place.header, [data.can_monitor, data.can_read_reference], () => header(data));
  update(place.queues, data.queues, () => queues(data.queues));
  update(place.workers, data.workers, () => workers(data.workers));
  update(place.plots, [data.buckets, data.recent_tasks], () => plots(data));
  update(place.activity, data.activity, () => activity(data.activity));
  update(place.reports, data.reports, () => reports(data.reports));
  failures.show();
}

/** @param {Overview} data */
function header({ can_monitor, can_read_reference }) {
  /** @type {[isShown: boolean, id: string, path: string, text: string][]} */
  const links = [
    [can_read_reference, "reference", "tasks", "Tasks and workflows"],
    [can_monitor, "monitoring", "monitoring/", "Monitoring of horsies"],
  ];
  const buttons = links.filter(([isShown]) => isShown).map(([, id, path, text]) =>
    h("a", { class: "button small", href: `${horsies}/${path}`, id }, text)
  );
  return h(
    "div",
    { class: "title" },
    h("h1", {}, "Horsies"),
    buttons.length ? h("span", { class: "actions" }, buttons) : null,
  );
}

const look = poll(read, (problem) => {
  if (main.isConnected) place.notice.replaceChildren(staleNotice(problem));
  else page.replaceChildren(problemBox(problem));
});
