// Loss against step: a thick line for the mean of each size, thin ones for its seeds.
const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98]]; // without yellow, which is invisible on white

function sizeColour(i, n) {
  const at = n > 1 ? i / (n - 1) * (VIRIDIS.length - 1) : 1;
  const [k, t] = [Math.min(Math.floor(at), VIRIDIS.length - 2), at - Math.min(Math.floor(at), VIRIDIS.length - 2)];
  const light = matchMedia("(prefers-color-scheme: dark)").matches ? 0.25 : 0; // dark violet is invisible on black
  return `rgb(${VIRIDIS[k].map((c, j) => Math.round((c + (VIRIDIS[k + 1][j] - c) * t) * (1 - light) + 255 * light)).join(",")})`;
}

function meanLoss(runs) {
  const sums = new Map();
  for (const [, , steps, losses] of runs) steps.forEach((step, i) => sums.set(step, [...(sums.get(step) ?? []), losses[i]]));
  const steps = [...sums.keys()].sort((a, b) => a - b);
  return { x: steps, y: steps.map((step) => (sums.get(step).includes(null) ? null : mean(sums.get(step)))) };
}

function lossTraces() {
  const sizes = [...new Set(data.losses.map(([size]) => size))];
  return sizes.flatMap((size, i) => {
    const runs = data.losses.filter((run) => run[0] === size);
    const line = { color: sizeColour(i, sizes.length) };
    const single = ([, seed, x, y]) => ({
      x, y, mode: "lines+markers", line: { ...line, width: 1 }, marker: { size: 4 }, opacity: runs.length > 1 ? 0.45 : 1, showlegend: false, hoverinfo: "none",
      facts: (k) => [[data.axis, size], ["seed", seed], ["step", x[k]], ["loss", sizeText(y[k])]],
    });
    return [...runs.map(single), { ...meanLoss(runs), mode: "lines", line: { ...line, width: 2.2 }, name: `${size}`, hoverinfo: "skip" }];
  });
}

function showLosses() {
  $("loss-section").hidden = data.losses.length === 0;
  if (!data.losses.length) return;
  const plot = $("losses");
  const last = Math.max(...data.losses.map(([, , steps]) => steps.at(-1)));
  const axis = { gridcolor: cssColour("--grid"), zeroline: false, fixedrange: true, tickfont: { size: 11 }, showline: true, linecolor: cssColour("--rule") };
  Plotly.newPlot(plot, lossTraces(), {
    width: plot.clientWidth, height: plot.clientHeight, margin: { l: 58, r: 10, t: 8, b: 42 }, hovermode: "closest", dragmode: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: cssColour("--quiet"), size: 12 },
    xaxis: { ...axis, title: { text: "step" }, ...(last <= 10 && { dtick: 1 }) }, yaxis: { ...axis, title: { text: "loss" } },
    legend: { title: { text: data.axis }, itemclick: false, itemdoubleclick: false },
  }, CONFIG);
  bindTooltip(plot);
}
