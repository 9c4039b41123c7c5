// Boxes for a page that is empty or cannot be shown.

/** @import { Problem } from "./requests.js" */

import { h } from "./dom.js";
import { airflowLink } from "./links.js";
import { base } from "./site.js";

/** @type {Record<number, string>} */
const TITLES = {
  0: "No response",
  401: "Please log in to Airflow",
  403: "Access denied",
  404: "Not found",
  503: "Not available",
};
/** @type {Record<number, string>} */
const DETAILS = { 401: "Your session has ended.", 403: "Your role in Airflow does not allow this." };

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
 * A line on top of a page that shows outdated content.
 *
 * @param {Problem} problem
 */
export function staleNotice({ message }) {
  return h("p", { class: "notice", role: "status" }, `Out of date: ${message} Retrying…`);
}
