// Signals, parked tasks, callbacks and pauses: bars for the time axis, and a table of what happened.

/** @import { Callback, Instance, Moments, Pause, Signal, Wait } from "../payloads.d.ts" */
/** @import { Child } from "../common/types.d.ts" */
/** @import { Bar, Row } from "../common/timeline.js" */

import { h, table } from "../common/dom.js";
import { time } from "../common/times.js";

/** @typedef {{ at: string, what: Child, by: string | null, value: string | null }} Line */

const COLUMNS = ["When", "What", "By", "Value"];
/** @type {Record<Callback["state"], string>} */
const CALLBACK_CLASS = {
  OPEN: "running",
  COMPLETED: "completed",
  FAILED: "failed",
  EXPIRED: "expired",
  VOID: "cancelled",
};
/** @type {Record<Callback["state"], string>} */
const CALLBACK_END = {
  OPEN: "open",
  COMPLETED: "answered",
  FAILED: "answered with a failure",
  EXPIRED: "expired",
  VOID: "void: nobody waits for it any more",
};

/**
 * The rows for what concerns one submission.
 *
 * @param {Moments} moments
 * @param {{ life: number, round: number, hasOwnSegments: boolean }} submission of which the bars show parked attempts.
 * @returns {Row[]}
 */
export function rowsOf({ signals, waits, pauses }, { life, round, hasOwnSegments }) {
  /** @param {{ life: number, round: number }} moment */
  const isOf = (moment) => moment.life === life && moment.round === round;
  const rows = [
    { label: "signals", bars: signals.filter(isOf).map(signalBar) },
    { label: "parked nodes", bars: hasOwnSegments ? [] : waits.filter(isOf).map(waitBar) },
    { label: "paused", bars: pauses.filter(isOf).map(pauseBar) },
  ];
  return rows.filter((row) => row.bars.length);
}

/**
 * @param {Moments} moments
 * @returns {Row[]}
 */
export function callbackRows({ callbacks }) {
  return callbacks.length ? [{ label: "callback", bars: callbacks.flatMap(callbackBars) }] : [];
}

/**
 * What a parked segment waits for.
 *
 * @param {Moments} moments
 * @param {string} taskId
 * @param {string} start of the segment, which follows the attempt.
 */
export function waitAt({ waits }, taskId, start) {
  const at = Date.parse(start);
  const last = waits.findLast((wait) =>
    wait.horsies_task_id === taskId && Date.parse(wait.start) <= at && (!wait.end || Date.parse(wait.end) >= at)
  );
  return last ? waitText(last) : null;
}

/** @param {Wait} wait */
function waitText({ name, times }) {
  const again = times > 1 ? `, parked ${times} times` : "";
  return name === null ? `waits for a time${again}` : `waits for the signal ${name}${again}`;
}

/**
 * @param {Signal} signal
 * @returns {Bar}
 */
function signalBar({ name, sent_at, sent_by, received_at, received_attempt }) {
  const who = sent_by ? `, sent by ${sent_by}` : "";
  const how = received_at ? `received by attempt ${received_attempt}` : "not received yet";
  return {
    start: sent_at,
    end: received_at ?? sent_at,
    className: received_at ? "signal" : "signal unread",
    text: `signal ${name}${who}, ${how}`,
  };
}

/**
 * @param {Wait} wait
 * @returns {Bar}
 */
function waitBar(wait) {
  return { start: wait.start, end: wait.end, className: "parked", text: waitText(wait) };
}

/**
 * @param {Pause} pause
 * @returns {Bar}
 */
function pauseBar({ name, start, is_inside }) {
  return { start, end: null, className: "paused", text: is_inside ? `${name}, inside, is paused` : "paused" };
}

/**
 * @param {Callback} callback
 * @returns {Bar[]}
 */
function callbackBars({ state, opened_at, closed_at, heartbeats, heartbeat_at }) {
  const bar = { start: opened_at, end: closed_at, className: CALLBACK_CLASS[state], text: CALLBACK_END[state] };
  if (!heartbeat_at) return [bar];
  const beat = { start: heartbeat_at, end: heartbeat_at, className: "signal", text: `heartbeat ${heartbeats}` };
  return [bar, beat];
}

/** @param {Instance} data */
export function momentList({ moments }) {
  const lines = [
    ...moments.signals.flatMap(signalLines),
    ...moments.waits.flatMap(waitLines),
    ...moments.pauses.map(pauseLine),
    ...moments.callbacks.flatMap(callbackLines),
  ];
  if (!lines.length) return [];
  lines.sort((one, other) => Date.parse(one.at) - Date.parse(other.at));
  return [
    h("h2", { class: "next" }, "Signals, waits and callbacks"),
    table(
      COLUMNS,
      lines.map(({ at, what, by, value }) =>
        h(
          "tr",
          {},
          h("td", {}, time(at)),
          h("td", {}, what),
          h("td", {}, by ?? "–"),
          h("td", {}, value === null ? "–" : h("code", { class: "value" }, value)),
        )
      ),
      { id: "moments" },
    ),
  ];
}

/**
 * @param {Signal} signal
 * @returns {Line[]}
 */
function signalLines({ name, sent_at, sent_by, received_at, received_attempt, value }) {
  const sent = { at: sent_at, what: ["Signal ", h("code", {}, name), " sent"], by: sent_by, value };
  if (!received_at) return [{ ...sent, what: [...sent.what, ", not received yet"] }];
  const by = `attempt ${received_attempt}`;
  return [sent, { at: received_at, what: ["Signal ", h("code", {}, name), " received"], by, value: null }];
}

/**
 * @param {Wait} wait
 * @returns {Line[]}
 */
function waitLines(wait) {
  const until = wait.due_at ? [", until ", time(wait.due_at)] : [];
  return [{
    at: wait.start,
    what: [`Parked: ${waitText(wait)}`, ...until, wait.end ? "" : ", waits now"],
    by: `attempt ${wait.attempt}`,
    value: null,
  }];
}

/**
 * @param {Pause} pause
 * @returns {Line}
 */
function pauseLine({ name, start, is_inside }) {
  const what = is_inside ? ["Workflow ", h("code", {}, name), " inside is paused"] : "Workflow is paused";
  return { at: start, what, by: null, value: null };
}

/**
 * @param {Callback} callback
 * @returns {Line[]}
 */
function callbackLines({ state, opened_at, expires_at, heartbeats, heartbeat_at, closed_at, answered_from, value }) {
  const until = state === "OPEN" ? [", expires ", time(expires_at)] : [];
  /** @type {Line[]} */
  const lines = [{ at: opened_at, what: ["Callback opened", ...until], by: null, value: null }];
  if (heartbeat_at) {
    const what = heartbeats === 1 ? "Callback: heartbeat" : `Callback: last of ${heartbeats} heartbeats`;
    lines.push({ at: heartbeat_at, what, by: null, value: null });
  }
  if (closed_at) lines.push({ at: closed_at, what: `Callback ${CALLBACK_END[state]}`, by: answered_from, value });
  return lines;
}
