// Questions to the server. Of one kind, only the newest counts: what it replaces is dropped, here and there.
const QUICK = 200; // ms: an answer that comes as fast as that is worth asking for while a slider moves
const PAUSE = 250; // ms: otherwise the question waits until the slider rests
const TELL = 1000; // ms after which the wait is told in words

export class Question {
  // show(answer), fail(message); busy(true or false) and tell(words) while it runs
  constructor(view, { show, fail, busy, tell }) {
    Object.assign(this, { view, show, fail, busy, tell, took: 0, timer: 0, asked: null, pending: null, running: null });
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
    const clock = setInterval(() => this.tell(`computing, ${Math.round((performance.now() - start) / 1000)} s`), TELL);
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
    this.tell("");
    if (this.pending !== null && took <= QUICK) this.send();
  }
}
