// All panels of the quantity. A panel is drawn when it comes into view, a few per frame.
const CONFIG = { displayModeBar: false, doubleClick: false };
const FRAME_MS = 12;
const panels = new Map(); // module -> its element
const inView = new Set();
const stale = new Set();

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) inView[isIntersecting ? "add" : "delete"](target);
  pump();
}, { rootMargin: "300px" });

function panelOf(module) {
  if (!panels.has(module)) {
    const panel = element("article", { className: "panel" });
    panels.set(module, panel);
    observer.observe(panel);
  }
  return panels.get(module);
}

function facts(row) {
  const parts = [badge(row.verdict)];
  if (row.exponent != null) parts.push(element("span", { textContent: signed(row.exponent) }), element("span", { className: "quiet", textContent: interval(row) }));
  if (row.predicted != null) parts.push(element("span", { className: "quiet", textContent: `vs ${plain(row.predicted)}`, title: "predicted" }));
  return element("p", { className: "facts" }, parts);
}

// A note counts the values that a logarithmic axis cannot show.
function note(points) {
  const zero = points.filter((p) => p.rms === 0).length;
  const bad = points.filter((p) => p.rms == null).length;
  const parts = [zero && `${zero} zero`, bad && `${bad} missing or not finite`].filter(Boolean);
  return parts.length ? `${parts.join(", ")} of ${points.length} points` : "";
}

// Modules that return the same tensor have equal records: they share the panel of the first.
function grouped(selected) {
  const groups = new Map();
  for (const row of selected) {
    const key = JSON.stringify([data.rms[row.module][row.quantity], row.step, row.verdict, row.cause]);
    if (groups.has(key)) groups.get(key).push(row);
    else groups.set(key, [row]);
  }
  return [...groups.values()];
}

const nameOf = (row) => data.modules[row.module] || "(the model)";

function fill(panel, group) {
  const [row] = group;
  const name = group.map(nameOf).join(" = ");
  const points = pointsOf(row, stepOf(row));
  panel.row = row;
  panel.plot = element("div", { className: "plot" });
  panel.style.setProperty("--verdict", colourOf(row.verdict));
  panel.dataset.verdict = row.verdict;
  const foot = element("div");
  if (row.cause) foot.append(element("p", { className: "cause", textContent: row.cause, title: row.cause }));
  if (note(points)) foot.append(element("p", { className: "note", textContent: note(points) }));
  panel.replaceChildren(element("h3", { textContent: name, title: name }), facts(row), panel.plot, foot);
  stale.add(panel);
}

function draw(panel) {
  stale.delete(panel);
  const step = stepOf(panel.row);
  const traces = tracesOf(panel.row, step, pointsOf(panel.row, step).filter((p) => positive(p.rms)));
  Plotly.newPlot(panel.plot, traces, layoutOf(traces, panel.plot), CONFIG);
  bindTooltip(panel.plot);
}

let pumping = false;
function pump() {
  if (pumping) return;
  pumping = true;
  requestAnimationFrame(() => {
    pumping = false;
    const start = performance.now();
    for (const panel of inView) {
      if (performance.now() - start > FRAME_MS) return pump();
      if (stale.has(panel) && panel.isConnected) draw(panel);
    }
  });
}

function showPanels() {
  hideTooltip();
  for (const panel of panels.values()) if (panel.plot) Plotly.purge(panel.plot);
  stale.clear();
  const all = judged(state.quantity);
  const selected = all.filter(visible);
  const groups = grouped(selected);
  $("panels").replaceChildren(...groups.map(([row]) => panelOf(row.module)));
  groups.forEach((group) => fill(panelOf(group[0].module), group));
  $("empty").hidden = selected.length > 0;
  $("count").textContent = `${selected.length} of ${all.length} modules`;
  $("axes").textContent = `x: ${data.axis}; y: RMS of ${data.quantities[state.quantity]}; both logarithmic`;
  pump();
}

function redraw() {
  for (const panel of panels.values()) if (panel.isConnected) stale.add(panel);
  pump();
}
