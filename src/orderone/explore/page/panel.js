// A tab: its controls, their values, and the places of answers and error messages.
import { Question } from "./ask.js";

const $ = (id) => document.getElementById(id);
const status = (words) => {
  $("status").textContent = words;
};

export class Panel {
  constructor(id, places) {
    this.id = id;
    this.controls = Object.fromEntries(Object.values(places).flat().map((control) => [control.name, control]));
    for (const [place, controls] of Object.entries(places)) $(place).append(...controls.map((control) => control.place));
  }

  get(name) {
    return this.controls[name].value;
  }

  query(...names) {
    return Object.fromEntries(names.map((name) => [name, this.get(name)]));
  }

  // `aliases`: argument in a message of the library -> name of its control
  question(view, show, aliases = {}) {
    const places = document.querySelectorAll(`#${this.id} [data-view="${view}"], #${this.id}[data-view="${view}"]`);
    const mark = (name, on) => places.forEach((place) => place.classList.toggle(name, on));
    return new Question(view, {
      show: (answer) => {
        $("lost").hidden = true;
        this.complain(view, null);
        mark("stale", false);
        show(answer);
      },
      fail: (message) => {
        mark("stale", true);
        if (message === null) this.lost();
        else this.complain(view, message, aliases);
      },
      busy: (on) => mark("busy", on),
      report: status,
    });
  }

  // Show a message beside the control that it names; it must not remove a message of another view.
  complain(view, message, aliases = {}) {
    for (const control of Object.values(this.controls)) if (control.complaint === view) Object.assign(control, { complaint: null }).complain("");
    if (message === null) return;
    const named = message.match(/^(?:unknown )?([\w-]+)/)?.[1];
    const control = this.controls[aliases[named] ?? named] ?? Object.values(this.controls)[0];
    control.complaint = view;
    control.complain(message);
  }

  lost() {
    $("lost").textContent = "The explorer has ended. Start it again with: orderone explore";
    $("lost").hidden = false;
  }
}
