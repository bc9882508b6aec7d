// The reader's choices: quantity, verdicts, names, step.
function quantityButton(name, quantity) {
  const verdicts = judged(quantity).map((row) => row.verdict);
  const worst = words.find((word) => verdicts.includes(word)) ?? "";
  const dot = element("span", { className: "dot" });
  dot.style.background = colourOf(worst);
  const tally = worst && worst !== "PASS" ? `${verdicts.filter((v) => v === worst).length} ${worst}` : worst;
  const button = element("button", { type: "button" }, [dot, name, element("span", { className: "tally", textContent: tally })]);
  button.setAttribute("role", "radio");
  button.setAttribute("aria-checked", String(quantity === state.quantity));
  button.addEventListener("click", () => change({ quantity }));
  return button;
}

function verdictButton(word) {
  const count = judged(state.quantity).filter((row) => (byWord[row.verdict] ? row.verdict : "") === word).length;
  const dot = element("span", { className: "dot" });
  dot.style.background = colourOf(word);
  const button = element("button", { type: "button" }, [dot, word || "not judged", element("span", { className: "tally", textContent: count })]);
  button.setAttribute("aria-pressed", String(!state.hidden.has(word)));
  button.addEventListener("click", () => {
    const hidden = new Set(state.hidden);
    hidden[hidden.has(word) ? "delete" : "add"](word);
    change({ hidden });
  });
  return button;
}

// Buttons are replaced, so the focus moves to the new button in the same place.
function replaceButtons(place, buttons) {
  const focused = [...place.children].indexOf(document.activeElement);
  place.replaceChildren(...buttons);
  place.children[focused]?.focus();
}

function change(choice) {
  Object.assign(state, choice);
  const unjudged = data.quantities.some((_, q) => judged(q).some((row) => !byWord[row.verdict]));
  replaceButtons($("quantities"), data.quantities.map(quantityButton));
  replaceButtons($("verdicts"), (unjudged ? [...words, ""] : words).map(verdictButton));
  showPanels();
  showTable();
}

function later(action, ms) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, ms);
  };
}

$("step").append(element("option", { value: "", textContent: "of the worst verdict" }));
$("step").append(...data.steps.map((step) => element("option", { value: String(step), textContent: String(step) })));
$("step").addEventListener("change", () => change({ step: $("step").value === "" ? null : Number($("step").value) }));
$("filter").addEventListener("input", later(() => change({ filter: $("filter").value.trim().toLowerCase() }), 120));

const redrawAll = () => {
  redraw();
  showLosses();
};
addEventListener("resize", later(redrawAll, 150));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("beforeprint", () => panels.forEach((panel) => stale.has(panel) && panel.isConnected && draw(panel)));

$("step").value = ""; // browsers restore choices on reload; the page starts from its defaults
$("filter").value = "";
change({});
showLosses();
