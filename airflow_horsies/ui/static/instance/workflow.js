// The workflow of a task instance: its graph, its nodes and what can be done with it.

/** @import { NodeDetail, Submission, Workflow, WorkflowNode, WorkflowPart } from "../payloads.d.ts" */
/** @import { LogPanel } from "./log.js" */

import { since } from "../common/clock.js";
import { h, update } from "../common/dom.js";
import { errorCode } from "../common/links.js";
import { asProblem, getJson } from "../common/requests.js";
import { badge, number } from "../common/text.js";
import { duration } from "../common/times.js";
import { api, query } from "./address.js";
import { attempts } from "./attempts.js";
import { taskFacts } from "./facts.js";
import { NodeList } from "./graph/list.js";
import { keyOf, Tree } from "./graph/scene.js";
import { Viewer } from "./graph/viewer.js";
import { countStates, stateClass } from "./graph/words.js";
import { nodeCard, whyNoTask } from "./node.js";
import { actionButtons } from "./workflow_actions.js";

const CHOOSE =
  "Select a node to see its attempts and its log. Arrow keys move between nodes, Enter opens or folds one.";

/**
 * @typedef {object} Places
 * @property {Element} workflow
 * @property {Element} node
 * @property {HTMLElement} facts
 * @property {HTMLElement} attempts
 * @property {HTMLElement} log
 */

export class WorkflowPanel {
  /** @type {Tree | null} */
  #tree = null;
  /** @type {string | null} */
  #selected = null;
  /** @type {NodeDetail | null} */
  #detail = null;
  #head = h("div");
  #problem = h("p", { class: "quiet", id: "workflow-problem" });
  #body = h("div", { class: "graph-and-list" });
  #shown = "";
  #places;
  #log;
  #look;
  #viewer = new Viewer((node) => this.#select(node));
  #list = new NodeList((node) => this.#select(node, true));

  /**
   * @param {Places} places
   * @param {LogPanel} log
   * @param {() => void} look reads the page again.
   */
  constructor(places, log, look) {
    this.#places = places;
    this.#log = log;
    this.#look = look;
    const hint = h("p", { class: "quiet" }, CHOOSE);
    this.#body.append(h("div", {}, this.#viewer.element, hint), this.#list.element);
    places.workflow.append(this.#head, this.#problem, this.#body);
  }

  /**
   * Reads the graph, and the selected node with its next log lines; true if there are more lines to read at once.
   *
   * @param {Submission} submission
   */
  async read({ life, round, horsies_task_id }) {
    const chosen = { position: 0, life, round };
    if (this.#shown !== horsies_task_id) this.#close();
    this.#shown = horsies_task_id;
    const generation = this.#log.generation;
    try {
      /** @type {Workflow} */
      const data = await getJson(`${api}/workflow?${query(chosen)}`);
      this.#tree = new Tree(data);
      this.#problem.textContent = data.is_cut
        ? `The workflow has more nodes than a page can show. These are the first ${number(data.limit)}.`
        : "";
    } catch (error) {
      if (asProblem(error).status !== 404) throw error;
      this.#tree = null;
      this.#problem.textContent = asProblem(error).message;
    }
    const node = this.#node();
    if (!node || node.is_workflow) return false;
    const { attempt, number: line } = this.#log.seen;
    const more = { index: node.index, after_attempt: attempt, after_number: line };
    /** @type {NodeDetail} */
    const detail = await getJson(`${api}/workflow/node?workflow=${node.workflow_id}&${query(chosen, more)}`);
    if (generation !== this.#log.generation) return true;
    this.#detail = detail;
    this.#log.add(detail.log.lines);
    return detail.log.more;
  }

  /** @param {Submission} submission */
  show({ life, round }) {
    const tree = this.#tree;
    const node = this.#node();
    this.#problem.hidden = !this.#problem.textContent;
    this.#body.hidden = this.#head.hidden = !tree;
    if (tree) {
      const failure = tree.firstFailure;
      const counts = countStates(tree.below().filter((each) => !each.is_workflow));
      const { data } = tree;
      update(
        this.#head,
        [
          counts,
          data.state,
          data.is_paused,
          data.actions,
          failure,
          node && [keyOf(node), node.waits_for, node.state],
          tree.root,
        ],
        () => this.#heading(tree, counts, failure),
      );
      this.#viewer.show(tree, this.#selected);
      this.#list.show(tree, this.#selected);
    }
    this.#showNode(node, query({ position: 0, life, round }));
  }

  /**
   * @param {WorkflowNode | null} node
   * @param {URLSearchParams} chosen
   */
  #showNode(node, chosen) {
    const { node: place, facts, attempts: attemptsPlace, log } = this.#places;
    const tree = this.#tree;
    const detail = node && this.#detail && keyOf(this.#detail) === keyOf(node) ? this.#detail : null;
    const actions = {
      select: (/** @type {WorkflowNode} */ each) => this.#select(each, true),
      close: () => this.#close(),
    };
    update(
      place,
      node && tree && [node, tree.path(node), tree.tasksIn(node).map(({ state }) => state)],
      () => (node && tree ? nodeCard(tree, node, actions) : null),
    );
    const why = node ? whyNoTask(node, detail) : null;
    facts.hidden = !detail?.horsies_task_id;
    attemptsPlace.hidden = log.hidden = !detail || why !== null;
    if (why) {
      attemptsPlace.hidden = false;
      update(attemptsPlace, why, () => [h("h2", {}, "Attempts"), h("p", { class: "quiet" }, why)]);
    } else if (node && detail) {
      update(facts, [detail.task, detail.progress, detail.horsies_task_id], () => taskFacts(detail));
      update(attemptsPlace, [detail.attempts, detail.task?.state], () => attempts(detail));
      const download = `${api}/workflow/node/log.txt?workflow=${node.workflow_id}&index=${node.index}&${chosen}`;
      this.#log.show(detail, { mayRead: detail.log.may_read, download });
    }
  }

  #node() {
    const selected = this.#selected;
    return this.#tree?.data.nodes.find((node) => keyOf(node) === selected) ?? null;
  }

  /**
   * @param {WorkflowNode} node
   * @param {boolean} reveals
   */
  #select(node, reveals = false) {
    const key = keyOf(node);
    if (key !== this.#selected) {
      this.#selected = key;
      this.#detail = null;
      this.#log.restart();
    }
    if (this.#tree) {
      if (reveals) this.#viewer.reveal(node);
      this.#viewer.show(this.#tree, key);
      this.#list.show(this.#tree, key);
      this.#showNode(node, new URLSearchParams());
    }
    this.#look();
  }

