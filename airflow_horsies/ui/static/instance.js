// A task instance: what it submitted, attempt by attempt, live.

import {
  badge, bytes, clearInstance, clockTime, confirmAction, copyButton, duration, emptyBox, fullTime, getJson, h,
  horsies, instanceName, isEmbedded, airflowLink, instanceAddress, number, plural, poll, postJson, problemBox,
  setServerTime, staleNotice, ticking, time, update,
} from "./common.js";
import { countBar, legend, segmentBar, timeline } from "./charts.js";

const LIVE = new Set(["PENDING", "CLAIMED", "RUNNING"]);
const LIVE_SECONDS = 1.5;
const RESTING_SECONDS = 10;
const EMPTY_SECONDS = 3;
const ITEMS_PER_PAGE = 50;
const MOST_LINES = 5000;
const LINES_AT_ONCE = 1000;

const page = document.getElementById("page");
const instance = readAddress();
const api = `${horsies}/api/dags/${encodeURIComponent(instance.dag_id)}/runs/${encodeURIComponent(instance.run_id)}`
  + `/tasks/${encodeURIComponent(instance.task_id)}/${instance.map_index}`;

// What is being looked at: a position of a batch, and one of its submissions (null: the newest).
const shown = { position: 0, life: null, round: null, isBatch: null, opened: false };
let data = null;
let look = null;

function readAddress() {
  const path = location.pathname.slice(horsies.length);
  const [, dag_id, run_id, task_id, map_index] = path.match(/^\/dags\/([^/]+)\/runs\/(.+)\/tasks\/([^/]+)\/([^/]+)$/);
  const given = Number.parseInt(decodeURIComponent(map_index), 10);
  return {
    dag_id: decodeURIComponent(dag_id),
    run_id: decodeURIComponent(run_id),
    task_id: decodeURIComponent(task_id),
    map_index: Number.isNaN(given) ? -1 : given,
  };
}

const place = {
  notice: h("div"),
  header: h("header"),
  batch: h("section"),
  detail: h("div"),
  choice: h("nav"),
  facts: h("section", { class: "card" }),
  timeline: h("section", { class: "card" }),
  attempts: h("section", { class: "card" }),
  log: h("section", { class: "card log" }),
  values: h("section", { class: "values" }),
};
place.detail.append(place.choice, place.facts, place.timeline, place.attempts, place.log, place.values);

