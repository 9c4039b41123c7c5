// Arguments and result of one submission.

/** @import { Submission, Values } from "../payloads.d.ts" */

import { copyButton } from "../common/copying.js";
import { h, update } from "../common/dom.js";
import { asProblem, getJson } from "../common/requests.js";
import { isLive } from "../common/text.js";

const MAY_NOT_READ = "Your role in Airflow does not allow you to see arguments and results.";
const NOT_KEPT =
  "The arguments are no longer stored. horsies drops the arguments of a finished task unless the operator sets " +
  "retain_input=True, and Airflow only keeps those of the newest try.";

export class ValuesPanel {
  /** @type {string | null} */
  #key = null;
  #place;

  /** @param {Element} place */
  constructor(place) {
    this.#place = place;
  }

  forget() {
    this.#key = null;
  }

  /**
   * Reads them if they may have changed.
   *
   * @param {Submission} submission
   * @param {string} address
   */
  async refresh(submission, address) {
    const key = [submission.horsies_task_id, submission.task?.state].join();
    if (key === this.#key) return;
    this.#key = key;
    try {
      /** @type {Values} */
      const found = await getJson(address);
      if (this.#key === key) update(this.#place, found, () => panels(found, submission));
    } catch (error) {
      const { status, message } = asProblem(error);
      this.#key = null;
      this.#place.replaceChildren(h("p", { class: "quiet" }, status === 403 ? MAY_NOT_READ : message));
    }
  }
}

/**
 * @param {Values} values
 * @param {Submission} submission
 */
function panels({ kwargs, kwargs_note, result, error_data, traceback }, { task }) {
  const isOver = task && !isLive(task.state);
  return [
    panel("Input", "input", kwargs, { otherwise: NOT_KEPT, note: kwargs_note }),
    panel("Result", "result", result, { otherwise: isOver ? "The task has no result." : "There is no result yet." }),
    error_data ? panel("Error data", "error-data", error_data) : null,
    traceback ? panel("Traceback", "traceback", traceback) : null,
  ];
}

/**
 * @param {string} title
 * @param {string} id
 * @param {string | null} text
 * @param {{ otherwise?: string, note?: string | null }} more
 */
function panel(title, id, text, { otherwise = "", note = null } = {}) {
  return h(
    "section",
    { class: "card" },
    h("div", { class: "toolbar" }, h("h2", {}, title), text ? h("span", { class: "actions" }, copyButton(text)) : null),
    text ? h("pre", { id, tabindex: "0" }, h("bdi", {}, text)) : h("p", { class: "quiet" }, otherwise),
    note ? h("p", { class: "quiet" }, note) : null,
  );
}
