// Controls: a slider with a number beside it, a choice, a tick box. Each has a place for its error message.
export function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

class Control {
  // `name`: argument of the server's query; `key`: its name in the page's address
  constructor({ name, key = name, label, note = "", value }) {
    Object.assign(this, { name, key, id: `set-${key}`, first: String(value), change: () => {} });
    this.error = element("p", { className: "error", id: `wrong-${key}` });
    this.label = element("label", { htmlFor: this.id }, [label, " ", element("small", { textContent: note })]);
    this.place = element("div", { className: "control" }, [this.label]);
  }

  describe(...inputs) {
    for (const input of inputs) input.setAttribute("aria-describedby", this.error.id);
    this.inputs = inputs;
    this.place.append(this.error);
  }

  complain(message) {
    this.error.textContent = message;
    for (const input of this.inputs) input.toggleAttribute("aria-invalid", false);
    if (message) for (const input of this.inputs) input.setAttribute("aria-invalid", "true");
  }
}

export class Slider extends Control {
  // `log`: logarithmic scale; `whole`: whole numbers only
  constructor({ min, max, step, log = false, whole = false, ...rest }) {
    super(rest);
    Object.assign(this, { min, max, log, whole });
    this.number = element("input", { id: this.id, type: "text", inputMode: "decimal", autocomplete: "off", spellcheck: false, value: this.first });
    this.range = element("input", { id: `slide-${this.key}`, type: "range", min: this.along(min), max: this.along(max), step: step ?? "any" });
    this.range.setAttribute("aria-label", `${this.label.textContent.trim()}, slider`);
    this.place.append(element("div", { className: "row" }, [this.range, this.number]));
    this.describe(this.number, this.range);
    this.range.addEventListener("input", () => this.moved());
    this.number.addEventListener("input", () => this.typed());
    this.typed();
  }

  along(value) {
    return this.log ? Math.log2(value) : value;
  }

  // Show the slider's value with as many digits as it resolves.
  moved() {
    const value = this.log ? 2 ** this.range.valueAsNumber : this.range.valueAsNumber;
    this.number.value = this.whole ? String(Math.round(value)) : String(Number(value.toFixed(4)));
    this.announce();
    this.change();
  }

  typed() {
    this.follow();
    this.announce();
    this.change();
  }

  follow() {
    const value = Number(this.value);
    if (this.value && Number.isFinite(value)) this.range.value = this.along(Math.min(Math.max(value, this.min), this.max));
  }

  announce() {
    this.range.setAttribute("aria-valuetext", this.value);
  }

  reach(max) {
    if (!(max > this.min && Number.isFinite(max)) || max === this.max) return;
    this.max = max;
    this.range.max = this.along(max);
    this.follow();
  }

  get value() {
    return this.number.value.trim();
  }

  set value(text) {
    this.number.value = text;
    this.typed();
  }
}

const OTHER = "…";

export class Choice extends Control {
  // `example`: if present, users may type other values; this one is the placeholder
  constructor({ options, example = null, ...rest }) {
    super(rest);
    this.select = element("select", { id: this.id });
    this.select.append(...options.map(([value, text]) => element("option", { value, textContent: text })));
    this.place.append(this.select);
    this.text = element("input", { type: "text", placeholder: example ?? "", autocomplete: "off", spellcheck: false, hidden: true, ariaLabel: `${this.label.textContent.trim()}, another` });
    if (example) {
      this.select.append(element("option", { value: OTHER, textContent: "another …" }));
      this.place.append(this.text);
    }
    this.describe(this.select, this.text);
    this.select.addEventListener("change", () => this.chosen());
    this.text.addEventListener("input", () => this.change());
    this.value = this.first;
  }

  chosen() {
    this.text.hidden = this.select.value !== OTHER;
    if (!this.text.hidden) {
      this.text.value ||= this.text.placeholder;
      this.text.focus();
      this.text.select();
    }
    this.change();
  }

  get value() {
    return this.select.value === OTHER ? this.text.value.trim() : this.select.value;
  }

  set value(text) {
    const listed = [...this.select.options].some((option) => option.value === text && text !== OTHER);
    this.select.value = listed ? text : OTHER;
    if (!listed && this.select.value !== OTHER) this.select.selectedIndex = -1; // an unknown name in the address
    if (!listed) this.text.value = text;
    this.text.hidden = this.select.value !== OTHER;
    this.change();
  }
}

export class Tick extends Control {
  constructor(options) {
    super(options);
    this.box = element("input", { id: this.id, type: "checkbox" });
    this.place.classList.add("tick");
    this.label.prepend(this.box);
    this.describe(this.box);
    this.box.addEventListener("change", () => this.change());
    this.value = this.first;
  }

  get value() {
    return this.box.checked ? "1" : "0";
  }

  set value(text) {
    this.box.checked = text === "1";
    this.change();
  }
}