function query(extra = {}) {
  const given = { position: shown.position, life: shown.life, round: shown.round, ...extra };
  return new URLSearchParams(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
}

async function read() {
  const asked = query({ after_attempt: log.seen[0], after_number: log.seen[1], lines: LINES_AT_ONCE });
  const generation = log.generation;
  const found = await getJson(`${api}?${asked}`);
  if (generation !== log.generation) return 0;
  setServerTime(found.now);
  if (!found.submissions.length) {
    page.replaceChildren(emptyBox("Nothing here yet", "This task instance has submitted nothing to horsies. When it does, the attempts appear here by themselves."));
    return EMPTY_SECONDS;
  }
  data = found;
  if (!place.header.isConnected) page.replaceChildren(place.notice, place.header, place.batch, place.detail);
  place.notice.replaceChildren();
  log.add(data.log);
  show();
  if (data.log.more) return 0;
  return isLive() ? LIVE_SECONDS : RESTING_SECONDS;
}

function isLive() {
  const last = data.tries.at(-1)?.state;
  return Object.keys(data.counts).some((state) => LIVE.has(state)) || ["running", "deferred", "queued", "scheduled", "restarting"].includes(last);
}

function selected() {
  return data.submissions.find((each) => each.life === data.log.life && each.round === data.log.round) ?? data.submissions[0];
}

function show() {
  shown.isBatch ??= data.positions > 1;
  const submission = selected();
  const task = submission.task;
  const airflowState = data.tries.at(-1)?.state ?? null;
  update(place.header, [data.counts, submission.task_name, airflowState, data.can_act, shown], () => header(submission, airflowState));
  update(place.batch, [data.counts, data.positions, shown.isBatch], () => (shown.isBatch ? batch() : []));
  const opened = !shown.isBatch || shown.opened;
  place.batch.hidden = opened;
  place.detail.hidden = !opened;
  if (place.detail.hidden) return;
  update(place.choice, [data.submissions.map((each) => [each.life, each.round, each.task?.state]), shown], choice);
  update(place.facts, [task, submission.progress, submission.horsies_task_id], () => facts(submission));
  update(place.timeline, [data.tries, data.submissions.map((each) => each.segments)], story);
  update(place.attempts, submission.attempts, () => attempts(submission));
  log.show(submission);
  values.refresh(submission);
}

// -- head -------------------------------------------------------------------------------------------------------------

function header(submission, airflowState) {
  const state = shown.isBatch ? null : submission.task?.state;
  const canCancel = data.can_act && Object.keys(data.counts).some((each) => LIVE.has(each));
  const canRerun = data.can_act && data.tries.length > 0 && !["running", "deferred", "queued", "scheduled"].includes(airflowState);
  return [
    h(
      "div",
      { class: "title" },
      h("h1", {}, submission.task_name),
      state ? badge(state, { id: "state" }) : null,
      h("span", { class: "quiet" }, shown.isBatch ? plural(data.positions, "item") : ""),
      h(
        "span",
        { class: "actions" },
        canCancel ? h("button", { type: "button", id: "cancel", class: "danger", "data-focus": "cancel", onclick: () => askCancel(null) }, shown.isBatch ? "Cancel all" : "Cancel") : null,
        canRerun ? h("button", { type: "button", id: "rerun", "data-focus": "rerun", onclick: askRerun }, "Rerun") : null,
      ),
    ),
    // In Airflow's own page all of this stands above.
    isEmbedded
      ? null
      : h(
          "p",
          { class: "quiet" },
          airflowLink(instanceAddress(instance), "Open in Airflow"),
          ` · ${instance.dag_id} · ${instanceName(instance)} · ${instance.run_id} · in Airflow `,
          airflowState ? badge(airflowState) : data.tries.length ? "no state yet" : "no longer there",
        ),
  ];
}

function askCancel(position) {
  const what = position !== null ? `Item ${position}` : shown.isBatch ? "Every item that has not ended" : "The horsies task";
  confirmAction({
    title: "Cancel?",
    content: h("p", {}, `${what} is cancelled, and what runs of it is stopped. The task in Airflow then ends as the DAG says for cancelled work (on_cancelled).`),
    action: "Cancel it",
    danger: true,
    act: async () => {
      const { outcomes } = await postJson(`${api}/cancel`, { position });
      look();
      const told = {
        CANCELLED: "cancelled",
        ALREADY_CANCELLED: "cancelled before",
        ALREADY_FINISHED: "had ended before",
        STILL_WANTED: "left, as another task instance shares it",
        REQUESTED: "cancelled as soon as horsies can",
      };
      return `${Object.entries(outcomes).map(([outcome, count]) => `${number(count)} ${told[outcome]}`).join(", ") || "Nothing to cancel"}.`;
    },
  });
}

async function askRerun() {
  const dialog = confirmAction({
    title: "Rerun?",
    content: h("p", { class: "quiet" }, "Asking Airflow what it would clear…"),
    action: "Clear and rerun",
    act: async () => {
      const cleared = await clearInstance(instance, { dry: false });
      shown.life = shown.round = null;
      log.restart();
      look();
      return `Cleared ${plural(cleared.length, "task instance")}; Airflow runs ${cleared.length === 1 ? "it" : "them"} again.`;
    },
  });
  try {
    const affected = await clearInstance(instance, { dry: true });
    dialog.body.replaceChildren(
      h("p", {}, `Airflow clears ${plural(affected.length, "task instance")}, and the DAG run goes on from here. A new life of the task begins: its work is submitted anew.`),
      h("ul", {}, affected.slice(0, 10).map((each) => h("li", {}, instanceName(each), " ", badge(each.state)))),
      affected.length > 10 ? h("p", { class: "quiet" }, `and ${number(affected.length - 10)} more`) : "",
    );
  } catch (error) {
    dialog.body.replaceChildren(h("p", { class: "failed" }, error.message));
  }
}

// -- which submission -------------------------------------------------------------------------------------------------

function choice() {
  const pieces = [];
  if (shown.isBatch) {
    pieces.push(
      h("button", { type: "button", class: "small", onclick: closeItem }, "← All items"),
      h("strong", {}, ` Item ${shown.position} `),
      data.can_act && LIVE.has(data.submissions[0].task?.state)
        ? h("button", { type: "button", class: "small danger", onclick: () => askCancel(shown.position) }, "Cancel this item")
        : null,
    );
  }
  if (data.submissions.length > 1) {
    const now = selected();
    const select = h(
      "select",
      { id: "submission", "data-focus": "submission", onchange: (event) => {
        const [life, round] = event.target.value.split(" ").map(Number);
        choose({ life, round });
      } },
      data.submissions.map((each, at) =>
        h(
          "option",
          { value: `${each.life} ${each.round}`, selected: each === now },
          `${at === 0 ? "Newest: " : ""}life ${each.life}, round ${each.round} (Airflow try ${each.try_number}), ${(each.task?.state ?? "past retention").toLowerCase()}`,
        ),
      ),
    );
    pieces.push(h("label", {}, "Submission ", select));
  }
  return pieces;
}

function choose(change) {
  Object.assign(shown, change);
  log.restart();
  values.forget();
  look();
}

function closeItem() {
  shown.opened = false;
  choose({ position: 0, life: null, round: null });
  show();
}

// -- facts ------------------------------------------------------------------------------------------------------------

function facts(submission) {
  const task = submission.task;
  if (!task) {
    return h("p", {}, "horsies no longer keeps this task: it is past its retention. What Airflow and its own log know remains.");
  }
  const last = submission.attempts.at(-1);
  const failed = last && last.error_code && !["RUNNING", "COMPLETED"].includes(last.outcome) ? last : null;
  return [
    progressBar(submission.progress, task),
    failed || (task.error_code && !last)
      ? h(
          "div",
          { class: task.state === "COMPLETED" ? "callout" : "callout failed", id: "error" },
          h("strong", {}, failed?.error_code ?? task.error_code),
          h("p", {}, failed?.error_message ?? task.failed_reason ?? ""),
        )
      : null,
    h(
      "dl",
      { class: "facts" },
      fact("Queue", `${task.queue}, priority ${task.priority}`),
      fact("Worker", worker(last ?? task)),
      fact("Attempts", attemptsTold(submission)),
      fact("Submitted", time(submission.submitted_at)),
      fact(task.finished_at ? "Ended" : "Since", ends(task)),
      fact("Deadline", deadline(task)),
      fact("horsies task", h("code", {}, submission.horsies_task_id)),
    ),
  ];
}

function fact(name, ...value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

function worker(told) {
  if (!told.hostname) return LIVE.has(told.state) ? "none yet" : "–";
  return h("span", { title: told.worker_id ? `worker ${told.worker_id}` : null }, `${told.hostname}${told.pid ? `, process ${told.pid}` : ""}`);
}

function attemptsTold({ task, attempts: made }) {
  if (!task.max_retries) return `${made.length} (no retries)`;
  const told = `${made.length} of ${task.max_retries + 1}`;
  return LIVE.has(task.state) ? `${told}, ${plural(task.max_retries + 1 - made.length, "retry", "retries")} left` : told;
}

function ends(task) {
  if (task.finished_at) return time(task.finished_at);
  if (task.next_retry_at && task.state === "PENDING") {
    return ticking((now) => {
      const left = (Date.parse(task.next_retry_at) - now) / 1000;
      return left > 0 ? `retried in ${duration(left)}` : "retry is due";
    });
  }
  const since = { RUNNING: task.started_at, CLAIMED: task.claimed_at }[task.state] ?? task.enqueued_at;
  return ticking((now) => duration(Math.max(now - Date.parse(since), 0) / 1000));
}

function deadline(task) {
  if (!task.good_until) return "none";
  if (task.finished_at) return time(task.good_until);
  return ticking(
    (now) => {
      const left = (Date.parse(task.good_until) - now) / 1000;
      return left > 0 ? `in ${duration(left)}` : `passed ${duration(-left)} ago`;
    },
    { title: fullTime(task.good_until), id: "deadline" },
  );
}

function progressBar(progress, task) {
  if (!progress || task.state !== "RUNNING") return null;
  const percent = progress.fraction === null ? null : Math.floor(progress.fraction * 100);
  const counted = progress.total ? `${number(progress.done)} of ${number(progress.total)}` : `${number(progress.done)} done`;
  return h(
    "div",
    { class: "progress", id: "progress" },
    h(
      "div",
      { class: "progress-bar", role: "progressbar", "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "Progress" },
      h("span", { class: percent === null ? "unknown" : "", style: { width: `${percent ?? 100}%` } }),
    ),
    h("p", {}, percent === null ? counted : `${percent} % (${counted})`, progress.stage ? h("span", { class: "quiet" }, `  ${progress.stage}`) : null),
  );
}

// -- timeline ---------------------------------------------------------------------------------------------------------

function story() {
  const submissions = [...data.submissions].reverse();
  const rows = [];
  const tries = data.tries.filter((each) => each.started_at);
  if (tries.length) {
    rows.push({
      label: "Airflow tries",
      strong: true,
      bars: tries.map((each) => ({
        start: each.started_at,
        end: each.ended_at ?? (isOver(each.state) ? each.started_at : null),
        className: `try ${each.state ?? ""}`,
        text: each.state === "lost" ? `try ${each.try_number}, lost: Airflow keeps no record of it` : `try ${each.try_number}, ${each.state ?? "no state"}`,
      })),
    });
  }
  for (const each of submissions) {
    if (!each.segments.length) continue;
    rows.push({ label: `life ${each.life}, round ${each.round}`, bars: each.segments.map((segment) => segmentBar(segment)) });
  }
  if (!rows.some((row) => row.bars.length)) return [];
  return [
    h("h2", {}, "Timeline"),
    timeline(rows, { from: Math.min(...data.submissions.map((each) => Date.parse(each.submitted_at)), ...tries.map((each) => Date.parse(each.started_at))) }),
    legend([["waiting", "waiting"], ["claimed", "claimed"], ["running", "running"], ["completed", "completed"], ["failed", "failed"], ["backing-off", "backing off"], ["cancelled", "cancelled"], ...(isAnyLost(tries) ? [["lost", "lost"]] : [])]),
  ];
}

function isAnyLost(tries) {
  return tries.some((each) => each.state === "lost")
    || data.submissions.some((each) => each.segments.some((segment) => segment.outcome === "LOST"));
}

function isOver(state) {
  return ["success", "failed", "skipped", "upstream_failed", "removed", "up_for_retry"].includes(state);
}

// -- attempts ---------------------------------------------------------------------------------------------------------

function attempts(submission) {
  if (!submission.attempts.length) {
    const told = submission.task && LIVE.has(submission.task.state) ? "No worker has begun it yet." : "No attempt was made at it.";
    return [h("h2", {}, "Attempts"), h("p", { class: "quiet" }, told)];
  }
  return [
    h("h2", {}, "Attempts"),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { id: "attempts" },
        h("thead", {}, h("tr", {}, ["#", "Outcome", "Started", "Duration", "Where", "Error"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, submission.attempts.flatMap(attemptRows)),
      ),
    ),
  ];
}

function attemptRows(attempt) {
  const rows = [
    h(
      "tr",
      {},
      h("td", {}, attempt.attempt),
      h("td", {}, badge(attempt.outcome), attempt.will_retry ? h("span", { class: "quiet" }, " retried") : null),
      h("td", {}, time(attempt.started_at)),
      h("td", {}, attempt.finished_at === null && attempt.outcome === "RUNNING"
        ? ticking((now) => duration(Math.max(now - Date.parse(attempt.started_at), 0) / 1000))
        : duration(attempt.duration_seconds)),
      h("td", {}, worker(attempt)),
      h("td", {}, attempt.error_code ? [h("strong", {}, attempt.error_code), h("div", { class: "message" }, attempt.error_message ?? "")] : "–"),
    ),
  ];
  const metrics = Object.entries(attempt.metrics);
  if (metrics.length) {
    rows.push(h("tr", { class: "metrics" }, h("td"), h("td", { colspan: "5" }, metrics.map(([name, value]) => h("span", {}, metric(name, value))))));
  }
  return rows;
}

function metric(name, value) {
  const words = name.replaceAll("_", " ");
  if (typeof value !== "number") return `${words} ${value}`;
  if (name.endsWith("_bytes")) return `${words.slice(0, -6)} ${bytes(value)}`;
  if (name.endsWith("_seconds")) return `${words.slice(0, -8)} ${duration(value)}`;
  return `${words} ${number(value)}`;
}

// -- log --------------------------------------------------------------------------------------------------------------

const log = {
  seen: [0, 0],
  generation: 0,
  dropped: 0,
  lines: h("ol", { class: "lines", id: "log", tabindex: "0", "aria-label": "Log lines" }),
  filter: h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter lines", id: "filter" }),
  follow: h("input", { type: "checkbox", id: "follow" }),
  attempt: h("select", { "aria-label": "Attempt", id: "log-attempt" }),
  download: h("a", { class: "button small", id: "download" }, "Download"),
  told: h("p", { class: "quiet", role: "status" }),

  start() {
    this.follow.checked = true;
    this.filter.addEventListener("input", () => this.sift());
    this.attempt.addEventListener("change", () => this.sift());
    this.follow.addEventListener("change", () => this.scroll());
    // Who scrolls up wants to read, and who scrolls to the end to follow.
    this.lines.addEventListener("scroll", () => {
      const atEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 8;
      if (!this.scrolling) this.follow.checked = atEnd;
      this.scrolling = false;
    });
    place.log.append(
      h(
        "div",
        { class: "toolbar" },
        h("h2", {}, "Log"),
        h("span", { class: "actions" }, this.attempt, this.filter, h("label", {}, this.follow, " Follow"), this.download),
      ),
      this.told,
      this.lines,
    );
  },

  restart() {
    this.generation += 1;
    this.seen = [0, 0];
    this.dropped = 0;
    this.lines.replaceChildren();
    this.attempt.replaceChildren();
  },

  add({ lines }) {
    if (!lines.length) return;
    const last = lines.at(-1);
    this.seen = [last.attempt, last.number];
    this.lines.append(...lines.map((line) => this.line(line)));
    for (; this.lines.childElementCount > MOST_LINES; this.dropped += 1) this.lines.firstElementChild.remove();
    this.scroll();
  },

  line(line) {
    const element = h(
      "li",
      { class: line.level.toLowerCase().replace(/[^a-z]/g, ""), "data-attempt": line.attempt },
      h("time", { datetime: line.logged_at, title: fullTime(line.logged_at) }, clockTime(line.logged_at)),
      h("span", { class: "level" }, line.level),
      // Right-to-left text and control characters stay inside their line.
      h("bdi", { class: "text" }, visible(line.text)),
    );
    element.hidden = !this.matches(element);
    return element;
  },

  matches(element) {
    const wanted = this.filter.value.toLowerCase();
    if (this.attempt.value && element.dataset.attempt !== this.attempt.value) return false;
    return !wanted || element.lastChild.textContent.toLowerCase().includes(wanted) || element.classList.contains(wanted);
  },

  sift() {
    for (const element of this.lines.children) element.hidden = !this.matches(element);
    this.tell();
    this.scroll();
  },

  scroll() {
    if (!this.follow.checked) return;
    this.scrolling = true;
    this.lines.scrollTop = this.lines.scrollHeight;
  },

  show(submission) {
    const numbers = submission.attempts.map((each) => String(each.attempt));
    if ([...this.attempt.options].slice(1).map((each) => each.value).join() !== numbers.join()) {
      const before = this.attempt.value;
      this.attempt.replaceChildren(h("option", { value: "" }, "All attempts"), ...numbers.map((each) => h("option", { value: each }, `Attempt ${each}`)));
      this.attempt.value = numbers.includes(before) ? before : "";
    }
    this.attempt.hidden = numbers.length < 2;
    this.download.setAttribute("href", `${api}/log.txt?${query({ life: submission.life, round: submission.round })}`);
    this.submission = submission;
    this.tell();
  },

  tell() {
    const total = this.lines.childElementCount;
    const matching = [...this.lines.children].filter((each) => !each.hidden).length;
    const begun = this.submission?.attempts.length > 0;
    this.lines.hidden = total === 0;
    this.download.hidden = total === 0;
    const told = [];
    if (!data.log.may_read) {
      told.push("Your role in Airflow does not allow you to read logs of this DAG.");
    } else if (!total) {
      told.push(begun ? "Nothing is written here: the attempts wrote nothing yet, or their worker does not use airflow_horsies.worker." : "Nothing is written before an attempt begins.");
    } else if (matching < total) told.push(`${number(matching)} of ${plural(total, "line")}`);
    if (this.dropped) told.push(`The first ${plural(this.dropped, "line")} are not shown; the download has them all.`);
    this.told.textContent = told.join(" · ");
    this.told.hidden = told.length === 0;
  },
};

/** Control characters as the pictures Unicode has for them: an escape sequence is shown, not obeyed. */
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000a-\u001f]/g, (each) => String.fromCharCode(0x2400 + each.charCodeAt(0))).replaceAll("\u007f", "\u2421");
}

