// Figures in one style, with the colours of the page.
export const $ = (id) => document.getElementById(id);
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const CONFIG = { displayModeBar: false, responsive: true };

// `words` describes the figure for screen readers
export function draw(id, traces, layout, words) {
  const place = $(id);
  place.setAttribute("aria-label", words);
  const axis = { gridcolor: colour("grid"), zeroline: false, linecolor: colour("rule"), showline: true, ticks: "", fixedrange: true, automargin: true };
  const { xaxis, yaxis, ...rest } = layout;
  return Plotly.react(place, traces, {
    margin: { l: 44, r: 10, t: 6, b: 36 }, showlegend: false, dragmode: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("quiet"), size: 11 },
    hoverlabel: { bgcolor: "#1b1f24", bordercolor: "#566069", font: { color: "#f2f4f6", size: 12 } },
    xaxis: { ...axis, ...xaxis, title: { text: xaxis.title, standoff: 6 } }, yaxis: { ...axis, ...yaxis, title: { text: yaxis.title, standoff: 4 } },
    ...rest,
  }, CONFIG);
}

export function line(x, y, style, more = {}) {
  return { type: "scatter", mode: "lines", x, y, line: style, hoverinfo: "skip", ...more };
}

// Format a number: five digits, ∞, and powers of ten for very large or small values.
export function text(value, digits = 5) {
  const x = Number(value);
  if (value === null || Number.isNaN(x)) return "none";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const short = Math.abs(x) >= 1e6 || (x !== 0 && Math.abs(x) < 1e-4) ? x.toExponential(digits - 2) : String(Number(x.toPrecision(digits)));
  return short.replace("-", "−");
}

// Show few digits; all of them are in the tooltip and in data-value.
export function put(place, value, digits) {
  Object.assign(place, { textContent: text(value, digits), title: String(value) });
  place.dataset.value = value;
}

export function list(place, lines) {
  place.replaceChildren(...lines.map((words) => Object.assign(document.createElement("li"), { textContent: words })));
}

export function badge(place, word) {
  place.textContent = word;
  place.dataset.word = word;
}
