(() => {
'use strict';
const figures = JSON.parse(document.getElementById('data').textContent);
figures.forEach(({ data, layout }, k) => {
  Plotly.newPlot(`figure-${k}`, data, layout, { responsive: true, displaylogo: false });
});
})();