// -- arguments and result ---------------------------------------------------------------------------------------------

const values = {
  key: null,

  forget() {
    this.key = null;
  },

  async refresh(submission) {
    const key = [submission.horsies_task_id, submission.task?.state].join();
    if (key === this.key) return;
    this.key = key;
    try {
      const found = await getJson(`${api}/values?${query({ life: submission.life, round: submission.round })}`);
      if (this.key === key) update(place.values, found, () => this.panels(found, submission));
    } catch (error) {
      this.key = null;
      const told = error.status === 403 ? "Your role in Airflow does not allow you to see arguments and results." : error.message;
      place.values.replaceChildren(h("p", { class: "quiet" }, told));
    }
  },

  panels(found, submission) {
    const isOver = submission.task && !LIVE.has(submission.task.state);
    return [
      panel("Input", found.kwargs, "Nobody keeps them any more: horsies drops the arguments of a finished task, unless the operator has retain_input=True, and Airflow keeps those that the newest try rendered.", "input", found.kwargs_note),
      panel("Result", found.result, isOver ? "It has no result." : "Not yet.", "result"),
      found.error_data ? panel("Error data", found.error_data, "", "error-data") : null,
      found.traceback ? panel("Traceback", found.traceback, "", "traceback") : null,
    ];
  },
};

