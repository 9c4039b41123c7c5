// What to draw of a workflow: its nodes, with workflows inside and crowds of equal nodes folded or open.

/** @import { Workflow, WorkflowNode, WorkflowPart } from "../../payloads.d.ts" */

/**
 * @typedef {"task" | "workflow" | "group" | "tile"} Kind a tile is a node in an open group.
 */

/**
 * @typedef {object} Item something to draw.
 * @property {string} key
 * @property {Kind} kind
 * @property {string} name
 * @property {WorkflowNode} node of a group, its first node.
 * @property {WorkflowNode[]} members the tasks behind it: those of a workflow, or of a group.
 * @property {Scene | null} inner what is drawn inside; null unless it is open.
 * @property {boolean} canFold
 */

/**
 * @typedef {object} Scene
 * @property {Item[]} items
 * @property {[string, string][]} edges from and to, by key.
 * @property {boolean} isGrid its items wait for nothing of each other.
 */

// As many nodes with the same neighbours are drawn as one.
const CROWD = 12;

export class Tree {
  /** @type {Map<string, WorkflowPart>} */
  #parts = new Map();
  /** @type {Map<string, WorkflowNode[]>} */
  #nodes = new Map();

  /** @param {Workflow} data */
  constructor(data) {
    this.data = data;
    for (const part of data.parts) this.#parts.set(part.id, part);
    for (const node of data.nodes) listIn(this.#nodes, node.workflow_id).push(node);
  }

  /** The workflow to draw. What only starts another is left out, once that one exists. */
  get root() {
    const [outer] = this.data.parts;
    const inner = outer.is_wrapper ? this.data.parts.find((part) => part.parent === outer.id) : null;
    return inner ?? outer;
  }

  /** @param {string} id of a workflow. */
  nodesOf(id) {
    return this.#nodes.get(id) ?? [];
  }

  /** @param {WorkflowNode} node */
  path(node) {
    const names = [node.name];
    let part = this.#parts.get(node.workflow_id);
    while (part?.parent && part.id !== this.root.id) {
      const { parent, parent_index } = part;
      names.unshift(this.nodesOf(parent).find(({ index }) => index === parent_index)?.name ?? part.name);
      part = this.#parts.get(parent);
    }
    return names.join(" / ");
  }

  /**
   * All nodes below a workflow, each workflow before its nodes.
   *
   * @param {string} id
   * @returns {WorkflowNode[]}
   */
  below(id = this.root.id) {
    return this.nodesOf(id).flatMap((node) => [node, ...(node.inner ? this.below(node.inner) : [])]);
  }

  /** @param {WorkflowNode} node */
  tasksIn(node) {
    return node.inner ? this.below(node.inner).filter((each) => !each.is_workflow) : [];
  }

  /** The failed node to look at first: the one that failed first, and no workflow whose node has failed. */
  get firstFailure() {
    const failed = this.data.nodes.filter((node) => node.state === "FAILED");
    const inside = new Set(failed.map((node) => node.workflow_id));
    const causes = failed.filter((node) => !(node.inner && inside.has(node.inner)));
    return causes.sort((one, other) => Date.parse(one.finished_at ?? "") - Date.parse(other.finished_at ?? ""))[0];
  }

  /**
   * @param {Set<string>} open the keys of what is not folded.
   * @param {string} id
   * @returns {Scene}
   */
  scene(open, id = this.root.id) {
    const nodes = this.nodesOf(id);
    const crowds = findCrowds(nodes);
    /** @type {Map<string, string>} */
    const keyOfName = new Map();
    /** @type {Map<string, Item>} */
    const items = new Map();
    for (const node of nodes) {
      const crowd = crowds.get(node.name);
      const key = crowd ? groupKey(crowd[0]) : keyOf(node);
      keyOfName.set(node.name, key);
      if (!items.has(key)) items.set(key, crowd ? groupItem(key, crowd, open) : this.#item(key, node, open));
    }
    /** @type {Map<string, [string, string]>} */
    const edges = new Map();
    for (const { name, after } of nodes) {
      const to = keyOfName.get(name) ?? "";
      for (const each of after) {
        const from = keyOfName.get(each);
        if (from && from !== to) edges.set(`${from} ${to}`, [from, to]);
      }
    }
    return { items: [...items.values()], edges: [...edges.values()], isGrid: false };
  }

  /**
   * @param {string} key
   * @param {WorkflowNode} node
   * @param {Set<string>} open
   * @returns {Item}
   */
  #item(key, node, open) {
    const canFold = node.inner !== null && this.nodesOf(node.inner).length > 0;
    const inner = canFold && open.has(key) ? this.scene(open, node.inner ?? "") : null;
    const kind = node.is_workflow ? "workflow" : "task";
    return { key, kind, name: node.name, node, members: this.tasksIn(node), inner, canFold };
  }

  /**
   * What must be open so that a node is drawn.
   *
   * @param {WorkflowNode} node
   * @returns {string[]}
   */
  around(node) {
    const part = this.#parts.get(node.workflow_id);
    const crowd = findCrowds(this.nodesOf(node.workflow_id)).get(node.name);
    const keys = crowd ? [groupKey(crowd[0])] : [];
    if (!part?.parent || part.id === this.root.id) return keys;
    const outer = this.nodesOf(part.parent).find(({ index }) => index === part.parent_index);
    return outer ? [...this.around(outer), keyOf(outer), ...keys] : keys;
  }
}

/** @param {{ workflow_id: string, index: number }} node */
export function keyOf({ workflow_id, index }) {
  return `${workflow_id}:${index}`;
}

/** @param {WorkflowNode} first */
function groupKey(first) {
  return `${keyOf(first)}:group`;
}

/**
 * The crowds of tasks that wait for the same nodes and that the same nodes wait for, by name.
 *
 * @param {WorkflowNode[]} nodes
 */
function findCrowds(nodes) {
  /** @type {Map<string, string[]>} */
  const before = new Map();
  for (const { name, after } of nodes) for (const each of after) listIn(before, each).push(name);
  /** @type {Map<string, WorkflowNode[]>} */
  const alike = new Map();
  for (const node of nodes) {
    if (node.is_workflow) continue;
    const neighbours = [[...node.after].sort(), listIn(before, node.name).sort(), node.task_name];
    listIn(alike, JSON.stringify(neighbours)).push(node);
  }
  const crowds = [...alike.values()].filter((members) => members.length >= CROWD);
  return new Map(crowds.flatMap((members) => members.map((node) => [node.name, members])));
}

/**
 * @template Value
 * @param {Map<string, Value[]>} lists
 * @param {string} key
 */
function listIn(lists, key) {
  const found = lists.get(key) ?? [];
  if (!found.length) lists.set(key, found);
  return found;
}

/**
 * @param {string} key
 * @param {WorkflowNode[]} members
 * @param {Set<string>} open
 * @returns {Item}
 */
function groupItem(key, members, open) {
  const [node] = members;
  /** @type {Item[]} */
  const tiles = members.map((each) => ({
    key: keyOf(each),
    kind: "tile",
    name: each.name,
    node: each,
    members: [],
    inner: null,
    canFold: false,
  }));
  const inner = open.has(key) ? { items: tiles, edges: /** @type {[string, string][]} */ ([]), isGrid: true } : null;
  return { key, kind: "group", name: `${members.length} × ${node.task_name}`, node, members, inner, canFold: true };
}
