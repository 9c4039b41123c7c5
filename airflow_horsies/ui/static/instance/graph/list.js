// The nodes of a workflow as a list, to filter and to search.

/** @import { WorkflowNode } from "../../payloads.d.ts" */
/** @import { Tree } from "./scene.js" */

import { since } from "../../common/clock.js";
import { h, update } from "../../common/dom.js";
import { badge, number, plural } from "../../common/text.js";
import { duration } from "../../common/times.js";
import { keyOf } from "./scene.js";
import { countStates, seconds } from "./words.js";

const MOST = 500;

export class NodeList {
  #search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search nodes", id: "node-search" });
  #state = h("select", { "aria-label": "State of nodes", id: "node-state" });
  #rows = h("ul", { class: "nodes", id: "nodes" });
  #status = h("p", { class: "quiet", role: "status" });
  #select;
  /** @type {Tree | null} */
  #tree = null;
  /** @type {string | null} */
  #selected = null;

  /** @param {(node: WorkflowNode) => void} select */
  constructor(select) {
    this.#select = select;
    this.#search.addEventListener("input", () => this.#refresh());
    this.#state.addEventListener("change", () => this.#refresh());
    const head = h("div", { class: "toolbar" }, this.#search, this.#state);
    this.element = h("div", { class: "node-list" }, head, this.#status, this.#rows);
  }

  /**
   * @param {Tree} tree
   * @param {string | null} selected
   */
  show(tree, selected) {
    this.#tree = tree;
    this.#selected = selected;
    const before = this.#state.value;
    const counts = countStates(tree.below());
    update(this.#state, counts, () => [
      h("option", { value: "" }, "All states"),
      ...counts.map(([state, count]) =>
        h("option", { value: state, selected: state === before }, `${state.toLowerCase()} (${number(count)})`)
      ),
    ]);
    this.#refresh();
  }

  #refresh() {
    const tree = this.#tree;
    if (!tree) return;
    const wanted = this.#search.value.toLowerCase();
    const rows = tree.below().map((node) => ({ node, path: tree.path(node) })).filter(({ node, path }) =>
      (!this.#state.value || node.state === this.#state.value) &&
      (!wanted || `${path} ${node.task_name} ${node.error_code ?? ""}`.toLowerCase().includes(wanted))
    );
    const shown = rows.slice(0, MOST);
    const key = shown.map(({ node, path }) => [keyOf(node), path, node.state, node.started_at, node.finished_at]);
    update(this.#rows, [key, this.#selected], () => shown.map(({ node, path }) => this.#row(node, path)));
    this.#status.textContent = rows.length > MOST
      ? `The first ${number(MOST)} of ${plural(rows.length, "node")}. Search for others.`
      : plural(rows.length, "node");
  }

  /**
   * @param {WorkflowNode} node
   * @param {string} path
   */
  #row(node, path) {
    const key = keyOf(node);
    const isRunning = node.started_at && !node.finished_at && ["RUNNING", "ENQUEUED", "PARKED"].includes(node.state);
    return h(
      "li",
      {},
      h(
        "button",
        {
          type: "button",
          class: "link",
          "data-focus": `node-${key}`,
          "aria-current": key === this.#selected ? "true" : null,
          onclick: () => this.#select(node),
        },
        path,
      ),
      h("span", { class: "quiet" }, isRunning ? since(node.started_at ?? "") : took(node)),
      badge(node.state),
    );
  }
}

/** @param {WorkflowNode} node */
function took(node) {
  return node.finished_at && seconds(node) !== null ? duration(seconds(node)) : "";
}