function panel(title, text, otherwise, id, note) {
  return h(
    "section",
    { class: "card" },
    h("div", { class: "toolbar" }, h("h2", {}, title), text ? h("span", { class: "actions" }, copyButton(text)) : null),
    text ? h("pre", { id, tabindex: "0" }, h("bdi", {}, text)) : h("p", { class: "quiet" }, otherwise),
    note ? h("p", { class: "quiet" }, note) : null,
  );
}

// -- batch ------------------------------------------------------------------------------------------------------------

const items = { sort: "position", descending: false, state: "", offset: 0, total: 0, rows: h("tbody"), told: h("span", { class: "quiet", role: "status" }) };
const COLUMNS = [["position", "Item"], ["state", "State"], ["attempts", "Attempts"], ["duration", "Duration"], ["hostname", "Host"], ["error_code", "Error"]];

function batch() {
  const head = COLUMNS.map(([column, name]) =>
    h(
      "th",
      { scope: "col", "aria-sort": items.sort === column ? (items.descending ? "descending" : "ascending") : "none" },
      h("button", { type: "button", class: "sort", "data-focus": `sort-${column}`, onclick: () => sortItems(column) }, name, items.sort === column ? (items.descending ? " ↓" : " ↑") : ""),
    ),
  );
  const filter = h(
    "select",
    { "aria-label": "State", id: "item-state", "data-focus": "item-state", onchange: (event) => { items.state = event.target.value; items.offset = 0; readItems(); } },
    h("option", { value: "" }, "All states"),
    Object.keys(data.counts).map((state) => h("option", { value: state, selected: items.state === state }, state.toLowerCase())),
  );
  readItems();
  return h(
    "div",
    { class: "card" },
    h("div", { class: "toolbar" }, h("h2", {}, "Items"), h("span", { class: "actions" }, filter)),
    countBar(data.counts, data.positions),
    data.past_retention ? h("p", { class: "quiet" }, `${plural(data.past_retention, "item")} past retention`) : null,
    h("div", { class: "scroll" }, h("table", { id: "items" }, h("thead", {}, h("tr", {}, head)), items.rows)),
    h(
      "p",
      { class: "pager" },
      h("button", { type: "button", class: "small", "data-focus": "before", onclick: () => turn(-1) }, "← Before"),
      items.told,
      h("button", { type: "button", class: "small", "data-focus": "next", onclick: () => turn(1) }, "Next →"),
    ),
  );
}

