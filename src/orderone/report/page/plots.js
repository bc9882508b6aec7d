// A figure is parsed and drawn when it is near the visible part of the page, a few per frame.
const NARROW = 600; // pixels: in narrower figures the legend is above the axes
const LEAST = 0.6; // least part of the height for the axes; legends and titles add to the height
const LINE = 36; // characters of a line in the legend of a narrow figure
const FRAME_MS = 16;
const touch = matchMedia("(pointer: coarse)").matches; // a finger on a figure scrolls the page
const CONFIG = { responsive: true, displaylogo: false, ...(touch && { displayModeBar: false }), modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
Plotly.setPlotConfig({ logging: 0 }); // the page shows errors
const plots = [...document.querySelectorAll(".plot")];
const inView = new Set();
const stale = new Set(plots);

// Panels have names above their axes.
const hasNames = (layout) => (layout.annotations ?? []).some((note) => note.yref === "paper" && note.y >= 1);

// The legend is above the axes, unless the figure sets its place and is wide enough.
function legendFor(layout, narrow, height) {
  const { x, y, xanchor, yanchor, orientation, xref, yref, ...style } = layout.legend ?? {};
  if (!narrow && (x !== undefined || y !== undefined || orientation !== undefined)) return layout.legend;
  const title = { ...style.title, ...(narrow && { side: "top" }) };
  return { ...style, title, orientation: "h", x: 0, xanchor: "left", y: 1 + (hasNames(layout) ? 34 : 6) / height, yanchor: "bottom" };
}

// Wrap names, which would be cut off in a narrow legend.
function wrapped(name) {
  const lines = [""];
  for (const word of name.split(" ")) {
    if (lines.at(-1) && `${lines.at(-1)} ${word}`.length > LINE) lines.push(word);
    else lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.join("<br>");
}

const tracesFor = (plot, data) =>
  plot.clientWidth < NARROW ? data.map((trace) => (trace.name && !/[<>]/.test(trace.name) ? { ...trace, name: wrapped(String(trace.name)) } : trace)) : data;

// A smaller font for powers of ten, which plotly draws larger than other numbers; fewer of them below narrow panels.
function axesFor(layout, narrow) {
  const powers = ([name, axis]) => /^[xy]axis/.test(name) && axis.type === "log" && axis.tickvals === undefined;
  const crowded = (name) => narrow && layout.xaxis2 && /^x/.test(name);
  const changed = ([name, axis]) => [name, { ...axis, tickfont: { size: 10.5, ...axis.tickfont }, ...(crowded(name) && { nticks: 3 }) }];
  return Object.fromEntries(Object.entries(layout).filter(powers).map(changed));
}

// plotly widens the margins for legends and labels; titles are outside the figure.
function marginFor(layout, narrow) {
  const { t = 34, ...sides } = layout.margin ?? {};
  return { ...sides, t: hasNames(layout) ? t : 14, ...(narrow && { l: 44, r: 8 }) };
}

function layoutFor(plot, layout) {
  const [narrow, height] = [plot.clientWidth < NARROW, Number(plot.dataset.height)];
  return {
    ...layout, ...axesFor(layout, narrow), height, width: undefined, autosize: true, template: template(), margin: marginFor(layout, narrow),
    legend: legendFor(layout, narrow, 0.75 * height), ...(touch && { dragmode: false }),
  };
}

// Legends with many lines make the axes smaller: increase the height of the figure to restore them.
function grown(plot) {
  const missing = LEAST * Number(plot.dataset.height) - plot._fullLayout._size.h;
  return missing > 4 ? Plotly.relayout(plot, { height: plot._fullLayout.height + missing }) : null;
}

// A page has one JSON element with all figures and titles, or one per figure, which is parsed when it is drawn.
function figureOf(plot) {
  const all = $("data");
  if (!all) return JSON.parse($(`figure-${plot.dataset.figure}`).textContent);
  const { data, layout: { title, ...layout } } = JSON.parse(all.textContent)[plot.dataset.figure];
  return { data, layout };
}

function say(plot, words) {
  plot.replaceChildren(Object.assign(document.createElement("p"), { className: "trouble", textContent: words }));
}

async function draw(plot) {
  stale.delete(plot);
  try {
    const { data, layout } = figureOf(plot);
    if (!plot.classList.contains("js-plotly-plot")) plot.replaceChildren();
    await Plotly.newPlot(plot, tracesFor(plot, data), layoutFor(plot, layout), CONFIG);
    await grown(plot);
    plot.dataset.drawn = "yes";
  } catch (error) {
    say(plot, `This figure could not be drawn (${error.message}). It shows: ${plot.getAttribute("aria-label")}`);
    plot.dataset.drawn = "failed";
  }
}

let pumping = false;
function pump() {
  if (pumping) return;
  pumping = true;
  requestAnimationFrame(() => {
    pumping = false;
    const start = performance.now();
    for (const plot of inView) {
      if (performance.now() - start > FRAME_MS) return pump();
      if (stale.has(plot)) draw(plot);
    }
  });
}

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) inView[isIntersecting ? "add" : "delete"](target);
  pump();
}, { rootMargin: "500px" });
plots.forEach((plot) => observer.observe(plot));

// Draw again in other colours: visible figures now, the others when they come into view.
function redraw() {
  plots.forEach((plot) => stale.add(plot));
  pump();
}
