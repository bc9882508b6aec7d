// The first tab: phases over weight and bias variances, and the selected network.
import { Choice, Slider, element } from "./controls.js";
import { $, badge, colour, draw, line, put, text } from "./draw.js";
import { Panel } from "./panel.js";

const [SHALLOW, DEEP] = [5, 2000]; // ends of the colour scale
const CONTOURS = [10, 20, 50, 100, 200, 500, 1000];
const [COARSE, FINE, REST] = [28, 72, 200]; // points along an axis while a slider moves, and after REST ms without a move
const MEANING = {
  ordered: "inputs become similar, gradients vanish",
  critical: "gradients neither vanish nor explode",
  chaotic: "inputs become different, gradients explode",
};
const NUMBERS = [
  ["q_star", "q*", "mean square of the entries of a signal in deep layers"],
  ["c_star", "c*", "correlation of two signals in deep layers"],
  ["chi1", "χ₁", "each layer multiplies squared gradients by this"],
  ["chi2", "χ₂", "each layer multiplies deviations from c* by this"],
  ["xi1", "ξ₁", "layers in which squared gradients change by a factor of e"],
  ["xi2", "ξ₂", "layers in which deviations from c* shrink by a factor of e"],
];

export function phaseTab(choices) {
  const weight = new Slider({ name: "weight_var", label: "weight variance", note: "variance of one weight, times the fan-in", value: 1.4, min: 0, max: 4, step: 0.01 });
  const bias = new Slider({ name: "bias_var", label: "bias variance", value: 0.1, min: 0, max: 0.3, step: 0.001 });
  const controls = [
    new Choice({ name: "activation", label: "activation", value: "tanh", options: choices.activation.map((name) => [name, name]), example: "leaky-relu(0.2)" }),
    weight, bias,
    new Slider({ name: "keep", label: "keep rate", note: "1 − dropout rate", value: 1, min: 0.5, max: 1, step: 0.005 }),
  ];
  const more = [
    new Slider({ name: "q0", label: "mean square of the inputs", note: "q₀", value: 1, min: 0, max: 4, step: 0.01 }),
    new Slider({ name: "c0", label: "correlation of the inputs", note: "c₀", value: 0.2, min: -1, max: 1, step: 0.01 }),
    new Slider({ name: "most_weight_var", label: "map up to weight variance", value: 4, min: 0.5, max: 64, log: true }),
    new Slider({ name: "most_bias_var", label: "map up to bias variance", value: 0.3, min: 0.01, max: 16, log: true }),
  ];
  const panel = new Panel("phase", { "phase-controls": controls, "phase-more": more });
  const answers = {}; // the latest of each view, to draw them again in other colours
  const show = (name, drawAnswer) => (answer) => {
    answers[name] = answer;
    drawAnswer();
  };
  const network = panel.question("network", show("network", () => (showNumbers(answers.network, go), curves(answers.network), map(panel, answers.diagram))));
  const diagram = panel.question("diagram", show("diagram", () => map(panel, answers.diagram)));
  let rest = 0;
  const askMap = (points) => diagram.ask({ ...panel.query("activation", "keep", "most_weight_var", "most_bias_var"), points });

  function go(value) {
    const top = panel.controls.most_weight_var;
    if (value > Number(top.value)) top.value = text(Math.ceil(value * 1.25));
    weight.value = String(Number(value.toFixed(6)));
  }

  panel.refresh = (changed) => {
    weight.reach(Number(panel.get("most_weight_var")));
    bias.reach(Number(panel.get("most_bias_var")));
    $("phase-python").textContent = `theory.MeanField("${panel.get("activation")}", weight_var=${panel.get("weight_var")}, bias_var=${panel.get("bias_var")}, keep=${panel.get("keep")})`;
    network.ask(panel.query("activation", "weight_var", "bias_var", "keep", "q0", "c0"));
    if (["weight_var", "bias_var", "q0", "c0"].includes(changed)) return;
    clearTimeout(rest);
    askMap(COARSE);
    rest = setTimeout(() => askMap(FINE), REST);
  };
  panel.redraw = () => {
    if (answers.network) curves(answers.network);
    map(panel, answers.diagram);
  };
  legend();
  panel.choose = (x, y) => {
    weight.value = text(x, 4);
    bias.value = text(y, 4);
  };
  return panel;
}

