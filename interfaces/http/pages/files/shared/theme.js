// The switch between the system's colours, light and dark. A classic script in the head, so that no page is first drawn
// in the wrong ones. The choice stays in this browser.
(() => {
  const KEY = "cairn.theme";
  const CHOICES = ["system", "light", "dark"];

  const chosen = () => {
    try {
      const kept = localStorage.getItem(KEY);
      return CHOICES.includes(kept) ? kept : "system";
    } catch {
      return "system"; // storage is switched off
    }
  };

  const apply = (choice) => {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
  };

  const keep = (choice) => {
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // it holds until the page is left
    }
  };

  apply(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.querySelector("select[data-theme-switch]");
    if (select === null) return;
    select.value = chosen();
    select.addEventListener("change", () => {
      apply(select.value);
      keep(select.value);
    });
  });
})();
