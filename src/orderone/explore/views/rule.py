"""A parameterization: its exponents by role, why rates are no larger, whether it is stable, and the
sizes it predicts."""

from fractions import Fraction
from typing import Any

from orderone import rules
from orderone.core.exact import count, power
from orderone.explore.query import Query
from orderone.theory.exponents import Parameterization, gauge, read_alignment, rms, solve, stability
from orderone.theory.exponents.stability import Judged

MOST_LAYERS = 12
SIZES = ("h", "Δh", "ΔW", "h'", "W'")  # as names begin


def rule(query: Query) -> dict[str, Any]:
    name = query.word("rule")
    optimizer = query.word("optimizer")
    alignment = query.word("alignment")
    rates = query.word("rates")
    network: dict[str, Any] = {
        "depth": count(query.whole("layers"), "layers", most=MOST_LAYERS),
        "norm": query.flag("norm"),
    }
    declared = rules.get(name, optimizer)
    shown = gauge(declared, query.word("gauge"), optimizer)
    query.done()
    actual = read_alignment(alignment)
    solution = solve(
        shown, optimizer, read_alignment(rates or rules.assumed_alignment(name)), **network
    )
    given = declared.rates_for is None  # `standard` is defined by its rates
    p = shown if given else shown.with_c(solution.c)
    verdict = stability(p, optimizer, actual, **network)
    training = rms(p, **network, training=True, optimizer=optimizer, alignment=actual)
    return {
        "name": p.name,
        "roles": [
            _role(p, role, "given by the rule" if given else solution.why(role)) for role in p.roles
        ],
        "stable": bool(verdict),
        "title": verdict.title,
        "judged": [_judged(j) for j in verdict.judged],
        "notes": verdict.notes,
        "sizes": {"initialization": _sizes(rms(p, **network)), "training": _sizes(training)},
    }


def _role(p: Parameterization, role: str, why: str) -> dict[str, str]:
    return {"role": role, "a": str(p.a[role]), "b": str(p.b[role]), "c": str(p.c[role]), "why": why}


def _judged(j: Judged) -> dict[str, Any]:
    """The verdict's own words, without the one that says whether it holds."""
    return {"holds": j.holds, "text": str(j).split("  ", 1)[1]}


def _sizes(exponents: dict[str, Fraction]) -> list[dict[str, Any]]:
    """By symbol, then by layer: {symbol, first layer, exponents as words and as numbers}."""
    groups: dict[str, dict[int, Fraction]] = {symbol: {} for symbol in SIZES}
    for name, exponent in exponents.items():
        symbol = name.rstrip("0123456789")
        groups[symbol][int(name[len(symbol) :])] = exponent
    return [
        {
            "symbol": symbol,
            "first": min(found),
            "laws": [power(e) for e in found.values()],
            "exponents": [*map(float, found.values())],
        }
        for symbol, found in groups.items()
        if found
    ]
