// Light or dark: what was chosen last, else what the system prefers. Runs before the first paint.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* private window */ } };
  const apply = () => {
    root.dataset.theme = read() || (system.matches ? "dark" : "light");
    dispatchEvent(new CustomEvent("flashdeck:theme"));
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      keep(root.dataset.theme === "dark" ? "light" : "dark");
      apply();
    });
  });
})();
