"""`orderone predict`: what theory says, without running a network."""

import json as json_format
from typing import Annotated

import tyro
from tyro.extras import SubcommandApp

from orderone import rules
from orderone.cli import show
from orderone.core.exact import power
from orderone.theory.exponents import Attention, InfeasibleError, gauge, rms, solve, stability
from orderone.theory.exponents.alignment import GivenAlignment, read_alignment

app = SubcommandApp()


@app.command
def exponents(
    rule: str = "mup",
    optimizer: str = "adam",
    alignment: str = "full",
    rates: str | None = None,
    depth: int = 3,
    norm: bool = False,
    tied: bool = False,
    heads: str | None = None,
    score_power: str = "1/2",
    gauge_name: Annotated[str, tyro.conf.arg(name="gauge")] = "paper",
    constraint: tuple[str, ...] = (),
    json: bool = False,
) -> None:
    """Exponents of width: multipliers, initial sizes, largest stable learning rates, predicted RMS, and a verdict.

    Args:
        rule: sp, ntk, mup, mf, neural-tangent, hybrid or maximal-update.
        optimizer: sgd, adam, adamw, sign, adafactor or muon.
        alignment: full, no, worst, or JSON such as '{"omega": {"readout": 1}, "alpha": "3/4"}'.
        rates: Choose the learning rates for this alignment, and judge them under --alignment.
        depth: Number of hidden layers.
        norm: RMSNorm after every layer but the last.
        tied: The readout is the transposed embedding.
        heads: Attention whose number of heads grows ("more") or whose head size grows ("larger"); none if left out.
        score_power: Attention scores are divided by this power of the head size.
        gauge_name: folded (no multipliers), unit (initial variance one) or paper.
        constraint: Extra constraints on the learning rates, such as "c_readout = 0".
        json: Print JSON instead of tables.
    """
    align = read_alignment(_alignment(alignment))
    start = rules.get(rule, optimizer)
    chosen_for = align if rates is None else read_alignment(_alignment(rates))
    solution = solve(start, optimizer, chosen_for, constraints=constraint, depth=depth, norm=norm, tied=tied)
    if not solution:
        raise InfeasibleError(f"{rule}: {solution}", solution.conflict)
    p = start.with_c(solution.c)
    why = {role: solution.why(role) for role in p.roles}
    attention = _attention(heads, score_power)
    verdict = stability(p, optimizer, align, depth=depth, norm=norm, tied=tied, attention=attention)
    sizes = {
        "initialization": rms(p, depth, norm),
        "training": rms(p, depth, norm, training=True, optimizer=optimizer, alignment=align),
    }
    if attention:
        sizes["attention"] = attention.rms(p, align)
    shown = gauge(p, gauge_name, optimizer)

    if json:
        show.print_json(
            {
                "rule": rule,
                "optimizer": optimizer,
                "alignment": {"name": align.name, "omega": align.omega, "alpha": align.alpha, "u": align.u},
                "gauge": gauge_name,
                "a": shown.a,
                "b": shown.b,
                "c": shown.c,
                "binding": why,
                "rms": sizes,
                "stable": bool(verdict),
                "failed": [str(j) for j in verdict.failed],
                "notes": verdict.notes,
            }
        )
        return
    out = show.console()
    title = f"{rule}, {optimizer}, {align.name} alignment, {gauge_name} gauge"
    rows = [(role, shown.a[role], shown.b[role], shown.c[role], why[role]) for role in shown.roles]
    out.print(show.table(title, ("role", "a", "b", "c", "c is stopped by"), rows))
    out.print("multiplier n^-a, initial std n^-b, learning rate n^-c\n")
    for when, laws in sizes.items():
        out.print(show.table(f"RMS: {when}", *_by_law(laws)))
    out.print(show.coloured(str(verdict)), soft_wrap=True)


def _alignment(text: str) -> GivenAlignment:
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json_format.loads(text, parse_float=str)  # "0.9" stays the exact 9/10
    except json_format.JSONDecodeError as error:
        raise ValueError(f"alignment: expected a name or JSON, got {text!r} ({error})") from error


def _attention(heads: str | None, score_power: str) -> Attention | None:
    if heads is None:
        return None
    growth = {"more": 0, "larger": 1}
    if heads not in growth:
        raise ValueError(f"heads: expected 'more' (their number grows) or 'larger' (their size grows); got {heads!r}")
    return Attention(power=score_power, growth=growth[heads])


def _by_law(laws: dict) -> tuple[tuple[str, str], list[tuple[str, str]]]:
    """One line for each power law, with all quantities that follow it."""
    groups: dict = {}
    for quantity, exponent in laws.items():
        groups.setdefault(exponent, []).append(quantity)
    lines = [(", ".join(names), power(exponent)) for exponent, names in sorted(groups.items())]
    return ("quantities", "law"), lines
