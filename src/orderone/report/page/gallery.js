// The reader's choices (theme, verdicts, papers), and the current entry in the contents.
const articles = [...document.querySelectorAll("article")];
const buttons = [...document.querySelectorAll("#filters button")];
const pressed = (name) => new Set(buttons.filter((b) => b.dataset[name] && b.getAttribute("aria-pressed") === "true").map((b) => b.dataset[name]));

function filter() {
  const [verdicts, papers] = [pressed("verdict"), pressed("paper")];
  const anyPaper = !buttons.some((b) => b.dataset.paper);
  const visible = new Set(articles.filter((a) => verdicts.has(a.dataset.verdict) && (anyPaper || papers.has(a.dataset.paper))).map((a) => a.id));
  for (const node of document.querySelectorAll("[data-entry]")) node.hidden = !visible.has(node.dataset.entry);
  for (const node of document.querySelectorAll("[data-group]")) node.hidden = !node.querySelector("[data-entry]:not([hidden])");
  $("none").hidden = visible.size > 0;
  $("count").textContent = visible.size < articles.length ? `${visible.size} of ${articles.length} entries shown` : "";
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    filter();
  });
}

// A link to an entry that a filter hides resets the filters.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target?.hidden) return;
  buttons.forEach((button) => button.setAttribute("aria-pressed", "true"));
  filter();
  target.scrollIntoView();
}

const links = new Map([...document.querySelectorAll(".contents li a")].map((a) => [a.hash.slice(1), a]));
function mark(id) {
  const [link, list] = [links.get(id), document.querySelector(".contents")];
  if (!link) return;
  links.forEach((a) => a.removeAttribute("aria-current"));
  link.setAttribute("aria-current", "true");
  const [inner, outer] = [link.getBoundingClientRect(), list.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom) list.scrollTop += inner.top - outer.top - outer.height / 3;
}

const reading = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) mark(target.id);
}, { rootMargin: "-20% 0px -70% 0px" });
articles.forEach((article) => reading.observe(article));

// Print shows everything, in light colours.
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((d) => { d.open = true; });
  stale.forEach((plot) => plot.clientWidth && draw(plot));
});

addEventListener("hashchange", reveal);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
$("theme").addEventListener("click", nextTheme);
$("theme").hidden = false;
if ($("filters")) $("filters").hidden = false;
setTheme(remembered());
reveal();
