"""`orderone demo`: the main jobs on embedded defaults, in a few minutes."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track

from orderone import rules
from orderone.cli import show
from orderone.core.exact import power
from orderone.theory.exponents import MATRIX_ROLES, equivalent, max_lr, rms, stability

if TYPE_CHECKING:
    from orderone.measure import Check

GPT2_BASE = {"n_embd": 768, "n_layer": 12, "n_head": 12}
GPT2_XL = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 1600,
    "n_layer": 48,
    "n_head": 25,
}
S0_RULES = ("sp", "ntk", "mup", "mf")
SEEDS = 8
CHECKED = {"mup": "report.html", "standard": "report-sp.html"}
CHECK = {"optimizer": "adamw", "lr": 3e-3, "steps": 4, "seeds": 3}
WIDTHS = [64, 128, 256, 512]
BATCH = (8, 32)  # small, so that it takes seconds
LAST_BLOCK = "transformer.h.1"
TUNED = "report-transfer.html"
SWEEP = {"steps": 80, "rule": ["mup", "standard"], "widths": [32, 64, 128, 256]}
RATES = (2**-12, 2**-6, 7)
TRIES = 3
TEXT = (4, 32)  # learning rates, seeds, texts and their length
TARGET = 2048


def demo() -> None:
    """The whole loop on small models, in a few minutes without a GPU: exponents, a plan, a check
    and a transfer study.

    Reports of the check and of the study are written into the current folder as HTML files.
    """
    out = show.console()
    out.print(
        "Parameters n^-a W, initial std n^-b, learning rate n^-c. The rates c are derived, not"
        " typed in.\n"
    )
    out.print(show.table("Exponents a, b, c for Adam", *_exponents()))
    out.print(show.table("Largest stable rates: c of embedding, hidden, readout", *_rates()))
    pairs = [
        (p, q) for p, q in combinations(rules.names(), 2) if equivalent(rules.get(p), rules.get(q))
    ]
    out.print(f"The same training in another gauge: {', '.join(f'{p} = {q}' for p, q in pairs)}\n")
    out.print(show.table("Verdicts (Adam): is every change O(1) as the width grows?", *_verdicts()))
    names = track(_derived(), "training networks of widths 64 to 1024", console=out, transient=True)
    with show.one_thread():
        measured = _measured(names)
    out.print(
        show.table(
            "Change of the logits in one step of sign descent, on training tokens", *measured
        )
    )
    _plan(out)
    with show.one_thread():
        _check(out)
        _transfer(out)
    out.print(
        "Next: orderone predict --help, orderone plan --help, orderone check --help, orderone sweep"
        " --help"
    )


def _plan(out: Console) -> None:
    """GPT-2 of 124 million parameters was tuned; what does the one of 1.5 billion need? Nothing is
    allocated."""
    from orderone.cli.plan import meta_model
    from orderone.planning import plan

    try:
        model = meta_model(GPT2_XL)
    except ValueError as error:
        out.print(f"no plan for GPT-2: {error}")
        return
    out.print(
        "\nA plan for an unmodified Hugging Face model: GPT-2, tuned at 124 M parameters, grown to"
        " 1.5 B\n"
    )
    print(
        plan(
            model,
            base=GPT2_BASE,
            rule="mup",
            optimizer="adamw",
            lr=3e-3,
            weight_decay=0.1,
            depth="completep",
        )
    )
    print()


def _check(out: Console) -> None:
    """A small GPT-2, trained for real: by muP, and as usual, with one learning rate for all tensors
    and widths."""
    try:
        checks = {rule: _checked(rule) for rule in CHECKED}
    except (ValueError, OSError) as error:
        out.print(f"no check of GPT-2: {error}")
        return
    out.print(
        "GPT-2 trained for real, by mup and as usual (standard, SP: one learning rate for all"
        " tensors and widths)\n"
    )
    out.print(show.table("How far 4 steps move the last block", *_moves(checks)))
    for check in checks.values():
        out.print(
            show.coloured(str(check).partition("\n\n")[0]), soft_wrap=True
        )  # without the table of modules
    _reports(out, checks)


def _checked(rule: str) -> "Check":
    from orderone.cli.check import run
    from orderone.cli.subject import own_model

    subject = own_model("gpt2", {"widths": WIDTHS, "depths": [2]}, None, 0, *BATCH)
    check = run(subject, rule=rule, **CHECK)
    if check.interrupted:  # half of it would show half the truth
        raise KeyboardInterrupt
    return check


def _moves(checks: "Mapping[str, Check]"):
    rows = []
    for rule, check in checks.items():
        records = check.frame.query(
            "module == @LAST_BLOCK and quantity == 'change' and step == step.max()"
        )
        sizes: Any = records.groupby("width")["rms"].mean()
        rows.append((rule, *(f"{sizes[width]:.2f}" for width in WIDTHS), check.verdict))
    return ("rule", *(f"width {width}" for width in WIDTHS), "verdict"), rows


def _reports(out: Console, checks: "Mapping[str, Check]") -> None:
    from orderone.report import write_html

    try:
        for rule, check in checks.items():
            write_html(check, CHECKED[rule], title=f"GPT-2 by {rule}")
    except (ImportError, OSError) as error:
        out.print(f"no report: {error}\n")
        return
    out.print(f"\nOpen {' and '.join(CHECKED.values())} in a browser: every module, every step\n")


def _transfer(out: Console) -> None:
    """Tune small GPTs, all of a width in one program: does the best learning rate stay where it
    is?"""
    from orderone.cli.sweep import settings_for
    from orderone.cli.tasks import Given, read_task
    from orderone.report import write_transfer
    from orderone.sweeping import log_grid, sweep

    out.print("Tuning small GPTs on the text of the Python standard library: a minute or three\n")
    try:
        setting = read_task("lm", "gpt", Given(batch=TEXT[0], length=TEXT[1]), "cpu")
        space = {"lr": log_grid(*RATES), "seed": range(TRIES)}
        study = sweep(setting.build, space, data=setting.data, device="cpu", **SWEEP).transfer()
    except (ValueError, OSError) as error:
        out.print(f"no transfer study: {error}")
        return
    out.print(show.coloured(f"{study}\n{settings_for(study, TARGET)}"), soft_wrap=True)
    try:
        write_transfer(study, TUNED, title=f"Transfer of {setting.name}")
    except (ImportError, OSError) as error:
        out.print(f"no page: {error}\n")
        return
    out.print(
        f"\nOpen {TUNED} in a browser: losses against learning rates, and where the best ones are\n"
    )


def _derived() -> list[str]:
    """The rules whose rates are derived. Those of `standard` are not, and its networks blow up."""
    return [name for name in rules.names() if rules.get(name).rates_for]


def _exponents():
    every = [rules.get(name) for name in rules.names()]
    rows = [
        (p.name, *(f"{p.a[role]} {p.b[role]} {p.c[role]}" for role in MATRIX_ROLES)) for p in every
    ]
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
            reason = "; ".join(
                f"{j.condition.code} {j.condition.subject}: {power(-j.margin)}"
                for j in verdict.failed
            )
            remark = next((note.split(";")[0] for note in verdict.notes), "")
            rows.append((name, alignment, "STABLE" if verdict else "UNSTABLE", reason or remark))
    return ("rule", "alignment", "verdict", "because"), rows


def _measured(names: Iterable[str]):
    from orderone.gallery.s0.table2 import Settings
    from orderone.gallery.s0.table3 import CHANGE, exponents

    rows = []
    for name in names:
        p = rules.get(name)
        predicted = rms(p, training=True, alignment="worst")[CHANGE]
        fit = exponents(p, Settings(SEEDS), confidence=0.99).loc[CHANGE]
        interval = f"n^{fit.exponent:+.2f} [{fit.low:+.2f}, {fit.high:+.2f}]"
        rows.append(
            (
                name,
                power(predicted),
                interval,
                "holds" if fit.low <= predicted <= fit.high else "FAILS",
            )
        )
    return ("rule", "predicted", "measured, widths 64 to 1024", "prediction"), rows
