// What a page shows if it has nothing to show, or cannot show it.

/** @import { Problem } from "./requests.js" */

import { h } from "./dom.js";
import { airflowLink } from "./links.js";
import { base } from "./site.js";

/** @type {Record<number, string>} */
const TITLES = {
  0: "No answer",
  401: "Please log in to Airflow",
  403: "You may not see this",
  404: "Nothing here",
  503: "Not available",
};
/** @type {Record<number, string>} */
const DETAILS = { 401: "Your session has ended.", 403: "Your role in Airflow does not allow it." };

/** @param {Problem} problem */
export function problemBox({ status, message }) {
  return h(
    "section",
    { class: "state problem", role: "alert" },
    h("h1", {}, TITLES[status ?? -1] ?? "Something went wrong"),
    h("p", {}, DETAILS[status ?? -1] ?? message),
    status === 401 ? h("p", {}, airflowLink(`${base}/`, "Open Airflow")) : null,
  );
}

/**
 * @param {string} title
 * @param {string} detail
 */
export function emptyBox(title, detail) {
  return h("section", { class: "state", role: "status" }, h("h1", {}, title), h("p", {}, detail));
}

/**
 * A line on top of a page that still shows what it last knew.
 *
 * @param {Problem} problem
 */
export function staleNotice({ message }) {
  return h("p", { class: "notice", role: "status" }, `Not up to date: ${message} Trying again…`);
}