function sortItems(column) {
  items.descending = items.sort === column && !items.descending;
  items.sort = column;
  items.offset = 0;
  place.batch.shownKey = null;
  show();
}

function turn(pages) {
  const offset = items.offset + pages * ITEMS_PER_PAGE;
  if (offset < 0 || offset >= items.total) return;
  items.offset = offset;
  readItems();
}

async function readItems() {
  const asked = { sort: items.sort, descending: items.descending, limit: ITEMS_PER_PAGE, offset: items.offset };
  if (items.state) asked.state = items.state;
  try {
    const found = await getJson(`${api}/items?${new URLSearchParams(asked)}`);
    items.total = found.total;
    update(items.rows, found.items, () => found.items.map(itemRow));
    const last = Math.min(items.offset + ITEMS_PER_PAGE, found.total);
    items.told.textContent = found.total ? ` ${number(items.offset + 1)} to ${number(last)} of ${number(found.total)} ` : " none ";
  } catch (error) {
    items.told.textContent = ` ${error.message} `;
  }
}

function itemRow(item) {
  const open = () => {
    shown.opened = true;
    choose({ position: item.position, life: null, round: null });
  };
  return h(
    "tr",
    {},
    h("td", {}, h("button", { type: "button", class: "link", "data-focus": `item-${item.position}`, onclick: open }, item.position)),
    h("td", {}, item.state ? badge(item.state) : "past retention"),
    h("td", {}, item.attempts ?? "–"),
    h("td", {}, item.duration !== null ? duration(item.duration) : item.started_at && item.state === "RUNNING"
      ? ticking((now) => duration(Math.max(now - Date.parse(item.started_at), 0) / 1000)) : "–"),
    h("td", {}, item.hostname ?? "–"),
    h("td", {}, item.error_code ? [h("strong", {}, item.error_code), h("div", { class: "message" }, item.error_message ?? "")] : "–"),
  );
}

// -- begin ------------------------------------------------------------------------------------------------------------

log.start();
look = poll(read, {
  failed(error) {
    if (data) place.notice.replaceChildren(staleNotice(error));
    else page.replaceChildren(problemBox(error));
  },
});
