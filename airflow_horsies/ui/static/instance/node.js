// One node of a workflow: what it waits for, how it ended, and what its task did.

/** @import { NodeDetail, WorkflowNode } from "../payloads.d.ts" */
/** @import { Tree } from "./graph/scene.js" */

import { since } from "../common/clock.js";
import { h } from "../common/dom.js";
import { errorCode } from "../common/links.js";
import { badge } from "../common/text.js";
import { duration, time } from "../common/times.js";
import { countStates, describeCounts, describeJoin, seconds, waitOf } from "./graph/words.js";
import { fact } from "./facts.js";

const NONE_YET = "The node has no task yet: it waits for other nodes.";
const SKIPPED = "The node was skipped, and never had a task.";
const ENDED_WITHOUT = "The node never had a task.";

/**
 * @param {Tree} tree
 * @param {WorkflowNode} node
 * @param {{ select: (node: WorkflowNode) => void, close: () => void }} actions
 */
export function nodeCard(tree, node, { select, close }) {
  const before = tree.nodesOf(node.workflow_id).filter(({ name }) => node.after.includes(name));
  return [
    h(
      "div",
      { class: "toolbar" },
      h("h2", { id: "node-name", tabindex: "-1" }, tree.path(node)),
      badge(node.state, { id: "node-status" }),
      node.is_output ? h("span", { class: "quiet" }, "output of its workflow") : null,
      h(
        "span",
        { class: "actions" },
        h(
          "button",
          { type: "button", class: "small", id: "node-close", "data-focus": "node-close", onclick: close },
          "Close",
        ),
      ),
    ),
    failure(node),
    h(
      "dl",
      { class: "facts" },
      fact(node.is_workflow ? "Workflow" : "Task", h("code", {}, node.task_name)),
      node.is_workflow ? fact("Tasks inside", describeCounts(countStates(tree.tasksIn(node))) || "none yet") : null,
      node.is_workflow ? null : fact("Queue", node.queue),
      fact("Waits for", before.length ? links(before, select) : "no other node"),
      before.length ? fact("Starts after", describeJoin(node)) : null,
      node.state === "PARKED" ? fact("Parked", parked(node)) : null,
      fact("Started", time(node.started_at)),
      fact(node.finished_at || !node.started_at ? "Duration" : "Since", took(node)),
    ),
  ];
}

/**
 * What to say of a node without a task, in the place of its attempts.
 *
 * @param {WorkflowNode} node
 * @param {NodeDetail | null} detail
 */
export function whyNoTask(node, detail) {
  if (node.is_workflow) return null;
  if (detail?.horsies_task_id ?? node.has_task) return null;
  if (node.state === "SKIPPED") return SKIPPED;
  return node.finished_at ? ENDED_WITHOUT : NONE_YET;
}

/** @param {WorkflowNode} node */
function failure(node) {
  if (!node.error_code && !node.error_message) return null;
  return h(
    "div",
    { class: "callout failed", id: "node-error" },
    errorCode(node.error_code ?? node.state, node.error_url),
    h("p", {}, node.error_message ?? ""),
  );
}

/** @param {WorkflowNode} node */
function parked(node) {
  const until = node.due_at ? [" until ", time(node.due_at)] : null;
  return [waitOf(node), until, h("div", { class: "quiet" }, "It holds no worker meanwhile.")];
}

/** @param {WorkflowNode} node */
function took(node) {
  if (!node.started_at) return "–";
  return node.finished_at ? duration(seconds(node)) : since(node.started_at);
}

/**
 * @param {WorkflowNode[]} nodes
 * @param {(node: WorkflowNode) => void} select
 */
function links(nodes, select) {
  const shown = nodes.slice(0, 20);
  const rest = nodes.length - shown.length;
  return [
    shown.map((node) =>
      h(
        "button",
        { type: "button", class: "link", "data-focus": `before-${node.index}`, onclick: () => select(node) },
        node.name,
      )
    ),
    rest ? ` and ${rest} more` : null,
  ];
}
