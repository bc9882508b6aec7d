// The third tab: networks of finite width, and the effect of their depth.
import { Choice, Slider, Tick, element } from "./controls.js";
import { $, badge, colour, draw, line, list, put, text } from "./draw.js";
import { Panel } from "./panel.js";

const MEANING = {
  gaussian: "initializations hardly differ: infinite-width theory applies",
  lognormal: "norms vary between initializations by a factor of order one",
  degenerate: "at this depth the network loses the information in its inputs",
};
const ALIASES = { residual: "factor", phi: "activation" }; // argument in a message -> name of its control

export function depthTab(choices) {
  const names = [...new Set([...choices.activation, ...choices.smooth])];
  const factor = new Slider({ name: "factor", label: "factor of residual branches", value: 1, min: 0.01, max: 1, log: true });
  const shape = new Slider({ name: "a", label: "scale a", note: "φ_s(x) = s φ(x/s), s = a √depth", value: 1, min: 0.25, max: 4, log: true });
  const panel = new Panel("depth", {
    "depth-controls": [
      new Slider({ name: "depth", label: "depth", note: "hidden layers", value: 64, min: 1, max: 1000, log: true, whole: true }),
      new Slider({ name: "width", label: "width", note: "neurons in a layer", value: 512, min: 4, max: 16384, log: true, whole: true }),
      new Choice({ name: "activation", key: "function", label: "activation", value: "relu", options: names.map((name) => [name, name]), example: "leaky-relu(0.2)" }),
      new Tick({ name: "shaped", label: "shaped", note: "more nearly linear in deeper networks", value: "0" }),
      shape,
      new Choice({ name: "skips", label: "skip connections", value: "none", options: [["none", "none"], ["scaled", "residual branches times 1/√depth"], ["factor", "residual branches times a factor"]] }),
      factor,
      new Slider({ name: "rho0", label: "correlation of the inputs", note: "ρ₀", value: 0.3, min: -1, max: 1, step: 0.01 }),
    ],
  });
  let latest = null;
  const question = panel.question("depth", (answer) => {
    latest = answer;
    showReport(panel, answer);
  }, ALIASES);
  panel.refresh = () => {
    factor.place.hidden = panel.get("skips") !== "factor";
    shape.place.hidden = panel.get("shaped") === "0" || panel.get("activation") === "relu";
    $("depth-python").textContent = python(panel);
    question.ask(panel.query("depth", "width", "activation", "shaped", "a", "skips", "factor", "rho0"));
  };
  panel.redraw = () => latest && densities(latest);
  return panel;
}

function python(panel) {
  const [name, shaped] = [panel.get("activation"), panel.get("shaped") === "1"];
  const smooth = shaped && name !== "relu";
  const skips = { none: "", scaled: ", residual=True", factor: `, residual=${panel.get("factor")}` }[panel.get("skips")];
  const kind = smooth ? "shaped-smooth" : shaped ? "shaped-relu" : name;
  return `theory.depth_report(${panel.get("width")}, ${panel.get("depth")}, "${kind}"${skips}, rho0=${panel.get("rho0")}${smooth ? `, phi="${name}", a=${panel.get("a")}` : ""})`;
}

function showReport(panel, answer) {
  badge($("regime"), answer.regime);
  $("regime-meaning").textContent = MEANING[answer.regime];
  list($("reasons"), answer.reasons);
  list($("remedies"), answer.remedies);
  $("remedies-part").hidden = !answer.remedies.length;
  $("caveat").textContent = answer.caveat && `Caveat: ${answer.caveat}.`;
  const { low, median, high } = answer.correlation;
  const rows = [
    ["norm_spread", "spread of log V", "standard deviation between initializations; V is the squared norm", answer.norm_spread],
    ["rho_median", "correlation", `of two inputs that start at ${panel.get("rho0")}; 5 % to 95 %: ${text(low)} to ${text(high)}`, median],
    ["growth_of_mean", "growth of the mean of V", "factor over all layers", answer.growth],
    ["ratio", "depth / width", "determines how much norms spread", answer.ratio],
  ];
  $("depth-numbers").replaceChildren(...rows.map(([id, name, meaning, value]) => {
    const place = element("dd", { id, className: "value" });
    put(place, value);
    return element("div", {}, [element("dt", {}, [name, element("small", { textContent: meaning })]), place]);
  }));
  densities(answer);
}

function densities({ norms, correlations }) {
  density("norms", norms, "log V", {});
  const logarithmic = correlations.scale !== "ρ";
  density("correlations", correlations, correlations.scale.replace("log10", "log₁₀"), logarithmic ? {} : { range: [-1.03, 1.03] });
}

function density(id, { x, y, quantiles }, name, axis) {
  const top = Math.max(...y) * 1.08;
  const fill = { fill: "tozeroy", fillcolor: colour("accent") + "33", hoverinfo: "all", hovertemplate: `${name} %{x:.4g}: density %{y:.3g}<extra></extra>` };
  const traces = [
    line(x, y, { color: colour("accent"), width: 2, shape: "hvh" }, fill),
    ...quantiles.map((q, k) => line([q, q], [0, top], { color: colour("text"), width: k === 1 ? 2 : 1, dash: k === 1 ? "solid" : "4px,3px" })),
  ];
  const layout = { xaxis: { title: name, ...axis }, yaxis: { title: "density", range: [0, top], rangemode: "tozero" } };
  const [low, middle, high] = quantiles.map((q) => text(q, 4));
  draw(id, traces, layout, `Density of ${name}: median ${middle}, from ${low} (5 %) to ${high} (95 %)`);
}
