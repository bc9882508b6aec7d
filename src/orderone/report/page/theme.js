// Light, dark, or the system's theme. The media query of the dark style sheet switches it, so that print stays white.
const THEMES = { system: "screen and (prefers-color-scheme: dark)", light: "not all", dark: "screen" };
const $ = (id) => document.getElementById(id);
const cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function remembered() {
  try { return localStorage.getItem("orderone-theme"); } catch { return null; } // storage may be forbidden for files
}

function remember(theme) {
  try { localStorage.setItem("orderone-theme", theme); } catch { /* then the next page starts with the system's theme */ }
}

function setTheme(theme) {
  const chosen = Object.keys(THEMES).includes(theme) ? theme : "system";
  $("dark").media = THEMES[chosen];
  $("theme").textContent = `Theme: ${chosen}`;
  $("theme").dataset.theme = chosen;
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const theme = names[(names.indexOf($("theme").dataset.theme) + 1) % names.length];
  setTheme(theme);
  remember(theme);
  redraw();
}

// Defaults that plotly takes from the page's style sheet; a figure may override them.
function template() {
  const [text, quiet, grid, rule, card] = ["--text", "--quiet", "--grid", "--rule", "--card"].map(cssValue);
  const axis = {
    gridcolor: grid, linecolor: rule, zerolinecolor: rule, tickcolor: rule, zerolinewidth: 1, showline: true, ticks: "outside", ticklen: 4,
    automargin: true, title: { standoff: 10, font: { color: text, size: 14 } }, exponentformat: "power", minorloglabels: "none",
  };
  const bar = { outlinewidth: 0, thickness: 14, ticks: "outside", tickcolor: rule, ticklen: 4, title: { font: { color: text, size: 13 } } };
  const shaded = Object.fromEntries(["heatmap", "contour", "histogram2d", "surface"].map((type) => [type, [{ colorbar: bar, colorscale: "Viridis" }]]));
  const none = "rgba(0,0,0,0)";
  return {
    data: shaded,
    layout: {
      paper_bgcolor: none, plot_bgcolor: none, colorway: cssValue("--colours").split(",").map((c) => c.trim()),
      font: { family: cssValue("--sans"), size: 13, color: quiet }, title: { font: { size: 15, color: text }, x: 0, xref: "paper" },
      xaxis: axis, yaxis: axis, margin: { l: 56, r: 14, t: 14, b: 48 }, hovermode: "closest",
      hoverlabel: { bgcolor: card, bordercolor: rule, font: { color: text, family: cssValue("--sans") }, align: "left", namelength: -1 },
      legend: { bgcolor: none, font: { color: text } }, modebar: { bgcolor: none, color: quiet, activecolor: text },
      annotationdefaults: { font: { color: text }, arrowcolor: quiet }, shapedefaults: { line: { color: quiet } },
      coloraxis: { colorbar: bar }, polar: { bgcolor: none },
    },
  };
}
