// Questions to the server. Only the newest question of each view counts: it cancels the one before, here and on the server.
const QUICK = 200; // ms: if answers are faster than this, ask while a slider moves
const PAUSE = 250; // ms: otherwise ask after the slider has rested for this long
const REPORT = 1000; // ms between reports of the time that a calculation has taken

export class Question {
  // show(answer), fail(message); busy(true or false) and report(words) while it runs
  constructor(view, { show, fail, busy, report }) {
    Object.assign(this, { view, show, fail, busy, report, took: 0, timer: 0, asked: null, pending: null, running: null });
  }

  ask(query) {
    this.pending = new URLSearchParams(query).toString();
    clearTimeout(this.timer);
    if (this.running || this.took > QUICK) this.timer = setTimeout(() => this.send(), PAUSE);
    else this.send();
  }

  async send() {
    clearTimeout(this.timer);
    if (this.pending === null) return;
    this.running?.abort();
    const running = (this.running = new AbortController());
    const [query, start] = [this.pending, performance.now()];
    this.pending = null;
    this.busy(true);
    const clock = setInterval(() => this.report(`computing, ${Math.round((performance.now() - start) / 1000)} s`), REPORT);
    try {
      const response = await fetch(`/api/${this.view}?${query}`, { signal: running.signal });
      const answer = await response.json();
      if (response.ok) this.show(answer);
      else this.fail(answer.error);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error instanceof TypeError ? null : String(error));
    } finally {
      clearInterval(clock);
      if (running === this.running) this.end(performance.now() - start);
    }
  }

  end(took) {
    Object.assign(this, { took, running: null });
    this.busy(false);
    this.report("");
    if (this.pending !== null && took <= QUICK) this.send();
  }
}
