// Uses the colours and fonts of Airflow, from the surrounding page or from Airflow's settings in the browser.

import { host } from "./site.js";

const BORROWED = {
  "--bg": "--chakra-colors-bg",
  "--fg": "--chakra-colors-fg",
  "--fg-muted": "--chakra-colors-fg-muted",
  "--border": "--chakra-colors-border",
  "--font": "--chakra-fonts-body",
  "--mono": "--chakra-fonts-mono",
};
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** @param {Window | null} parent */
function isDark(parent) {
  if (parent) return parent.document.documentElement.classList.contains("dark");
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") return theme === "dark";
  return DARK.matches;
}

function dress() {
  const parent = host();
  const root = document.documentElement;
  root.dataset.theme = isDark(parent) ? "dark" : "light";
  if (!parent) return;
  const given = parent.getComputedStyle(parent.document.documentElement);
  for (const [ours, theirs] of Object.entries(BORROWED)) {
    const value = given.getPropertyValue(theirs).trim();
    if (value && !value.startsWith("var(")) root.style.setProperty(ours, value);
  }
}

dress();
DARK.addEventListener("change", dress);
window.addEventListener("storage", (event) => {
  if (event.key === "theme") dress();
});
const parent = host();
if (parent) new MutationObserver(dress).observe(parent.document.documentElement, { attributeFilter: ["class"] });
