// The page: tabs, the state in the address, and the colour scheme.
import { depthTab } from "./depth.js";
import { $ } from "./draw.js";
import { modelTab } from "./model.js";
import { phaseTab } from "./phase.js";
import { ruleTab } from "./rule.js";

const TABS = ["phase", "rule", "depth", "model"];
const LATER = 300; // ms: browsers limit how often an address may change

async function start() {
  const choices = await (await fetch("/api/choices?")).json();
  const panels = { phase: phaseTab(choices), rule: ruleTab(choices), depth: depthTab(choices), model: modelTab(choices) };
  const address = new URLSearchParams(location.search);
  let current = TABS.includes(address.get("tab")) ? address.get("tab") : TABS[0];
  let timer = 0;

  const all = Object.values(panels).flatMap((panel) => Object.values(panel.controls));
  for (const control of all) if (address.has(control.key)) control.value = address.get(control.key);

  function remember() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const state = new URLSearchParams({ tab: current });
      for (const control of all) if (control.value !== control.first) state.set(control.key, control.value);
      history.replaceState(null, "", `?${state}`);
    }, LATER);
  }

  function show(tab, focus = false) {
    current = tab;
    for (const each of TABS) {
      $(each).hidden = each !== tab;
      $(`tab-${each}`).setAttribute("aria-selected", String(each === tab));
      $(`tab-${each}`).tabIndex = each === tab ? 0 : -1;
    }
    if (focus) $(`tab-${tab}`).focus();
    panels[tab].refresh();
    panels[tab].redraw();
    remember();
  }

  for (const [tab, panel] of Object.entries(panels)) {
    for (const control of Object.values(panel.controls)) {
      control.change = () => {
        if (tab === current) panel.refresh(control.name);
        remember();
      };
    }
    $(`tab-${tab}`).addEventListener("click", () => show(tab));
  }
  document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -TABS.indexOf(current), End: TABS.length - 1 - TABS.indexOf(current) };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(TABS[(TABS.indexOf(current) + moves[event.key] + TABS.length) % TABS.length], true);
  });
  document.querySelectorAll("form").forEach((form) => form.addEventListener("submit", (event) => event.preventDefault()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => panels[current].redraw());
  show(current);
}

start();
