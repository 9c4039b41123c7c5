// A page that says what is wrong: only dressed, and its link moves the Airflow around.

import { followInAirflow } from "./common.js";

for (const link of document.querySelectorAll("a[data-top]")) {
  link.addEventListener("click", (event) => followInAirflow(event, link.getAttribute("href")));
}
