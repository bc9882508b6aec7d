// The traces that orderone's pages draw; `scatter` is part of the core.
// `TRACES` in src/orderone/report/plotly_js.py lists them too.
"use strict";

const Plotly = require("plotly.js/lib/core");

Plotly.register([
  require("plotly.js/lib/bar"),
  require("plotly.js/lib/contour"),
  require("plotly.js/lib/heatmap"),
  require("plotly.js/lib/histogram"),
]);

module.exports = Plotly;
