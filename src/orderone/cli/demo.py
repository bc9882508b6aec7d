"""`orderone demo`: the main job on embedded defaults, in under a minute."""

from collections.abc import Iterable
from itertools import combinations

from rich.progress import track

from orderone import rules
from orderone.cli import show
from orderone.core.exact import power
from orderone.theory.exponents import MATRIX_ROLES, equivalent, max_lr, rms, stability

S0_RULES = ("sp", "ntk", "mup", "mf")
SEEDS = 8


def demo() -> None:
    """Exponents and verdicts of every parameterization, then the same law measured on real networks."""
    out = show.console()
    out.print("Parameters n^-a W, initial std n^-b, learning rate n^-c. The rates c are derived, not typed in.\n")
    out.print(show.table("Exponents a, b, c for Adam", *_exponents()))
    out.print(show.table("Largest stable rates: c of embedding, hidden, readout", *_rates()))
    pairs = [(p, q) for p, q in combinations(rules.names(), 2) if equivalent(rules.get(p), rules.get(q))]
    out.print(f"The same training in another gauge: {', '.join(f'{p} = {q}' for p, q in pairs)}\n")
    out.print(show.table("Verdicts (Adam): is every change O(1) as the width grows?", *_verdicts()))
    names = track(rules.names(), "training networks of widths 64 to 1024", console=out, transient=True)
    with show.one_thread():
        measured = _measured(names)
    out.print(show.table("Change of the logits in one step of sign descent, on training tokens", *measured))
    out.print("Next: orderone predict exponents --help, orderone reproduce")


def _exponents():
    every = [rules.get(name) for name in rules.names()]
    rows = [(p.name, *(f"{p.a[role]} {p.b[role]} {p.c[role]}" for role in MATRIX_ROLES)) for p in every]
    return ("rule", *MATRIX_ROLES), rows


def _rates():
    settings = [(o, a) for o in ("sgd", "adam", "adafactor", "muon") for a in ("full", "no")]
    every = [rules.get(name) for name in S0_RULES]
    rows = [(*s, *(" ".join(map(str, max_lr(p, *s).values())) for p in every)) for s in settings]
    return ("optimizer", "align", *S0_RULES), rows


def _verdicts():
    rows = []
    for name in rules.names():
        p = rules.get(name)
        for alignment in ("full", "worst"):
            verdict = stability(p, "adam", alignment)
            reason = "; ".join(f"{j.condition.code} {j.condition.subject}: {power(-j.margin)}" for j in verdict.failed)
            remark = next((note.split(";")[0] for note in verdict.notes), "")
            rows.append((name, alignment, "STABLE" if verdict else "UNSTABLE", reason or remark))
    return ("rule", "alignment", "verdict", "because"), rows


def _measured(names: Iterable[str]):
    from orderone.gallery.experiment import judge
    from orderone.gallery.s0_table3 import CHANGE, measure

    rows = []
    for name in names:
        p = rules.get(name)
        predicted = rms(p, training=True, alignment="worst")[CHANGE]
        fit = measure(p, SEEDS, confidence=0.99).loc[CHANGE]
        interval = f"n^{fit.exponent:+.2f} [{fit.low:+.2f}, {fit.high:+.2f}]"
        rows.append((name, power(predicted), interval, judge(predicted, fit)))
    return ("rule", "predicted", "measured, widths 64 to 1024", "prediction"), rows
