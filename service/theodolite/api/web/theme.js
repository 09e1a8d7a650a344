// The colours of the page: those of the system, or light or dark if the user chose one on this device. This script runs
// before the page is drawn, so that the page does not change its colours while it loads.

(() => {
  const KEY = "theodolite-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const ofSystem = () => (system.matches ? "dark" : "light");

  function apply() {
    root.dataset.theme = localStorage.getItem(KEY) ?? ofSystem();
    dispatchEvent(new Event("themechange")); // figures are drawn again
  }

  function change() {
    const chosen = root.dataset.theme === "dark" ? "light" : "dark";
    if (chosen === ofSystem()) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, chosen);
    apply();
    name();
  }

  function name() {
    const button = document.getElementById("theme-button");
    button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
  }

  apply();
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme-button").addEventListener("click", change);
    name();
  });
  system.addEventListener("change", () => {
    apply();
    name();
  });
})();
