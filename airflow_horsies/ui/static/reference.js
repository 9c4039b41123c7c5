// The reference: the tasks and workflows that workers know, with a search.

/** @import { Reference } from "./payloads.d.ts" */

import "./common/theme.js";
import { emptyBox, problemBox, staleNotice } from "./common/boxes.js";
import { setServerTime } from "./common/clock.js";
import { h, page, update } from "./common/dom.js";
import { poll } from "./common/polling.js";
import { getJson } from "./common/requests.js";
import { horsies } from "./common/site.js";
import { number, plural } from "./common/text.js";
import { entryCard } from "./reference/entry.js";

const SECONDS = 10;
const TYPING_MS = 250;
const AT_ONCE = 25;
const KINDS = [["", "All"], ["task", "Tasks"], ["workflow", "Workflows"]];
const NOTHING = "No worker has recorded what it knows in the last seven days. Start one with: " +
  "python -m airflow_horsies.worker my_tasks:app. It records its tasks and workflows when it starts. Workers of plain " +
  "horsies record nothing.";

const shown = { search: "", kind: "", offset: 0 };
const search = h("input", {
  type: "search",
  id: "search",
  placeholder: "Name, parameter, queue or words of the description",
  "aria-label": "Search tasks and workflows",
  maxlength: "200",
  oninput: onType,
});
const kinds = KINDS.map(([kind, name]) =>
  h("button", { type: "button", class: "small", "aria-pressed": String(kind === ""), onclick: () => pick(kind) }, name)
);
const place = {
  notice: h("div"),
  count: h("p", { class: "quiet", role: "status", id: "count" }),
  entries: h("div", { id: "entries" }),
  pager: h("nav", { class: "actions", "aria-label": "Pages" }),
};
const main = h(
  "div",
  {},
  place.notice,
  h(
    "header",
    {},
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Tasks and workflows"),
      h("span", { class: "actions" }, h("a", { class: "button small", href: `${horsies}/` }, "Queues and workers")),
    ),
  ),
  h("div", { class: "toolbar reference" }, search, h("span", { class: "actions" }, kinds)),
  place.count,
  place.entries,
  place.pager,
);
let typing = 0;
let generation = 0;

async function read() {
  const asked = new URLSearchParams({ limit: String(AT_ONCE), offset: String(shown.offset) });
  if (shown.search) asked.set("search", shown.search);
  if (shown.kind) asked.set("kind", shown.kind);
  const before = generation;
  /** @type {Reference} */
  const data = await getJson(`${horsies}/api/known?${asked}`);
  if (before !== generation) return 0;
  setServerTime(data.now);
  if (!main.isConnected) page.replaceChildren(main);
  place.notice.replaceChildren();
  show(data);
  return SECONDS;
}

/** @param {Reference} data */
function show(data) {
  const { entries, total, recorded, offset } = data;
  if (!entries.length && offset > 0) return turn(Math.max(0, offset - AT_ONCE));
  const last = offset + entries.length;
  const range = total > entries.length ? `${number(offset + 1)} to ${number(last)} of ` : "";
  place.count.textContent = recorded ? `${range}${plural(total, "entry", "entries")}` : "";
  update(place.entries, [entries, recorded, shown.search, shown.kind], () => content(data));
  update(place.pager, [offset, last, total], () => pages(offset, last, total));
}

/** @param {Reference} data */
function content({ entries, recorded }) {
  if (!recorded) return emptyBox("No tasks yet", NOTHING);
  if (entries.length) return entries.map(entryCard);
  return [
    emptyBox("Nothing found", "No task and no workflow that workers know matches the search."),
    h("p", {}, h("button", { type: "button", onclick: clear }, "Show all")),
  ];
}

/**
 * @param {number} offset
 * @param {number} last
 * @param {number} total
 */
function pages(offset, last, total) {
  if (offset === 0 && last >= total) return [];
  const back = () => turn(Math.max(0, offset - AT_ONCE));
  return [
    h("button", { type: "button", class: "small", disabled: offset === 0, onclick: back }, "Previous"),
    h("button", { type: "button", class: "small", disabled: last >= total, onclick: () => turn(last) }, "Next"),
  ];
}

function onType() {
  clearTimeout(typing);
  typing = setTimeout(() => change({ search: search.value.trim(), offset: 0 }), TYPING_MS);
}

/** @param {string} kind */
function pick(kind) {
  KINDS.forEach(([name], index) => kinds[index].setAttribute("aria-pressed", String(name === kind)));
  change({ kind, offset: 0 });
}

function clear() {
  search.value = "";
  shown.search = "";
  pick("");
  search.focus();
}

/** @param {number} offset */
function turn(offset) {
  change({ offset });
  window.scrollTo({ top: 0 });
}

/** @param {Partial<typeof shown>} changed */
function change(changed) {
  Object.assign(shown, changed);
  generation += 1;
  look();
}

const look = poll(read, (problem) => {
  if (main.isConnected) place.notice.replaceChildren(staleNotice(problem));
  else page.replaceChildren(problemBox(problem));
});
