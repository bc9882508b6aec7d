"""`orderone demo`: run the main functions on small models and embedded data."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.progress import track

from orderone import rules
from orderone.cli import show
from orderone.cli.help import Help
from orderone.core.exact import power
from orderone.theory.exponents import MATRIX_ROLES, equivalent, max_lr, rms, stability

if TYPE_CHECKING:
    from orderone.measure import Check

HELP = Help(example="orderone demo")

TableContent: TypeAlias = tuple[Sequence[str], list[tuple[str, ...]]]  # columns, rows

GPT2_BASE: dict[str, int] = {"n_embd": 768, "n_layer": 12, "n_head": 12}
GPT2_XL: dict[str, object] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 1600,
    "n_layer": 48,
    "n_head": 25,
}
S0_RULES = ("sp", "ntk", "mup", "mf")
SEEDS = 8
CHECKED = {"mup": "report.html", "standard": "report-sp.html"}
CHECK: dict[str, Any] = {"optimizer": "adamw", "lr": 3e-3, "steps": 4, "seeds": 3}
WIDTHS = [64, 128, 256, 512]
BATCH = (8, 32)  # texts, and bytes of a text: small, so that the check takes seconds
LAST_BLOCK = "transformer.h.1"
TUNED = "report-transfer.html"
SWEEP: dict[str, Any] = {
    "steps": 80,
    "rule": ["mup", "standard"],
    "widths": [32, 64, 128, 256],
    "init": "zero-residual",  # best for tied models in docs/choosing-the-start.md
}
RATES = (2**-12, 2**-6, 7)  # learning rates: first, last, number of values
TRIES = 3  # seeds
TEXT = (4, 32)  # texts in a batch, and bytes of a text
TARGET = 2048


def demo() -> None:
    """Run exponents, a plan, a check and a sweep on small models, in a few minutes without a GPU.

    The demo writes three HTML pages into the current folder: report.html, report-sp.html and
    report-transfer.html.
    """
    out = show.console()
    out.print(
        "A rule gives every tensor a multiplier n^-a, an initial std n^-b and a learning rate"
        " n^-c, n being the width. The exponents c are computed from a and b.\n"
    )
    out.print(show.table("Exponents a, b, c for Adam", *_exponents()))
    title = "Largest stable learning rates: c of embedding, hidden, readout"
    out.print(show.table(title, *_rates()))
    pairs = []
    for first, second in combinations(rules.names(), 2):
        if equivalent(rules.get(first), rules.get(second)):
            pairs.append(f"{first} = {second}")
    out.print(f"Rules that train the same function (another gauge): {', '.join(pairs)}\n")
    title = "Verdicts (Adam): do all sizes stay O(1) as the width grows?"
    out.print(show.table(title, *_verdicts()))
    names = track(_derived(), "training networks of widths 64 to 1024", console=out, transient=True)
    with show.one_thread():
        measured = _measured(names)
    title = "Change of the logits in one step of sign descent, on training tokens"
    out.print(show.table(title, *measured))
    _plan(out)
    with show.one_thread():
        _check(out)
        _transfer(out)
    out.print(
        "Next: orderone predict --help, orderone plan --help, orderone check --help, orderone sweep"
        " --help"
    )


def _plan(out: Console) -> None:
    """Plan GPT-2 with 1.5 billion parameters, tuned at 124 million; allocate nothing."""
    from orderone.cli.plan import meta_model
    from orderone.planning import plan

    try:
        model = meta_model(GPT2_XL)
    except ValueError as error:
        out.print(f"the plan of GPT-2 was skipped: {error}")
        return
    out.print(
        "\nA plan for an unmodified Hugging Face model: GPT-2 with 1.5 B parameters, tuned at 124"
        " M\n"
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
    """Check a small GPT-2 with muP, and with one learning rate for all tensors and widths."""
    try:
        checks = {rule: _checked(rule) for rule in CHECKED}
    except (ValueError, OSError) as error:
        out.print(f"the check of GPT-2 was skipped: {error}")
        return
    out.print(
        "Small GPT-2 models, trained with muP (mup), and with one learning rate for all tensors and"
        " widths (standard)\n"
    )
    out.print(show.table("RMS change of the last block's output after 4 steps", *_moves(checks)))
    for check in checks.values():
        summary = str(check).partition("\n\n")[0]  # without the table of modules
        out.print(show.prose(summary, out.width))
    _reports(out, checks)


def _checked(rule: str) -> "Check":
    from orderone.cli.check import run
    from orderone.cli.subject import known_model

    subject = known_model("gpt2", {"widths": WIDTHS, "depths": [2]}, None, 0, *BATCH)
    check = run(subject, rule=rule, **CHECK)
    if check.interrupted:  # a verdict from a part of the runs would mislead
        raise KeyboardInterrupt
    return check


def _moves(checks: "Mapping[str, Check]") -> TableContent:
    rows: list[tuple[str, ...]] = []
    for rule, check in checks.items():
        records = check.frame.query(
            "module == @LAST_BLOCK and quantity == 'change' and step == step.max()"
        )
        sizes: Any = records.groupby("width")["rms"].mean()
        cells = [f"{sizes[width]:.2f}" for width in WIDTHS]
        rows.append((rule, *cells, check.verdict))
    columns = [f"width {width}" for width in WIDTHS]
    return ("rule", *columns, "verdict"), rows


def _reports(out: Console, checks: "Mapping[str, Check]") -> None:
    from orderone.report import write_html

    try:
        for rule, check in checks.items():
            write_html(check, CHECKED[rule], title=f"GPT-2 with {rule}")
    except (ImportError, OSError) as error:
        out.print(f"reports were not written: {error}\n")
        return
    pages = " and ".join(CHECKED.values())
    out.print(f"\nOpen {pages} in a browser for every module and step\n")


def _transfer(out: Console) -> None:
    """Tune small GPTs and judge whether the best learning rate transfers."""
    from orderone.cli.sweep_results import settings_for
    from orderone.cli.tasks import DataOptions, read_task
    from orderone.report import write_transfer
    from orderone.sweeping import log_grid, sweep

    out.print("Tuning small GPTs on text of the Python standard library (one to three minutes)\n")
    try:
        data_options = DataOptions(batch=TEXT[0], length=TEXT[1])
        setting = read_task("lm", "gpt", data_options, "cpu")
        space = {"lr": log_grid(*RATES), "seed": range(TRIES)}
        study = sweep(setting.build, space, data=setting.data, device="cpu", **SWEEP).transfer()
    except (ValueError, OSError) as error:
        out.print(f"the sweep was skipped: {error}")
        return
    out.print(show.prose(str(study), out.width))
    out.print(show.coloured(str(settings_for(study, TARGET))), soft_wrap=True)
    try:
        write_transfer(study, TUNED, title=f"Transfer of {setting.name}")
    except (ImportError, OSError) as error:
        out.print(f"the report was not written: {error}\n")
        return
    out.print(f"\nOpen {TUNED} in a browser for losses and the best learning rate at every width\n")


def _derived() -> list[str]:
    """Return the rules whose learning rates are derived; `standard` is not, and diverges."""
    return [name for name in rules.names() if rules.get(name).rates_for]


def _exponents() -> TableContent:
    rows: list[tuple[str, ...]] = []
    for name in rules.names():
        p = rules.get(name)
        cells = [f"{p.a[role]} {p.b[role]} {p.c[role]}" for role in MATRIX_ROLES]
        rows.append((p.name, *cells))
    return ("rule", *MATRIX_ROLES), rows


def _rates() -> TableContent:
    rows: list[tuple[str, ...]] = []
    for optimizer in ("sgd", "adam", "adafactor", "muon"):
        for alignment in ("full", "no"):
            cells = []
            for name in S0_RULES:
                rates = max_lr(rules.get(name), optimizer, alignment)
                cells.append(" ".join(str(rate) for rate in rates.values()))
            rows.append((optimizer, alignment, *cells))
    return ("optimizer", "align", *S0_RULES), rows


def _verdicts() -> TableContent:
    rows: list[tuple[str, ...]] = []
    for name in rules.names():
        p = rules.get(name)
        for alignment in ("full", "worst"):
            verdict = stability(p, "adam", alignment)
            reasons = []
            for judged in verdict.failed:
                condition = judged.condition
                reasons.append(f"{condition.code} {condition.subject}: {power(-judged.margin)}")
            because = "; ".join(reasons)
            if not reasons and verdict.notes:
                because = verdict.notes[0].split(";")[0]
            if verdict:
                word = "STABLE"
            else:
                word = "UNSTABLE"
            rows.append((name, alignment, word, because))
    return ("rule", "alignment", "verdict", "because"), rows


def _measured(names: Iterable[str]) -> TableContent:
    from orderone.gallery.s0.table2 import Settings
    from orderone.gallery.s0.table3 import CHANGE, exponents

    rows: list[tuple[str, ...]] = []
    for name in names:
        p = rules.get(name)
        predicted = rms(p, training=True, alignment="worst")[CHANGE]
        fit = exponents(p, Settings(SEEDS), confidence=0.99).loc[CHANGE]
        interval = f"n^{fit.exponent:+.2f} [{fit.low:+.2f}, {fit.high:+.2f}]"
        if fit.low <= predicted <= fit.high:
            word = "holds"
        else:
            word = "FAILS"
        rows.append((name, power(predicted), interval, word))
    return ("rule", "predicted", "measured, widths 64 to 1024", "prediction"), rows
