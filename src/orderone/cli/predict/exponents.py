"""`orderone predict exponents`: powers of the width, and the constraints that limit them."""

import json as json_format
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import tyro

from orderone import rules
from orderone.cli import show
from orderone.cli.exit_codes import NEGATIVE
from orderone.cli.help import Help
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError, one_of
from orderone.core.exact import power
from orderone.theory.exponents import (
    Alignment,
    Attention,
    Parameterization,
    Solution,
    Verdict,
    gauge,
    read_alignment,
    rms,
    solve,
    stability,
)

HELP = Help(
    example="orderone predict exponents --rule mup --optimizer adam --alignment full",
    groups={
        "Rule": ("rule", "optimizer", "gauge_name", "constraint"),
        "Alignment": ("alignment", "rates"),
        "Network": ("depth", "norm", "tied", "heads", "score_power", "qk_norm"),
        "Output": ("json",),
    },
)
HEADS = {"more": 0, "larger": 1}


def exponents(
    rule: str = "mup",
    optimizer: str = "adam",
    alignment: str | None = None,
    rates: str | None = None,
    depth: int = 3,
    norm: bool = False,
    tied: bool = False,
    heads: str | None = None,
    score_power: str | None = None,
    qk_norm: bool = False,
    gauge_name: Annotated[str, tyro.conf.arg(name="gauge")] = "paper",
    constraint: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    json: bool = False,
) -> None:
    """Print powers of the width: multipliers, initial sizes, the largest stable learning rates,
    predicted RMS, and whether training is stable.

    Exit code 1 means that no learning rates satisfy all constraints.

    Args:
        rule: sp, ntk, mup, mf, standard, neural-tangent, hybrid or maximal-update.
        optimizer: sgd, adam, adamw, sign, adafactor, muon, soap, shampoo, dion or another name of
            docs/own-optimizer.md, such as shampoo-1/2-in.
        alignment: full, no, worst, or JSON such as '{"omega": {"readout": 1}, "alpha": "3/4"}'.
            Default: the alignment that the rule's authors assume.
        rates: Choose the learning rates for this alignment, and judge them with --alignment.
            Default: the same as --alignment.
        depth: Number of hidden layers. It matters only for alignments given as JSON.
        norm: Add an RMSNorm after every layer but the last.
        tied: Use the transposed embedding as readout.
        heads: Add attention with growing width: "more" heads, or "larger" heads. Default: no
            attention.
        score_power: Divide attention scores by this power of the head size. Default: 1/2.
        qk_norm: Normalize queries and keys.
        gauge_name: folded (no multipliers), unit (initial variance 1) or paper.
        constraint: An additional constraint on the learning rates, in the printed gauge, such as
            "c_readout = 0". May be repeated.
        json: Print JSON instead of tables.
    """
    attention = _attention(heads, score_power, qk_norm)
    network = {"depth": depth, "norm": norm, "tied": tied}
    align = _alignment(rules.assumed_alignment(rule) if alignment is None else alignment)
    chosen_for = align
    if rates is not None:
        chosen_for = _alignment(rates)
    declared = rules.get(rule, optimizer)
    start = gauge(declared, gauge_name, optimizer, tied)
    solution = solve(start, optimizer, chosen_for, constraints=constraint, **network)
    if not solution:
        _show_conflict(solution, json)
        sys.exit(NEGATIVE)
    # The learning rates of `standard` are part of its definition.
    if declared.rates_for is None and rates is None and not constraint:
        p = start
        limited_by = dict.fromkeys(p.roles, "defined by the rule")
    else:
        p = start.with_c(solution.c)
        limited_by = {role: solution.why(role) for role in p.roles}
    sizes = _sizes(p, attention, optimizer, align, depth, norm)
    verdict = stability(p, optimizer, align, attention=attention, **network)
    settings = {
        "optimizer": optimizer,
        "alignment": align.name,
        "rates for": chosen_for.name,
        "gauge": gauge_name,
        **network,
        "attention": attention.text if attention else None,
        "constraints": list(constraint),
    }
    prediction = Prediction(p, settings, align, limited_by, sizes, verdict)
    if json:
        show.print_json(prediction.record())
    else:
        prediction.show()


