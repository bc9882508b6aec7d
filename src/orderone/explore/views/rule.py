"""A parameterization: exponents by role, limits of the learning rates, stability, and sizes."""

from fractions import Fraction

from orderone import rules
from orderone.core.exact import count, power
from orderone.explore.query import Query
from orderone.theory.exponents import Parameterization, gauge, read_alignment, rms, solve, stability
from orderone.theory.exponents.stability import Judged

MOST_LAYERS = 12
SIZES = ("h", "Δh", "ΔW", "h'", "W'")  # beginnings of the names in `rms`


def rule(query: Query) -> dict[str, object]:
    """Return exponents, verdict and sizes of a rule for this optimizer and alignment."""
    name = query.word("rule")
    optimizer = query.word("optimizer")
    alignment = query.word("alignment")
    rates = query.word("rates")
    depth = count(query.whole("layers"), "layers", most=MOST_LAYERS)
    norm = query.flag("norm")
    declared = rules.get(name, optimizer)
    start = gauge(declared, query.word("gauge"), optimizer)
    query.done()
    actual = read_alignment(alignment)
    assumed = read_alignment(rates or rules.assumed_alignment(name))
    solution = solve(start, optimizer, assumed, depth=depth, norm=norm)
    if declared.rates_for is None:  # the rule, such as `standard`, defines its learning rates
        p = start
        reasons = dict.fromkeys(p.roles, "the rule sets this learning rate")
    else:
        p = start.with_c(solution.c)
        reasons = {role: solution.why(role) for role in p.roles}
    verdict = stability(p, optimizer, actual, depth=depth, norm=norm)
    initial = rms(p, depth, norm)
    training = rms(p, depth, norm, training=True, optimizer=optimizer, alignment=actual)
    return {
        "name": p.name,
        "roles": [_role(p, role, why) for role, why in reasons.items()],
        "stable": bool(verdict),
        "title": verdict.title,
        "judged": [_judged(judged) for judged in verdict.judged],
        "notes": verdict.notes,
        "sizes": {"initialization": _sizes(initial), "training": _sizes(training)},
    }


def _role(p: Parameterization, role: str, why: str) -> dict[str, str]:
    return {"role": role, "a": str(p.a[role]), "b": str(p.b[role]), "c": str(p.c[role]), "why": why}


def _judged(judged: Judged) -> dict[str, object]:
    """Return the text of a condition without its first word, which says whether it holds."""
    return {"holds": judged.holds, "text": str(judged).split("  ", 1)[1]}


def _sizes(exponents: dict[str, Fraction]) -> list[dict[str, object]]:
    """Group by symbol: {symbol, first layer, one law and one exponent per layer}."""
    groups: dict[str, dict[int, Fraction]] = {symbol: {} for symbol in SIZES}
    for name, exponent in exponents.items():
        symbol = name.rstrip("0123456789")
        groups[symbol][int(name[len(symbol) :])] = exponent
    sizes: list[dict[str, object]] = []
    for symbol, layers in groups.items():
        if layers:
            laws = [power(exponent) for exponent in layers.values()]
            numbers = [float(exponent) for exponent in layers.values()]
            sizes.append(
                {"symbol": symbol, "first": min(layers), "laws": laws, "exponents": numbers}
            )
    return sizes