// --- the map ---------------------------------------------------------------------------------------------------------

function map(panel, answer) {
  if (!answer) return;
  const { weight_var: x, bias_var: y, depth, phase, diverges, critical } = answer;
  const shade = (d) => Math.log(Math.min(Math.max(d, SHALLOW), DEEP) / SHALLOW) / Math.log(DEEP / SHALLOW);
  const cells = (choose) => depth.map((row, j) => row.map((d, i) => (choose(i, j) ? shade(d) : null)));
  const words = phase.map((row, j) => row.map((p, i) => (p < 0 ? "ordered" : p > 0 ? "chaotic" : "critical") + (diverges[j][i] ? ", signals grow without bound" : "")));
  const heat = (z, from, to) => ({ type: "heatmap", x, y, z, zmin: 0, zmax: 1, colorscale: [[0, from], [1, to]], showscale: false, hoverinfo: "skip" });
  const traces = [
    heat(cells((i, j) => phase[j][i] < 0), colour("ordered"), colour("deep-ordered")),
    heat(cells((i, j) => phase[j][i] >= 0), colour("chaotic"), colour("deep-chaotic")),
    { ...heat(cells((i, j) => diverges[j][i]), colour("diverges"), colour("diverges")), opacity: 0.6 },
    ...contours(x, y, depth, diverges),
    line(critical.weight_var, critical.bias_var, { color: colour("card"), width: 6 }),
    line(critical.weight_var, critical.bias_var, { color: colour("text"), width: 2.5 }),
    { ...heat(depth, "rgba(0,0,0,0)", "rgba(0,0,0,0)"), opacity: 0, text: words, hoverinfo: "text", hovertemplate: "weight_var %{x:.3g}, bias_var %{y:.3g}<br>%{text}: depth %{z:.4g}<extra></extra>" },
    point(panel),
  ];
  const ends = { x: Number(panel.get("most_weight_var")) || x.at(-1), y: Number(panel.get("most_bias_var")) || y.at(-1) };
  const layout = {
    margin: { l: 52, r: 12, t: 6, b: 40 },
    xaxis: { title: "weight variance", range: [0, ends.x], showgrid: false }, yaxis: { title: "bias variance", range: [0, ends.y], showgrid: false },
  };
  const where = critical.weight_var.length ? `The critical line starts at weight variance ${text(critical.weight_var[0], 4)}.` : "The map has no critical line.";
  draw("map", traces, layout, `Map of phases and trainable depths of ${panel.get("activation")} networks, keep rate ${panel.get("keep")}. ${where} The selected network has weight variance ${panel.get("weight_var")} and bias variance ${panel.get("bias_var")}.`);
  if (!$("map").dataset.listens) $("map").on("plotly_click", ({ points }) => panel.choose(points[0].x, points[0].y));
  $("map").dataset.listens = "1";
}

// Contours of 1/depth, which is smooth across the critical line
function contours(x, y, depth, diverges) {
  const z = depth.map((row, j) => row.map((d, i) => (diverges[j][i] ? null : 1 / Math.max(d, 1e-3))));
  const all = z.flat().filter((v) => v !== null);
  const [low, high] = [all.reduce((a, b) => Math.min(a, b), Infinity), all.reduce((a, b) => Math.max(a, b), 0)];
  return CONTOURS.filter((d) => 1 / d > low && 1 / d < high).map((d) => ({
    type: "contour", x, y, z, showscale: false, hoverinfo: "skip", colorscale: [[0, colour("faint")], [1, colour("faint")]],
    contours: { coloring: "lines", start: 1 / d, end: 1 / d, size: 1 }, line: { width: 1 }, opacity: 0.7,
  }));
}

function point(panel) {
  const at = { x: [Number(panel.get("weight_var"))], y: [Number(panel.get("bias_var"))] };
  return { type: "scatter", mode: "markers", ...at, hoverinfo: "skip", cliponaxis: false, marker: { size: 15, color: "#ffd24a", line: { color: "#1b1f24", width: 2.5 } } };
}

