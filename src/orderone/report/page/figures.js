addEventListener("beforeprint", () => stale.forEach((plot) => draw(plot)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
$("theme").addEventListener("click", nextTheme);
$("theme").hidden = false;
setTheme(remembered());
