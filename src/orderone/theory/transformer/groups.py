"""The groups of parameters of S2, what users give for each, and what a strategy makes of the
learning rates.

    weights of G:  variance C_G / fan-in        S2 (1.25)-(1.33)      C_G and Lambda_G are of order
                                                one
    rate of G:     lambda_G = Lambda_G * (a power of the width)       S2 (1.99)-(1.116),
                   `theory.lr_factors`

AdamW divides a gradient by its size. S2 takes that size to leading order in the width, which its
factors undo, so that with them the tangent kernels of SGD and AdamW obey one recursion.
`relative_rates` says what Lambda_G another strategy amounts to: for AdamW, `standard` is Lambda_G =
1 / (the neural-tangent factor), far from order one.
"""

from collections.abc import Mapping
from typing import Any

from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.theory.scaling import lr_factors, strategy_power

ATTENTION = ("Q", "K", "V", "U")
GROUPS = ("patch", "WE", "class", "PE", *ATTENTION, "W", "X", "head", "head_bias")
WITH_VARIANCE = GROUPS[:-1]  # biases start at 0
DEFAULTS = dict.fromkeys(WITH_VARIANCE, 1.0) | {"PE": 0.25}
TABLE = dict.fromkeys(ATTENTION, "QKVU") | {
    "class": "PE"
}  # groups that share a line in tables of factors


def read_constants(C: Any) -> dict[str, float]:
    """All C_G, from those that are given."""
    return _read(C, WITH_VARIANCE, DEFAULTS, "C")


def read_rates(rates: Any) -> dict[str, float]:
    """All Lambda_G, from those that are given."""
    return _read(rates, GROUPS, dict.fromkeys(GROUPS, 1.0), "rates")


def _read(
    given: Any, groups: tuple[str, ...], default: Mapping[str, float], name: str
) -> dict[str, float]:
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(
            f"{name}: expected a mapping from groups to numbers, got {given!r}; give {name}={{'Q':"
            " 1.0}"
        )
    values = dict(default)
    for group, value in (given or {}).items():
        if group not in (*groups, "QKVU"):
            raise ValueError(
                f"{name}: expected groups out of {', '.join(groups)} or QKVU; got {group!r}"
            )
        number = real(value, f"{name}[{group!r}]", least=0)
        values.update(dict.fromkeys(ATTENTION if group == "QKVU" else (group,), number))
    return values


def relative_rates(
    strategy: Name,
    optimizer: Name = "adamw",
    n: Count = 768,
    n_in: Count = 768,
    n_out: Count = 1000,
    mlp: Number = 4,
) -> dict[str, float]:
    """Lambda_G of a strategy at width n: its factors in units of the neural-tangent ones.

    AdamW gradients shrink with the head, n^(-s/2) below it, so its factor n^(s/2) counts twice.
    """
    own, units = (
        lr_factors(name, optimizer, n, n_in, n_out, mlp) for name in (strategy, "neural-tangent")
    )
    lift = float(strategy_power(strategy) or 0) / 2 if optimizer != "sgd" else 0.0
    ratio = {
        group: own[TABLE.get(group, group)] / units[TABLE.get(group, group)] for group in GROUPS
    }
    return {
        group: value * (1 if group.startswith("head") else n**lift)
        for group, value in ratio.items()
    }
