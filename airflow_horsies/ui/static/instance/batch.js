// The items of a batch: counted, sorted, filtered and paged by the server.

/** @import { Instance, Item, Items } from "../payloads.d.ts" */

import { since } from "../common/clock.js";
import { countBar } from "../common/counts.js";
import { forget, h, update } from "../common/dom.js";
import { asProblem, getJson } from "../common/requests.js";
import { badge, number, plural } from "../common/text.js";
import { duration } from "../common/times.js";
import { api } from "./address.js";
import { errorCell } from "./attempts.js";

const ITEMS_PER_PAGE = 50;
const COLUMNS = [
  ["position", "Item"],
  ["state", "State"],
  ["attempts", "Attempts"],
  ["duration", "Duration"],
  ["hostname", "Host"],
  ["error_code", "Error"],
];

export class BatchPanel {
  #sort = "position";
  #descending = false;
  #state = "";
  #offset = 0;
  #total = 0;
  #rows = h("tbody");
  #status = h("span", { class: "quiet", role: "status" });
  #place;
  #open;
  #data = /** @type {Instance | null} */ (null);

  /**
   * @param {Element} place
   * @param {(position: number) => void} open shows an item.
   */
  constructor(place, open) {
    this.#place = place;
    this.#open = open;
  }

  /** @param {Instance} data */
  show(data) {
    this.#data = data;
    update(this.#place, [data.counts, data.positions], () => this.#content(data));
  }

  /** @param {Instance} data */
  #content(data) {
    this.#read();
    const table = h("table", { id: "items" }, h("thead", {}, h("tr", {}, COLUMNS.map(this.#heading))), this.#rows);
    return h(
      "div",
      { class: "card" },
      h("div", { class: "toolbar" }, h("h2", {}, "Items"), h("span", { class: "actions" }, this.#filter(data))),
      countBar(data.counts, data.positions),
      data.past_retention ? h("p", { class: "quiet" }, `${plural(data.past_retention, "item")} past retention`) : null,
      h("div", { class: "scroll" }, table),
      h(
        "p",
        { class: "pager" },
        this.#turner("before", "← Previous", -1),
        this.#status,
        this.#turner("next", "Next →", 1),
      ),
    );
  }

  #heading = (/** @type {string[]} */ [column, name]) => {
    const isSorted = this.#sort === column;
    const onclick = () => this.#sortBy(column);
    return h(
      "th",
      { scope: "col", "aria-sort": isSorted ? (this.#descending ? "descending" : "ascending") : "none" },
      h(
        "button",
        { type: "button", class: "sort", "data-focus": `sort-${column}`, onclick },
        name,
        isSorted ? (this.#descending ? " ↓" : " ↑") : "",
      ),
    );
  };

  /** @param {Instance} data */
  #filter({ counts }) {
    const states = Object.keys(counts);
    const select = h(
      "select",
      { "aria-label": "State", id: "item-state", "data-focus": "item-state" },
      h("option", { value: "" }, "All states"),
      states.map((state) => h("option", { value: state, selected: this.#state === state }, state.toLowerCase())),
    );
    select.addEventListener("change", () => {
      this.#state = select.value;
      this.#offset = 0;
      this.#read();
    });
    return select;
  }

  /**
   * @param {string} name
   * @param {string} text
   * @param {number} pages
   */
  #turner(name, text, pages) {
    const onclick = () => this.#turn(pages);
    return h("button", { type: "button", class: "small", "data-focus": name, onclick }, text);
  }

  /** @param {string} column */
  #sortBy(column) {
    this.#descending = this.#sort === column && !this.#descending;
    this.#sort = column;
    this.#offset = 0;
    forget(this.#place);
    if (this.#data) this.show(this.#data);
  }

  /** @param {number} pages */
  #turn(pages) {
    const offset = this.#offset + pages * ITEMS_PER_PAGE;
    if (offset < 0 || offset >= this.#total) return;
    this.#offset = offset;
    this.#read();
  }

  async #read() {
    const asked = new URLSearchParams({
      sort: this.#sort,
      descending: String(this.#descending),
      limit: String(ITEMS_PER_PAGE),
      offset: String(this.#offset),
    });
    if (this.#state) asked.set("state", this.#state);
    try {
      /** @type {Items} */
      const { total, items } = await getJson(`${api}/items?${asked}`);
      this.#total = total;
      update(this.#rows, items, () => items.map((item) => this.#row(item)));
      const last = Math.min(this.#offset + ITEMS_PER_PAGE, total);
      this.#status.textContent = total
        ? ` ${number(this.#offset + 1)} to ${number(last)} of ${number(total)} `
        : " none ";
    } catch (error) {
      this.#status.textContent = ` ${asProblem(error).message} `;
    }
  }

  /** @param {Item} item */
  #row(item) {
    const onclick = () => this.#open(item.position);
    const open = { type: "button", class: "link", "data-focus": `item-${item.position}`, onclick };
    return h(
      "tr",
      {},
      h("td", {}, h("button", open, item.position)),
      h("td", {}, item.state ? badge(item.state) : "past retention"),
      h("td", {}, item.attempts ?? "–"),
      h("td", {}, itemDuration(item)),
      h("td", {}, item.hostname ?? "–"),
      h("td", {}, errorCell(item)),
    );
  }
}

/** @param {Item} item */
function itemDuration(item) {
  if (item.duration === null && item.started_at && item.state === "RUNNING") return since(item.started_at);
  return duration(item.duration);
}