function legend() {
  const part = (...children) => element("span", {}, children);
  const scale = (name) => element("span", { className: `scale ${name}` });
  $("map-legend").append(
    part(`ordered, depth ${SHALLOW}`, scale("ordered"), `${DEEP}`), part(`chaotic, depth ${DEEP}`, scale("chaotic"), `${SHALLOW}`),
    part(scale("line"), "critical, χ₁ = 1"), part(scale("diverges"), "grey: signals grow without bound"), part(`thin lines: depth ${CONTOURS.join(", ")}`),
  );
}

// --- the selected network --------------------------------------------------------------------------------------------

function showNumbers(answer, go) {
  const diverges = answer.status === "diverges";
  badge($("phase-word"), answer.phase);
  badge($("phase-status"), diverges ? "diverges" : "");
  $("phase-meaning").textContent = diverges ? "signals grow without bound" : MEANING[answer.phase];
  const depth = Number(answer.trainable_depth);
  put($("trainable_depth"), answer.trainable_depth, Math.max(2, String(Math.round(Math.min(depth, 1e5))).length));
  const rows = NUMBERS.map(([name, symbol, meaning]) => {
    const value = element("dd", { id: name, className: "value" });
    put(value, answer[name]);
    return element("div", {}, [element("dt", {}, [symbol, element("small", { textContent: meaning })]), value]);
  });
  $("numbers").replaceChildren(...rows);
  const critical = Number(answer.critical_weight_var);
  const button = element("button", { type: "button", className: "go", textContent: "go there" });
  button.addEventListener("click", () => go(critical));
  if (Number.isFinite(critical)) $("critical").replaceChildren(`With this bias variance and keep rate, weight variance ${text(critical, 6)} is critical.`, button);
  else $("critical").replaceChildren("No weight variance is critical for this bias variance.");
}

function curves({ lengths, correlations, q_star, c_star }) {
  const end = lengths.x.at(-1);
  cobweb("length-map", lengths, [0, end], "q", Number(q_star));
  cobweb("correlation-map", correlations, [-1, 1], "c", c_star);
  path("length-path", lengths.path, "q", Number(q_star), {});
  path("correlation-path", correlations.path, "c", c_star, { range: [Math.min(-0.05, ...correlations.path) - 0.02, 1.05] });
}

function cobweb(id, { x, y, cobweb: steps }, range, letter, star) {
  const corners = steps.slice(1).flatMap((next, k) => [[steps[k], next], [next, next]]);
  const stairs = steps.length ? [[steps[0], range[0]], ...corners] : [];
  const traces = [
    line(range, range, { color: colour("faint"), width: 1, dash: "4px,3px" }),
    line(x, y, { color: colour("accent"), width: 2.5 }, { hoverinfo: "all", hovertemplate: `${letter} %{x:.4g} → %{y:.4g}<extra></extra>` }),
    line(stairs.map(([from]) => from), stairs.map(([, to]) => to), { color: colour("grows"), width: 1.3 }),
  ];
  if (Number.isFinite(star)) traces.push({ type: "scatter", mode: "markers", x: [star], y: [star], marker: { size: 8, color: colour("text") }, hovertemplate: `${letter}* %{x:.5g}<extra></extra>` });
  const layout = { xaxis: { title: `${letter} in one layer`, range }, yaxis: { title: `${letter} in the next layer`, range } };
  draw(id, traces, layout, `${letter} in a layer against ${letter} in the next, with the steps from the inputs to the fixed point ${text(star)}`);
}

function path(id, values, letter, star, axis) {
  const layers = values.map((_, k) => k);
  const traces = [line(layers, values.map(Number), { color: colour("accent"), width: 1.5 }, { mode: "lines+markers", marker: { size: 4.5 }, hoverinfo: "all", hovertemplate: `layer %{x}: ${letter} %{y:.5g}<extra></extra>` })];
  if (Number.isFinite(star)) traces.unshift(line([0, layers.length - 1], [star, star], { color: colour("text"), width: 1, dash: "4px,3px" }));
  const finite = values.map(Number).filter(Number.isFinite);
  const wild = letter === "q" && Math.max(...finite) > 1e3 * Math.max(Math.min(...finite), 1e-3);
  const layout = { xaxis: { title: "layer" }, yaxis: { title: letter, ...(wild ? { type: "log" } : letter === "q" ? { rangemode: "tozero" } : {}), ...axis } };
  draw(id, traces, layout, `${letter} from ${text(values[0])} at the input to ${text(values.at(-1))} at layer ${layers.length - 1}`);
}
