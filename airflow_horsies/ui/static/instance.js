// The page of a task instance: its submissions and their attempts, live.

/** @import { EmptyInstance, Instance, Submission } from "./payloads.d.ts" */
/** @import { Shown } from "./instance/address.js" */

import "./common/theme.js";
import { emptyBox, problemBox, staleNotice } from "./common/boxes.js";
import { shownItem } from "./common/clearing.js";
import { setServerTime } from "./common/clock.js";
import { h, page, update } from "./common/dom.js";
import { poll } from "./common/polling.js";
import { getJson } from "./common/requests.js";
import { isLive } from "./common/text.js";
import { askCancel, askRepair, askRerun } from "./instance/actions.js";
import { api, query } from "./instance/address.js";
import { attempts } from "./instance/attempts.js";
import { BatchPanel } from "./instance/batch.js";
import { choice } from "./instance/choice.js";
import { facts } from "./instance/facts.js";
import { header } from "./instance/header.js";
import { LogPanel } from "./instance/log.js";
import { story } from "./instance/story.js";
import { ValuesPanel } from "./instance/values.js";
import { WorkflowPanel } from "./instance/workflow.js";

const LIVE_SECONDS = 1.5;
const RESTING_SECONDS = 10;
const EMPTY_SECONDS = 3;
const LINES_AT_ONCE = 1000;
const NOTHING_YET = "This task instance has not submitted a horsies task yet. Its attempts appear here automatically.";
const LIVE_IN_AIRFLOW = ["running", "deferred", "queued", "scheduled", "restarting"];

const place = {
  notice: h("div"),
  header: h("header"),
  batch: h("section"),
  detail: h("div"),
  choice: h("nav"),
  workflow: h("section", { class: "card", id: "workflow" }),
  node: h("section", { class: "card", id: "node" }),
  facts: h("section", { class: "card" }),
  timeline: h("section", { class: "card" }),
  attempts: h("section", { class: "card" }),
  log: h("section", { class: "card log" }),
  values: h("section", { class: "values" }),
};
place.detail.append(
  place.choice,
  place.workflow,
  place.node,
  place.facts,
  place.timeline,
  place.attempts,
  place.log,
  place.values,
);

/** @type {Shown} */
const shown = { position: 0, life: null, round: null, isBatch: null, opened: false };
const log = new LogPanel(place.log);
const values = new ValuesPanel(place.values);
const batch = new BatchPanel(place.batch, openItem);
const workflow = new WorkflowPanel(place, log, () => look());
/** @type {Instance | null} */
let known = null;

async function read() {
  const { attempt, number } = log.seen;
  const generation = log.generation;
  const asked = query(shown, { after_attempt: attempt, after_number: number, lines: LINES_AT_ONCE });
  /** @type {Instance | EmptyInstance} */
  const data = await getJson(`${api}?${asked}`);
  if (generation !== log.generation) return 0;
  setServerTime(data.now);
  if (!("log" in data)) {
    page.replaceChildren(emptyBox("No tasks yet", NOTHING_YET));
    return EMPTY_SECONDS;
  }
  known = data;
  if (!place.header.isConnected) page.replaceChildren(place.notice, place.header, place.batch, place.detail);
  place.notice.replaceChildren();
  const isMore = isWorkflow(data) ? await workflow.read(selected(data)) : data.log.more;
  if (generation !== log.generation) return 0;
  if (!isWorkflow(data)) log.add(data.log.lines);
  show(data);
  if (isMore) return 0;
  return isAnyLive(data) ? LIVE_SECONDS : RESTING_SECONDS;
}

/** @param {Instance} data */
function isAnyLive({ counts, tries }) {
  return Object.keys(counts).some(isLive) || LIVE_IN_AIRFLOW.includes(tries.at(-1)?.state ?? "");
}

/** @param {Instance} data */
function selected({ submissions, log: { life, round } }) {
  return submissions.find((item) => item.life === life && item.round === round) ?? submissions[0];
}

/** @param {Instance} data */
function isWorkflow(data) {
  return selected(data).kind === "WORKFLOW";
}

/** @param {Instance} data */
function show(data) {
  shown.isBatch ??= data.positions > 1;
  const submission = selected(data);
  const airflowState = data.tries.at(-1)?.state ?? null;
  update(
    place.header,
    [data.counts, submission.task_name, submission.workflow_state, airflowState, data.can_act, shown],
    () =>
      header(data, submission, shown, {
        cancel: cancelAll,
        rerun: () => askRerun(showNewest),
        repair: () => askRepair(data, null, showNewest),
      }),
  );
  if (shown.isBatch) batch.show(data);
  place.batch.hidden = !shown.isBatch || shown.opened;
  place.detail.hidden = !place.batch.hidden;
  if (!place.detail.hidden) showDetail(data);
}

/** @param {Instance} data */
function showDetail(data) {
  const submission = selected(data);
  const { position } = shown;
  const chosen = query({ position, life: submission.life, round: submission.round });
  update(
    place.choice,
    [data.submissions.map(choiceOf), data.counts, data.tries.at(-1), shown],
    () =>
      choice(data, submission, shown, {
        close: closeItem,
        cancel: () => cancelItem(data),
        repair: () => repairItem(data),
        choose,
      }),
  );
  place.workflow.hidden = place.node.hidden = !isWorkflow(data);
  // What a node did comes right after the graph.
  const below = isWorkflow(data) ? place.values : place.attempts;
  if (place.timeline.nextElementSibling !== below) below.before(place.timeline);
  place.values.hidden = isWorkflow(data);
  update(place.timeline, [data.tries, data.submissions.map((item) => item.segments), data.moments], () => story(data));
  if (isWorkflow(data)) {
    workflow.show(submission);
    return;
  }
  place.facts.hidden = place.attempts.hidden = place.log.hidden = false;
  update(
    place.facts,
    [submission.task, submission.progress, submission.horsies_task_id],
    () => facts(submission),
  );
  update(place.attempts, submission.attempts, () => attempts(submission));
  log.show(submission, { mayRead: data.log.may_read, download: `${api}/log.txt?${chosen}` });
  values.refresh(submission, `${api}/values?${chosen}`);
}

/** @param {Submission} submission */
function choiceOf({ life, round, horsies_task_id, number, task, workflow_state }) {
  return [life, round, horsies_task_id, number, task?.state, workflow_state];
}

function cancelAll() {
  askCancel(null, shown.isBatch ? "all unfinished items" : "the horsies task", look);
}

/** @param {Instance} data */
function cancelItem({ submissions: [newest] }) {
  askCancel(shownItem(newest), `item ${newest.position}`, look);
}

/** @param {Instance} data */
function repairItem(data) {
  askRepair(data, shownItem(data.submissions[0]), showNewest);
}

function showNewest() {
  shown.life = shown.round = null;
  log.restart();
  look();
}

/** @param {Partial<Shown>} change */
function choose(change) {
  Object.assign(shown, change);
  log.restart();
  values.forget();
  look();
}

/** @param {number} position */
function openItem(position) {
  choose({ position, life: null, round: null, opened: true });
}

function closeItem() {
  choose({ position: 0, life: null, round: null, opened: false });
  if (known) show(known);
}

const look = poll(read, (problem) => {
  if (known) place.notice.replaceChildren(staleNotice(problem));
  else page.replaceChildren(problemBox(problem));
});
