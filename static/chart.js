// Draws the rates of a buffer with uPlot in place of the still picture, and moves them with each event.
(() => {
  const KEEP = 3600; // points
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

  const draw = (box) => {
    const labels = [...document.querySelectorAll(".legend [data-series]")].map((node) => node.dataset);
    const strokes = { added: "--add", sampled: "--sample" };
    const data = JSON.parse(box.dataset.chart);
    const axis = { stroke: () => colour("--ink-3"), font: "12px Plex Sans", ticks: { show: false } };
    const grid = { stroke: () => colour("--line"), width: 1 };
    const readout = Object.assign(document.createElement("div"), { className: "readout", hidden: true });
    const show = (u) => {
      const i = u.cursor.idx;
      readout.hidden = i == null;
      if (i == null) return;
      const parts = labels.map((l, s) => (u.data[s + 1][i] == null ? "" : `${l.label} ${number.format(u.data[s + 1][i])} ${l.unit}`));
      readout.textContent = [clock(u.data[0][i]), ...parts.filter(Boolean)].join("  ·  ");
    };
    box.replaceChildren(readout);
    const plot = new uPlot({
      width: box.clientWidth, height: box.clientHeight,
      cursor: { points: { size: 6 }, drag: { x: false, y: false } }, legend: { show: false },
      scales: { y: { range: (_, __, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 26, values: (_, ticks) => ticks.map(clock), space: 90 },
        { ...axis, grid, size: 52, values: (_, ticks) => ticks.map((t) => short.format(t)) },
      ],
      series: [{}, ...labels.map((l) => ({ label: l.label, width: 1.6, points: { show: false }, stroke: () => colour(strokes[l.series]) }))],
      hooks: { setCursor: [show] },
    }, data, box);
    return { plot, data, labels };
  };

  // Adds the points that are newer than the last one, and lets as many old ones go.
  const push = ({ data, plot, labels }, points) => {
    const span = data[0].length > 1 ? data[0].at(-1) - data[0][0] : 0;
    points.times.forEach((at, i) => {
      if (at <= (data[0].at(-1) ?? 0)) return;
      data[0].push(at);
      labels.forEach((l, s) => data[s + 1].push(points[l.series][i] ?? null));
    });
    const length = Math.max(span, 60) + 1;
    while (data[0].length > KEEP || data[0].at(-1) - data[0][0] > length) data.forEach((column) => column.shift());
    plot.setData(data);
  };

  addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("rates");
    if (!box || typeof uPlot === "undefined") return;
    const chart = draw(box);
    const name = box.closest("[data-buffer]").dataset.buffer;
    addEventListener("flashdeck:buffers", ({ detail }) => {
      const points = detail.points?.[name];
      if (points?.times.length) push(chart, points);
    });
    new ResizeObserver(() => chart.plot.setSize({ width: box.clientWidth, height: box.clientHeight })).observe(box);
    addEventListener("flashdeck:theme", () => chart.plot.redraw());
  });
})();
