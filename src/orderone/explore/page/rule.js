// The second tab: a parameterization, its exponents and its verdict.
import { Choice, Slider, Tick, element } from "./controls.js";
import { $, badge, colour, draw, line, list } from "./draw.js";
import { Panel } from "./panel.js";

const WIDTHS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
const MEANING = { h: "activations", "Δh": "change of activations in a step", "ΔW": "change of weights in a step", "h'": "gradients of activations", "W'": "gradients of weights" };
const ALIGNMENTS = {
  full: "full: updates align, weights do not",
  no: "no: nothing aligns",
  worst: "worst: updates and the readout's weights align",
};

export function ruleTab(choices) {
  const named = (names) => names.map((name) => [name, name]);
  const alignments = choices.alignment.map((name) => [name, ALIGNMENTS[name] ?? name]);
  const panel = new Panel("rule", {
    "rule-controls": [
      new Choice({ name: "rule", label: "rule", value: "mup", options: named(choices.rule.map(({ name }) => name)), example: "s=1/4" }),
      new Choice({ name: "optimizer", label: "optimizer", value: "adam", options: named(choices.optimizer) }),
      new Choice({ name: "alignment", label: "alignment in training", note: "for the verdict", value: "worst", options: alignments }),
      new Choice({ name: "rates", label: "alignment assumed", note: "for the learning rates", value: "", options: [["", "as in the paper of the rule"], ...alignments] }),
      new Choice({ name: "gauge", label: "gauge", note: "equivalent ways to write a rule", value: "paper", options: [["paper", "paper: as published"], ["folded", "folded: no multipliers"], ["unit", "unit: initial variance one"]] }),
      new Slider({ name: "layers", label: "hidden layers", value: 3, min: 1, max: 12, step: 1, whole: true }),
      new Tick({ name: "norm", label: "RMSNorm after every layer", value: "0" }),
    ],
  });
  let latest = null;
  const question = panel.question("rule", (answer) => {
    latest = answer;
    showVerdict(answer);
  });
  panel.refresh = () => {
    $("rule-python").textContent = `p = rules.get("${panel.get("rule")}", "${panel.get("optimizer")}"); theory.exponents.stability(p, "${panel.get("optimizer")}", "${panel.get("alignment")}")`;
    question.ask(panel.query("rule", "optimizer", "alignment", "rates", "gauge", "layers", "norm"));
  };
  panel.redraw = () => latest && growth(latest.sizes);
  return panel;
}

function showVerdict(answer) {
  badge($("stable"), answer.stable ? "STABLE" : "UNSTABLE");
  const failed = answer.judged.filter(({ holds }) => !holds);
  $("verdict").textContent = answer.stable ? "no quantity grows with the width" : failed.length === 1 ? "one condition fails" : `${failed.length} conditions fail`;
  list($("failed"), failed.map(({ text }) => text));
  list($("rule-notes"), answer.notes);
  list($("conditions"), answer.judged.map(({ holds, text }) => `${holds ? "holds" : "FAILS"} ${text}`));
  answer.judged.forEach(({ holds }, k) => $("conditions").children[k].classList.toggle("fails", !holds));
  $("roles").tBodies[0].replaceChildren(...answer.roles.map(roleRow));
  $("sizes").replaceChildren(...Object.entries(answer.sizes).map(([when, sizes]) => sizeTable(when, sizes)));
  growth(answer.sizes);
}

function roleRow({ role, a, b, c, why }) {
  const cells = [a, b, c].map((power) => element("td", { className: "number", textContent: power.replace("-", "−") }));
  return element("tr", { id: `role-${role}` }, [element("th", { scope: "row", textContent: role }), ...cells, element("td", { className: "why", textContent: why })]);
}

function sizeTable(when, sizes) {
  const last = Math.max(...sizes.map(({ first, laws }) => first + laws.length - 1));
  const layers = Array.from({ length: last + 1 }, (_, k) => k);
  const head = element("tr", {}, [element("th", { scope: "col", textContent: when === "training" ? "in training" : "at initialization" }), ...layers.map((k) => element("th", { scope: "col", textContent: k }))]);
  const rows = sizes.map(({ symbol, first, laws, exponents }) => element("tr", {}, [
    element("th", { scope: "row", textContent: symbol, title: MEANING[symbol] }),
    ...layers.map((k) => element("td", {}, k < first || k - first >= laws.length ? [] : [chip(laws[k - first], exponents[k - first])])),
  ]));
  return element("table", {}, [element("thead", {}, [head]), element("tbody", {}, rows)]);
}

function chip(law, exponent) {
  const [base, power] = law.replace(/[()]/g, "").replace("-", "−").split("^");
  const written = power ? [base, element("sup", { textContent: power })] : [base];
  return element("span", { className: `chip ${exponent > 0 ? "grows" : exponent < 0 ? "shrinks" : "one"}` }, written);
}

// The most important sizes, relative to the smallest width: flat lines are good.
function growth(sizes) {
  const of = (when, symbol) => sizes[when].find((each) => each.symbol === symbol)?.exponents ?? [];
  const lines = [
    ["change of the logits", of("training", "Δh").at(-1), "grows", 6], // lines may coincide: thinner ones are on top
    ["change of the last hidden layer", of("training", "Δh").at(-2), "accent", 4],
    ["change of the first layer", of("training", "Δh").at(0), "one", 2],
    ["logits at initialization", of("initialization", "h").at(-1), "text", 1],
  ].filter(([, exponent]) => exponent !== undefined);
  const traces = lines.map(([name, exponent, shade, width]) => line(WIDTHS, WIDTHS.map((n) => (n / WIDTHS[0]) ** exponent), { color: colour(shade), width }, {
    name, showlegend: true, hoverinfo: "all", hovertemplate: `${name}: × %{y:.3g} at width %{x}<extra></extra>`,
  }));
  const logs = lines.map(([, exponent]) => exponent * Math.log10(WIDTHS.at(-1) / WIDTHS[0]));
  const layout = {
    showlegend: true, legend: { orientation: "h", y: -0.2, x: 0 },
    xaxis: { title: "width", type: "log", tickvals: [64, 256, 1024, 4096, 16384], ticktext: ["64", "256", "1024", "4096", "16384"], range: [1.75, 4.3] },
    yaxis: { title: "size, relative to width 64", type: "log", range: [Math.min(-1, ...logs) - 0.15, Math.max(1, ...logs) + 0.15], tickformat: "~g", dtick: 1 },
  };
  draw("growth", traces, layout, lines.map(([name, exponent]) => `${name}: ${exponent === 0 ? "of order one" : `like width to the power ${exponent}`}`).join("; "));
}
