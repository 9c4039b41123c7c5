// What is written of a node.

/** @import { WorkflowNode } from "../../payloads.d.ts" */
/** @import { Item } from "./scene.js" */

import { serverNow } from "../../common/clock.js";
import { duration } from "../../common/times.js";
import { number, plural } from "../../common/text.js";

// In the order in which they are counted; the first one found is the colour of all.
const ORDER = [
  "FAILED",
  "EXPIRED",
  "PAUSED",
  "CANCELLED",
  "RUNNING",
  "PARKED",
  "ENQUEUED",
  "READY",
  "PENDING",
  "SKIPPED",
  "COMPLETED",
];
const TIMER = "@timer";

/** @param {string} state */
export function stateClass(state) {
  return state.toLowerCase().replace(/[^a-z]+/g, "-");
}

/**
 * @param {WorkflowNode[]} nodes
 * @returns {[string, number][]}
 */
export function countStates(nodes) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { state } of nodes) counts.set(state, (counts.get(state) ?? 0) + 1);
  return [...counts].sort(([one], [other]) => ORDER.indexOf(one) - ORDER.indexOf(other));
}

/** @param {[string, number][]} counts */
export function describeCounts(counts) {
  return counts.map(([state, count]) => `${number(count)} ${state.toLowerCase()}`).join(", ");
}

/**
 * The state of what an item stands for.
 *
 * @param {Item} item
 */
export function stateOf({ kind, node, members }) {
  return kind === "group" ? countStates(members)[0]?.[0] ?? "PENDING" : node.state;
}

/** @param {WorkflowNode} node */
export function seconds({ started_at, finished_at, state }) {
  if (!started_at || state === "SKIPPED") return null;
  const end = finished_at ? Date.parse(finished_at) : serverNow();
  return Math.max(0, (end - Date.parse(started_at)) / 1000);
}

/**
 * What is written below the name.
 *
 * @param {WorkflowNode} node
 */
export function describeNode(node) {
  const pieces = [node.state.toLowerCase()];
  const took = seconds(node);
  if (node.state === "PARKED" && node.waits_for) pieces[0] = waitOf(node);
  else if (node.error_code) pieces[0] = node.error_code;
  if (took !== null) pieces.push(duration(took));
  if ((node.attempts ?? 0) > 1) pieces.push(plural(node.attempts ?? 0, "attempt"));
  return pieces.join(" · ");
}

/** @param {WorkflowNode} node */
export function waitOf({ waits_for }) {
  return waits_for === TIMER ? "sleeps" : `waits for ${waits_for}`;
}

/** @param {WorkflowNode} node */
export function describeJoin({ after, join, min_success, allow_failed }) {
  if (!after.length) return "none: it starts at once";
  const rule = join === "quorum" ? `quorum: ${min_success ?? "all"} of ${after.length} completed` : `${join} of them`;
  return allow_failed ? `${rule}, failures allowed` : rule;
}

/**
 * All that a screen reader says of an item.
 *
 * @param {Item} item
 */
export function labelOf(item) {
  const { kind, name, node, members, inner, canFold } = item;
  const fold = canFold ? (inner ? ", unfolded" : ", folded") : "";
  if (kind === "group") return `Group ${name}: ${describeCounts(countStates(members))}${fold}`;
  const after = node.after.length ? `, after ${node.after.slice(0, 5).join(", ")}` : "";
  const more = node.after.length > 5 ? ` and ${node.after.length - 5} more` : "";
  const inside = members.length ? `: ${describeCounts(countStates(members))}` : "";
  const failure = node.error_code ? `, ${node.error_code}` : "";
  const what = kind === "workflow" ? "Workflow" : "Task";
  return `${what} ${name}, ${node.state.toLowerCase()}${failure}${inside}${after}${more}${fold}`;
}
