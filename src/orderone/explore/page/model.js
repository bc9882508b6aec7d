// The fourth tab: a PyTorch model with infinitely many channels.
import { Choice, Slider, element } from "./controls.js";
import { $, colour, draw, line, list, put, text } from "./draw.js";
import { Panel } from "./panel.js";

export function modelTab(choices) {
  const options = choices.architecture.map((name) => [name, name]);
  const panel = new Panel("model", {
    "model-controls": [
      new Choice({ name: "architecture", label: "model", value: choices.architecture[0], options, example: "package.module:function" }),
      new Slider({ name: "examples", label: "examples", note: "random inputs", value: 6, min: 2, max: 12, step: 1, whole: true }),
      new Slider({ name: "input_correlation", key: "similar", label: "correlation of the inputs", value: 0.5, min: 0, max: 1, step: 0.01 }),
    ],
  });
  let latest = null;
  const question = panel.question("model", (answer) => {
    latest = answer;
    show(answer);
  }, { inputs: "architecture", model: "architecture" });
  panel.refresh = () => {
    $("model-python").textContent = "limit = o1.kernel_from_module(model); limit.depth_scales(); limit(x).ntk";
    question.ask(panel.query("architecture", "examples", "input_correlation"));
  };
  panel.redraw = () => latest && figures(latest);
  return panel;
}

function show(answer) {
  const plain = answer.trainable_depth !== null;
  put($("model-depth"), answer.trainable_depth);
  $("model-depth").hidden = !plain;
  $("model-depth-words").textContent = plain ? "layers like these could be trained" : "No activation is followed by weights outside residual branches: there is no depth scale of plain networks.";
  $("scales").tBodies[0].replaceChildren(...answer.scales.map(scalesRow));
  $("scales-hint").textContent = answer.scales.length ? "The suggested variance has χ₁ = 1, for the present biases and dropout: multiply the weights by √(suggested / present). ∞: no variance has it." : "";
  list($("model-layers"), answer.layers);
  figures(answer);
}

function scalesRow(row) {
  const name = `${row.activation}${row.in_branch ? " (in a residual branch)" : ""}`;
  const numbers = [row.weight_var, row.suggested_weight_var, row.bias_var, row.keep, row.phase, row.chi1, row.xi1, row.xi2, row.trainable_depth];
  const cells = numbers.map((value, k) => element("td", { textContent: k === 4 ? value : text(value, 4), title: String(value) }));
  return element("tr", {}, [element("th", { scope: "row", textContent: name }), ...cells]);
}

function figures({ nngp, ntk, path }) {
  heat("nngp", nngp, "NNGP kernel");
  heat("ntk", ntk, "tangent kernel");
  const names = path.map(({ layer }, k) => `${k} ${layer}`);
  along("model-correlations", names, path.map(({ correlation }) => correlation), "correlation", { range: [-0.05, 1.05] });
  along("model-variances", names, path.map(({ variance }) => variance), "variance", { rangemode: "tozero" });
}

function heat(id, matrix, words) {
  const names = matrix.map((_, k) => String(k + 1));
  const scale = [[0, colour("card") || "#ffffff"], [1, colour("accent")]];
  const trace = { type: "heatmap", z: matrix, x: names, y: names, colorscale: scale, hovertemplate: "inputs %{x} and %{y}: %{z:.4g}<extra></extra>", colorbar: { thickness: 10, tickfont: { color: colour("quiet") } } };
  const layout = { xaxis: { title: "input", showgrid: false, type: "category" }, yaxis: { title: "input", autorange: "reversed", showgrid: false, type: "category" }, margin: { l: 44, r: 50, t: 6, b: 36 } };
  const size = matrix.length;
  draw(id, [trace], layout, `${words} of ${size} inputs: ${text(matrix[0][0], 4)} for the first input, ${text(matrix[0][1], 4)} for the first two`);
}

function along(id, names, values, word, axis) {
  const style = { color: colour("accent"), width: 2 };
  const hover = { mode: "lines+markers", hoverinfo: "all", hovertemplate: `%{x}: ${word} %{y:.4g}<extra></extra>` };
  const layout = { xaxis: { title: "layer", type: "category", tickangle: -45, nticks: 12 }, yaxis: { title: word, ...axis } };
  draw(id, [line(names, values, style, hover)], layout, `${word} after each layer, from ${text(values[0], 4)} to ${text(values.at(-1), 4)}`);
}