  #close() {
    this.#selected = null;
    this.#detail = null;
    this.#log.restart();
    if (!this.#tree) return;
    this.#viewer.show(this.#tree, null);
    this.#list.show(this.#tree, null);
    this.#showNode(null, new URLSearchParams());
  }

  /**
   * @param {Tree} tree
   * @param {[string, number][]} counts
   * @param {WorkflowNode | undefined} failure
   */
  #heading(tree, counts, failure) {
    const { data, root } = tree;
    const total = counts.reduce((sum, [, count]) => sum + count, 0);
    const label = counts.map(([state, count]) => `${number(count)} ${state.toLowerCase()}`).join(", ");
    return [
      h(
        "div",
        { class: "toolbar" },
        h("h2", {}, "Workflow"),
        badge(data.state, { id: "workflow-state" }),
        data.is_paused && data.state !== "PAUSED" ? badge("PAUSED INSIDE", { id: "paused-inside" }) : null,
        h("span", { class: "quiet" }, ran(root)),
        h("span", { class: "actions" }, this.#viewer.tools, actionButtons(tree, this.#node(), this.#look)),
      ),
      failure ? this.#failureBox(tree, failure) : errorBox(root),
      h(
        "div",
        { class: "count-bar", role: "img", "aria-label": label },
        [...counts].reverse().map(([state, count]) =>
          h("span", { class: `bar ${stateClass(state)}`, style: { width: `${(count / total) * 100}%` } })
        ),
      ),
      h("p", { id: "node-counts" }, counts.map(([state, count]) => [badge(state), ` ${number(count)}  `])),
    ];
  }

  /**
   * @param {Tree} tree
   * @param {WorkflowNode} failure
   */
  #failureBox(tree, failure) {
    const onclick = () => this.#select(failure, true);
    return h(
      "div",
      { class: tree.data.state === "COMPLETED" ? "callout" : "callout failed", id: "error" },
      h("button", { type: "button", class: "link", "data-focus": "first-failure", onclick }, tree.path(failure)),
      " ",
      failure.error_code ? errorCode(failure.error_code, failure.error_url) : null,
      h("p", {}, failure.error_message ?? ""),
    );
  }
}

/**
 * An error that is of no node: the workflow has expired, or could not be built.
 *
 * @param {WorkflowPart} part
 */
function errorBox({ error_code, error_message, error_url }) {
  if (!error_code && !error_message) return null;
  const code = error_code ? errorCode(error_code, error_url) : null;
  return h("div", { class: "callout failed", id: "error" }, code, h("p", {}, error_message ?? ""));
}

/** @param {WorkflowPart} part */
function ran({ started_at, finished_at }) {
  if (!started_at) return "not started yet";
  if (!finished_at) return since(started_at);
  return duration((Date.parse(finished_at) - Date.parse(started_at)) / 1000);
}
