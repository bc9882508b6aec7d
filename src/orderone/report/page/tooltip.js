// One tooltip for all panels. It may be larger than a panel, unlike a hover label of plotly.
const GAP = 14;

function showTooltip(event, facts) {
  const list = element("dl", {}, facts.filter(([, value]) => value !== "" && value != null).map(([name, value]) => (
    element("div", {}, [element("dt", { textContent: name }), element("dd", { textContent: value })]))));
  const box = $("tooltip");
  box.replaceChildren(list);
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = event.clientX + GAP + width > innerWidth ? event.clientX - GAP - width : event.clientX + GAP;
  const top = Math.min(event.clientY + GAP, innerHeight - height - 4);
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  $("tooltip").hidden = true;
}

// The `facts` of a point are made when the pointer is on it: a page may have a hundred thousand points.
function bindTooltip(plot) {
  plot.on("plotly_hover", ({ event, points }) => showTooltip(event, points[0].data.facts(points[0].pointNumber)));
  plot.on("plotly_unhover", hideTooltip);
}
