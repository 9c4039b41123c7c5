// What a person does with a workflow: pause, resume, retry failed nodes, send a signal, cancel.

/** @import { Cancelled, SignalSent, WorkflowAction, WorkflowChange, WorkflowNode } from "../payloads.d.ts" */
/** @import { Tree } from "./graph/scene.js" */

import { confirmAction } from "../common/dialog.js";
import { h } from "../common/dom.js";
import { postJson } from "../common/requests.js";
import { plural } from "../common/text.js";
import { describeOutcomes } from "./actions.js";
import { api } from "./address.js";
import { waitOf } from "./graph/words.js";

const AT_NEXT_CHECK =
  "No free worker process can do it at once: the workers go on at their next check, by default within 30 seconds.";

/**
 * Only what makes sense now, and only for who may.
 *
 * @param {Tree} tree
 * @param {WorkflowNode | null} selected
 * @param {() => void} look reads the page again.
 */
export function actionButtons(tree, selected, look) {
  /** @type {Record<WorkflowAction, [string, () => unknown]>} */
  const all = {
    pause: ["Pause", () => askPause(tree, look)],
    resume: ["Resume", () => askResume(tree, look)],
    retry: ["Retry failed nodes", () => askRetry(tree, look)],
    signal: ["Send signal", () => askSignal(tree, selected, look)],
    cancel: ["Cancel", () => askCancel(tree, look)],
  };
  return tree.data.actions.map((action) => {
    const [text, onclick] = all[action];
    const id = `workflow-${action}`;
    return h(
      "button",
      { type: "button", id, class: action === "cancel" ? "small danger" : "small", "data-focus": id, onclick },
      text,
    );
  });
}

/**
 * The page is read again in any case: after a refusal, it shows why.
 *
 * @template Answer
 * @param {WorkflowAction} action
 * @param {unknown} body
 * @param {() => void} look
 * @returns {Promise<Answer>}
 */
async function send(action, body, look) {
  try {
    return await postJson(`${api}/workflow/${action}`, body);
  } finally {
    look();
  }
}

/**
 * The workflow and its state as the page showed them: the server refuses what was meant for others.
 *
 * @param {Tree} tree
 */
function shownIn({ data: { horsies_workflow_id, state } }) {
  return { horsies_workflow_id, state };
}

/**
 * @param {Tree} tree
 * @param {() => void} look
 */
function askPause(tree, look) {
  const body = shownIn(tree);
  confirmAction({
    title: "Pause the workflow?",
    content: h("p", {}, "Running nodes end as usual, and no other node starts until the workflow is resumed."),
    action: "Pause it",
    act: async () => {
      /** @type {WorkflowChange} */
      const { workflows } = await send("pause", body, look);
      return workflows ? "Paused." : "Nothing runs that could be paused.";
    },
  });
}

/**
 * @param {Tree} tree
 * @param {() => void} look
 */
function askResume(tree, look) {
  const body = shownIn(tree);
  const isFailed = tree.data.actions.includes("retry");
  const rest = isFailed ? " Failed nodes stay failed: to run them again, use Retry failed nodes." : "";
  confirmAction({
    title: "Resume the workflow?",
    content: h("p", {}, `The nodes that are due start.${rest}`),
    action: "Resume it",
    act: async () => {
      /** @type {WorkflowChange} */
      const { workflows, at_once } = await send("resume", body, look);
      if (!workflows) return "Nothing is paused.";
      return at_once ? "A worker was asked to resume it." : `Resumed. ${AT_NEXT_CHECK}`;
    },
  });
}

/**
 * @param {Tree} tree
 * @param {() => void} look
 */
function askRetry(tree, look) {
  const body = shownIn(tree);
  confirmAction({
    title: "Retry the failed nodes?",
    content: h(
      "p",
      {},
      "The failed nodes of what is paused run again, and the workflow is resumed. Completed nodes keep their values.",
    ),
    action: "Retry them",
    act: async () => {
      /** @type {WorkflowChange} */
      const { retried, left, at_once } = await send("retry", body, look);
      const kept = left.length ? ` Workflows inside cannot be tried again: ${left.join(", ")}.` : "";
      if (!retried.length) return `There is no node to retry.${kept}`;
      const names = retried.length > 5 ? plural(retried.length, "node") : retried.join(", ");
      return `Again: ${names}.${kept}${at_once ? "" : ` ${AT_NEXT_CHECK}`}`;
    },
  });
}

