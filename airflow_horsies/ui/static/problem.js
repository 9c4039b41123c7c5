// A page that shows a problem. Its link navigates the Airflow around it.

import "./common/theme.js";
import { followInAirflow } from "./common/links.js";

/** @type {NodeListOf<HTMLAnchorElement>} */
const links = document.querySelectorAll("a[data-top]");
for (const link of links) {
  link.addEventListener("click", (event) => followInAirflow(event, link.getAttribute("href") ?? ""));
}
