// Copy buttons of snippets; they show themselves only where a script can copy.
(() => {
  const ready = (root) => root.querySelectorAll(".copy").forEach((button) => { button.hidden = false; });
  const select = (node) => getSelection().selectAllChildren(node);
  addEventListener("DOMContentLoaded", () => ready(document));
  addEventListener("htmx:after:swap", () => ready(document));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const code = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      select(code); // an address that is neither https nor loopback has no clipboard
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
})();
