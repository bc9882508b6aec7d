// One module and one quantity: points of the seeds, their mean, the fitted slope and the predicted one.
const MARGIN = { l: 46, r: 8, t: 6, b: 22 };
const logSpan = Math.log10(data.sizes.at(-1) / data.sizes[0]) || 1;
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;
const geometric = (xs) => xs.length ? Math.exp(mean(xs.map(Math.log))) : null;
const positive = (x) => x != null && x > 0;

// rms of the seeds, for each size, at one step
function seedsAt(row, step) {
  const values = data.rms[row.module][row.quantity] ?? [];
  const [sizes, seeds] = [data.sizes.length, data.seeds.length];
  return data.sizes.map((_, i) => {
    const start = (step * sizes + i) * seeds;
    return values.slice(start, start + seeds);
  });
}

// The step of the verdict; without a verdict, the last step with a value that can be drawn.
function stepOf(row) {
  const at = data.steps.indexOf(row.step ?? state.step);
  if (at >= 0) return at;
  const drawn = data.steps.map((_, s) => s).filter((s) => seedsAt(row, s).flat().some(positive));
  return drawn.at(-1) ?? data.steps.length - 1;
}

function pointsOf(row, step) {
  return seedsAt(row, step).flatMap((values, i) => values.map((rms, k) => ({ size: data.sizes[i], seed: data.seeds[k], rms })));
}

function slopeLine(points, exponent) {
  const [x, y] = [geometric(points.map((p) => p.size)), geometric(points.map((p) => p.rms))];
  return data.sizes.map((size) => y * (size / x) ** exponent);
}

function factsOf(row, step, point) {
  return [
    [data.axis, point.size], ["seed", point.seed], ["step", data.steps[step]], ["RMS", sizeText(point.rms)],
    ["exponent", row.exponent == null ? "" : `${signed(row.exponent)} ${interval(row)}`],
    ["predicted", row.predicted == null ? "" : plain(row.predicted)], ["verdict", row.verdict], ["cause", row.cause],
  ];
}

function tracesOf(row, step, points) {
  const colour = colourOf(row.verdict);
  const line = (y, style, opacity = 1) => ({ x: data.sizes, y, mode: "lines", line: style, opacity, hoverinfo: "skip" });
  const means = (s) => seedsAt(row, s).map((values) => geometric(values.filter(positive)));
  const others = data.steps.map((_, s) => s).filter((s) => s !== step);
  const traces = others.map((s) => line(means(s), { color: cssColour("--faint"), width: 1 }));
  if (points.length && row.exponent != null) traces.push(line(slopeLine(points, row.exponent), { color: colour, width: 6 }, 0.35));
  traces.push(line(means(step), { color: colour, width: 1.6 }));
  if (points.length && row.predicted != null) traces.push(line(slopeLine(points, row.predicted), { color: cssColour("--text"), width: 1.4, dash: "5px,3px" }));
  traces.push({
    x: points.map((p) => p.size), y: points.map((p) => p.rms), mode: "markers", hoverinfo: "none",
    marker: { color: colour, size: 5.5, opacity: 0.85 }, facts: (i) => factsOf(row, step, points[i]),
  });
  return traces;
}

// To make slopes comparable between panels, the y axis spans as many decades as the x axis, or more if the data do.
function yRange(traces) {
  const logs = traces.flatMap((t) => t.y).filter(positive).map(Math.log10);
  if (!logs.length) return [-1, 1];
  const [low, high] = [logs.reduce((a, b) => Math.min(a, b)), logs.reduce((a, b) => Math.max(a, b))];
  const half = Math.max(high - low, logSpan) / 2 * 1.12;
  return [(low + high) / 2 - half, (low + high) / 2 + half];
}

function tickText([digit, k]) {
  if (k >= -3 && k <= 3) return String(Number((digit * 10 ** k).toPrecision(1)));
  return (digit === 1 ? "" : `${digit}·`) + `10${superscript(k)}`;
}

function yTicks([low, high]) {
  const decades = [];
  const stride = Math.max(1, Math.ceil((high - low) / 4));
  for (let k = Math.ceil(low); k <= high; k += 1) if (k % stride === 0) decades.push(k);
  const finer = [Math.floor(low), Math.floor(low) + 1, Math.floor(high)].flatMap((k) => [[1, k], [2, k], [5, k]]);
  const inside = finer.filter(([digit, k]) => Math.log10(digit) + k > low && Math.log10(digit) + k < high);
  const ticks = decades.length > 1 ? decades.map((k) => [1, k]) : inside;
  return { tickvals: ticks.map(([digit, k]) => digit * 10 ** k), ticktext: ticks.map(tickText) };
}

// Omit labels that would touch; the largest size always has one.
function xTicks(pixels) {
  const labelled = [];
  for (const size of [...data.sizes].reverse()) {
    const room = labelled.length ? Math.log10(labelled.at(-1) / size) / (logSpan * 1.12) * pixels : Infinity;
    if (room > 7 * String(labelled[0] ?? "").length + 6) labelled.push(size);
  }
  return { tickvals: labelled, ticktext: labelled.map(String) };
}

function layoutOf(traces, plot) {
  const axis = { type: "log", fixedrange: true, gridcolor: cssColour("--grid"), zeroline: false, tickfont: { size: 10 }, showline: true, linecolor: cssColour("--rule"), ticks: "" };
  const [range, pad] = [yRange(traces), logSpan * 0.06];
  const ends = [Math.log10(data.sizes[0]) - pad, Math.log10(data.sizes.at(-1)) + pad];
  return {
    width: plot.clientWidth, height: plot.clientHeight, margin: MARGIN, showlegend: false, hovermode: "closest", dragmode: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: cssColour("--quiet") },
    xaxis: { ...axis, range: ends, ...xTicks(plot.clientWidth - MARGIN.l - MARGIN.r) }, yaxis: { ...axis, range, ...yTicks(range) },
  };
}
