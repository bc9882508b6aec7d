// The data of the page, and the format of numbers. Text reaches the page through textContent only.
const holder = document.getElementById("data");
const data = JSON.parse(holder.type === "application/gzip" ? await unpacked("data") : holder.textContent);
function sizesOf(differences) {
  let last = 0;
  return differences.map((x) => typeof x === "number" ? 10 ** ((last += x) / data.per_decade) : x === null ? null : 0);
}
data.rms = data.rms.map((quantities) => quantities.map((list) => list && sizesOf(list)));
const byWord = Object.fromEntries(data.verdicts.map((v) => [v.word, v]));
const words = data.verdicts.map((v) => v.word);
const rows = data.rows.map(([module, quantity, step, exponent, low, high, predicted, verdict, cause, role]) => (
  { module, quantity, step, exponent, low, high, predicted, verdict, cause, role }));
const state = { quantity: data.first, step: null, hidden: new Set(), filter: "" };

const $ = (id) => document.getElementById(id);
const colourOf = (verdict) => byWord[verdict]?.colour ?? data.unjudged;
const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(tag, properties = {}, children = []) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function badge(verdict) {
  const node = element("span", { className: "badge", textContent: verdict || "not judged" });
  node.style.background = colourOf(verdict);
  node.style.color = byWord[verdict]?.ink ?? "#000000";
  return node;
}

// One row per module: the first one, since rows are sorted worst first; then modules without a verdict, in model order.
function judged(quantity) {
  const byModule = new Map();
  for (const row of rows) {
    if (row.quantity !== quantity || (state.step !== null && row.step !== state.step)) continue;
    if (!byModule.has(row.module)) byModule.set(row.module, row);
  }
  data.modules.forEach((_, module) => {
    if (data.rms[module][quantity] && !byModule.has(module)) byModule.set(module, { module, quantity, verdict: "" });
  });
  return [...byModule.values()];
}

// An unknown verdict is filtered together with rows that were not judged.
const visible = (row) => !state.hidden.has(byWord[row.verdict] ? row.verdict : "")
  && data.modules[row.module].toLowerCase().includes(state.filter);

const minus = (text) => text.replace("-", "−");
const signed = (x) => {
  if (x == null) return "–";
  const rounded = Number(x.toFixed(2)) || 0; // not -0
  return minus((rounded < 0 ? "" : "+") + rounded.toFixed(2));
};
const plain = (x) => x == null ? "–" : minus(String(Number(x.toFixed(3))));
const interval = (row) => row.low == null && row.high == null ? "" : `[${signed(row.low)}, ${signed(row.high)}]`;
const sizeText = (x) => x == null ? "not finite" : minus(x.toPrecision(3));
const superscript = (n) => [...String(n)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