def _attention(heads: str | None, score_power: str | None, qk_norm: bool) -> Attention | None:
    if heads is None:
        whose = "a network without attention"
        refuse_unused(whose, "add --heads", score_power=score_power, qk_norm=qk_norm)
        return None
    growth = HEADS[one_of(heads, HEADS, "heads")]
    return Attention(power=score_power or "1/2", growth=growth, qk_norm=qk_norm)


def _sizes(
    p: Parameterization,
    attention: Attention | None,
    optimizer: str,
    align: Alignment,
    depth: int,
    norm: bool,
) -> dict[str, dict[str, Fraction]]:
    """Return the predicted exponents of RMS at initialization and in training."""
    sizes = {
        "initialization": rms(p, depth, norm),
        "training": rms(p, depth, norm, training=True, optimizer=optimizer, alignment=align),
    }
    if attention:
        sizes["attention"] = attention.rms(p, align, optimizer=optimizer, depth=depth, norm=norm)
    return sizes


@dataclass(frozen=True)
class Prediction:
    """Exponents, sizes and stability of a rule."""

    p: Parameterization
    settings: Mapping[str, object]
    alignment: Alignment
    limited_by: Mapping[str, str]
    sizes: Mapping[str, Mapping[str, Fraction]]
    verdict: Verdict

    def record(self) -> dict[str, object]:
        """Return a dictionary for JSON."""
        align = self.alignment
        settings = {name.replace(" ", "_"): value for name, value in self.settings.items()}
        return {
            "rule": self.p.name,
            **settings,
            "alignment": {
                "name": align.name,
                "omega": align.omega,
                "alpha": align.alpha,
                "u": align.u,
            },
            "feasible": True,
            "a": self.p.a,
            "b": self.p.b,
            "c": self.p.c,
            "binding": self.limited_by,
            "rms": self.sizes,
            "stable": bool(self.verdict),
            "failed": [str(judged) for judged in self.verdict.failed],
            "notes": self.verdict.notes,
        }

    def show(self) -> None:
        """Print tables."""
        out = show.console()
        p = self.p
        rows = [(role, p.a[role], p.b[role], p.c[role], self.limited_by[role]) for role in p.roles]
        words = []
        for name, value in self.settings.items():
            if value not in (None, False, []):
                words.append(f"{name} {value}")
        title = f"{p.name}: {', '.join(words)}"
        out.print(show.table(title, ("role", "a", "b", "c", "c is limited by"), rows))
        out.print("multiplier n^-a, initial std n^-b, learning rate n^-c\n")
        for when, laws in self.sizes.items():
            out.print(show.table(f"RMS: {when}", ("quantities", "law"), _by_law(laws)))
        out.print(show.prose(str(self.verdict), out.width))


def _show_conflict(solution: Solution, json: bool) -> None:
    """Print the constraints that contradict each other."""
    if json:
        show.print_json({"feasible": False, "conflict": [str(k) for k in solution.conflict]})
    else:
        out = show.console()
        out.print(show.prose(str(solution), out.width))


def _alignment(text: str) -> Alignment:
    if not text.lstrip().startswith("{"):
        return read_alignment(text)
    try:
        mapping = json_format.loads(text, parse_float=str)  # "0.9" stays the exact 9/10
        return read_alignment(mapping)
    except json_format.JSONDecodeError as error:
        message = f"alignment: expected full, no, worst or JSON; got {text!r} ({error})"
        raise InputError(message, argument="alignment") from error


def _by_law(laws: Mapping[str, Fraction]) -> list[tuple[str, str]]:
    """Return one row for each power law, with all quantities that follow it."""
    groups: dict[Fraction, list[str]] = {}
    for quantity, exponent in laws.items():
        groups.setdefault(exponent, []).append(quantity)
    return [(_ranges(names), power(exponent)) for exponent, names in sorted(groups.items())]


def _ranges(names: list[str]) -> str:
    """Return names with ranges shortened: h1, h2, h3 becomes h1..h3."""
    runs: list[list[str]] = []
    for name in names:
        symbol = name.rstrip("0123456789")
        number = name.lstrip("hW'Δ")
        if runs and number.isdigit() and runs[-1][-1] == f"{symbol}{int(number) - 1}":
            runs[-1].append(name)
        else:
            runs.append([name])
    texts: list[str] = []
    for run in runs:
        texts.append(run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}")
    return ", ".join(texts)
