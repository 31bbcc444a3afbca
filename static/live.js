// Keeps what is marked `data-live` current from the page's one event stream. All text comes from the server.
(() => {
  const pulse = (state, text) => {
    const mark = document.getElementById("pulse");
    if (!mark) return;
    mark.dataset.state = state;
    mark.title = "";
    mark.lastElementChild.textContent = text;
  };
  const write = (root, texts) => {
    for (const node of root.querySelectorAll("[data-live]")) {
      const text = texts[node.dataset.live];
      if (text !== undefined && node.textContent !== text) node.textContent = text;
    }
  };
  const colour = (svg, tape) => {
    [...svg.children].forEach((cell, i) => {
      cell.setAttribute("class", `c${tape.cells[i]}${i === tape.head ? " head" : ""}`);
    });
    svg.setAttribute("aria-label", tape.label);
  };
  const ready = (node, text) => {
    node.textContent = text.ready;
    node.className = `pill ${text.ready_tone}`;
    node.title = text.ready_title;
  };
  const each = (attribute, name, visit) => {
    for (const root of document.querySelectorAll(`[${attribute}="${CSS.escape(name)}"]`)) visit(root);
  };
  // A buffer that can be sampled at last offers its button; until then the reason stays current.
  const offerSample = (item) => {
    const reason = document.getElementById("why-not");
    if (!reason) return;
    if (item.text.why_not) reason.textContent = item.text.why_not;
    else htmx.ajax("GET", location.href, { target: "#sample", select: "#sample", swap: "outerHTML" });
  };
  const onBuffers = ({ detail }) => {
    const message = JSON.parse(detail.data);
    pulse("live", "live");
    for (const root of document.querySelectorAll("[data-totals]")) write(root, message.totals);
    for (const item of message.items) {
      each("data-buffer", item.name, (root) => {
        write(root, item.text);
        root.querySelectorAll("[data-tape]").forEach((svg) => colour(svg, item.tape));
        root.querySelectorAll("[data-live-pill]").forEach((node) => ready(node, item.text));
      });
      if (!document.querySelector("#list")) offerSample(item);
    }
    dispatchEvent(new CustomEvent("flashdeck:buffers", { detail: message }));
  };
  const onVaults = ({ detail }) => {
    pulse("live", "live");
    for (const item of JSON.parse(detail.data).items) each("data-vault", item.name, (root) => write(root, item.text));
  };
  addEventListener("DOMContentLoaded", () => {
    const stream = document.getElementById("stream");
    if (!stream) return;
    pulse("off", "connecting");
    stream.addEventListener("buffers", onBuffers);
    stream.addEventListener("vaults", onVaults);
    stream.addEventListener("htmx:sse:error", () => pulse("lost", "reconnecting"));
    stream.addEventListener("htmx:sse:close", () => pulse("lost", "not live"));
  });
})();