/**
 * @param {Tree} tree
 * @param {() => void} look
 */
function askCancel(tree, look) {
  const body = shownIn(tree);
  const explanation = "This cancels the workflow with the workflows inside it, and stops running nodes. " +
    "The Airflow task then fails or is skipped, as on_cancelled of its operator says.";
  confirmAction({
    title: "Cancel the workflow?",
    content: h("p", {}, explanation),
    action: "Cancel it",
    danger: true,
    act: async () => {
      /** @type {Cancelled} */
      const { outcomes } = await send("cancel", body, look);
      return `${describeOutcomes(outcomes) || "Nothing to cancel"}.`;
    },
  });
}

/**
 * @param {Tree} tree
 * @param {WorkflowNode | null} selected
 * @param {() => void} look
 */
function askSignal(tree, selected, look) {
  const targets = signalTargets(tree, selected);
  const target = h("select", { id: "signal-target" }, targets.map(({ text }, at) => h("option", { value: at }, text)));
  const name = h("input", { type: "text", id: "signal-name", maxlength: 200, required: true });
  const payload = h("textarea", { id: "signal-payload", rows: 4, spellcheck: "false" }, "null");
  const suggest = () => (name.value = targets[Number(target.value)].name);
  const waiting = targets.findIndex(({ name }) => name);
  if (selected && targets[1]?.node === selected) target.value = "1";
  suggest();
  if (!name.value && waiting >= 0) name.value = targets[waiting].name;
  target.addEventListener("change", suggest);
  // The same content is stored once, also if it is sent again after a lost answer.
  let sent = { content: "", key: "" };
  confirmAction({
    title: "Send a signal?",
    content: [
      h("label", { class: "field" }, "To", target),
      h("label", { class: "field" }, "Name", name),
      h("label", { class: "field" }, "Payload, as JSON", payload),
      h("p", { class: "quiet" }, "A signal is received once: by the first task that waits for this name."),
    ],
    action: "Send it",
    act: async () => {
      const { node } = targets[Number(target.value)];
      const place = node && { workflow_id: node.workflow_id, index: node.index };
      const body = { ...shownIn(tree), node: place, name: name.value.trim(), payload: parse(payload.value) };
      const content = JSON.stringify(body);
      if (content !== sent.content) sent = { content, key: newKey() };
      /** @type {SignalSent} */
      const { is_new, resumed } = await send("signal", { ...body, key: sent.key }, look);
      if (!is_new) return "It had been stored before.";
      return resumed ? `Sent: ${plural(resumed, "waiting task")} ${resumed === 1 ? "goes" : "go"} on.` : "Sent.";
    },
  });
}

/**
 * @param {Tree} tree
 * @param {WorkflowNode | null} selected
 */
function signalTargets(tree, selected) {
  const parked = tree.below().filter((node) => node.state === "PARKED" && isForPeople(node));
  const isLive = selected?.has_task && ["ENQUEUED", "RUNNING"].includes(selected.state) ? selected : null;
  const nodes = [...(isLive ? [isLive] : []), ...parked];
  // Of the waiting nodes, the selected one comes first.
  nodes.sort((one, other) => Number(other === selected) - Number(one === selected));
  /** @type {{ text: string, node: WorkflowNode | null, name: string }[]} */
  const targets = [{ text: "The workflow: any of its tasks", node: null, name: parked[0]?.waits_for ?? "" }];
  for (const node of nodes) {
    const why = node.waits_for ? `, ${waitOf(node)}` : "";
    targets.push({ text: `${tree.path(node)}${why}`, node, name: node.waits_for ?? "" });
  }
  return targets;
}

/** @param {WorkflowNode} node */
function isForPeople({ waits_for }) {
  return waits_for !== null && !waits_for.startsWith("@");
}

/** @param {string} text */
function parse(text) {
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The payload is not JSON: ${error instanceof Error ? error.message : error}`);
  }
}

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
