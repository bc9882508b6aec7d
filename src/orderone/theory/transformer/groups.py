"""The groups of parameters of S2, the constants of each, and what a strategy makes of the learning
rates.

    weights of G:  variance C_G / fan-in                              S2 (1.25)-(1.33)
    rate of G:     lambda_G = Lambda_G * (a power of the width)       S2 (1.99)-(1.116)

C_G and Lambda_G are of order one; the powers are those of `theory.lr_factors`.

AdamW divides a gradient by its size. S2 takes that size to leading order in the width, which its
factors undo, so that with them the tangent kernels of SGD and AdamW obey one recursion.
`relative_rates` says what Lambda_G another strategy amounts to: for AdamW, `standard` is
Lambda_G = 1 / (the neural-tangent factor), far from order one.
"""

from collections.abc import Mapping

from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.theory.scaling import lr_factors, strategy_power
from orderone.theory.transformer.inputs import ConstantsInput

ATTENTION = ("Q", "K", "V", "U")
GROUPS = ("patch", "WE", "class", "PE", *ATTENTION, "W", "X", "head", "head_bias")
WITH_VARIANCE = GROUPS[:-1]  # biases start at 0
DEFAULTS: dict[str, float] = dict.fromkeys(WITH_VARIANCE, 1.0) | {"PE": 0.25}
# groups that share a line in tables of factors
TABLE: dict[str, str] = dict.fromkeys(ATTENTION, "QKVU") | {"class": "PE"}


def read_constants(C: ConstantsInput) -> dict[str, float]:
    """Return all C_G; groups that `C` leaves out have the default."""
    return _read(C, WITH_VARIANCE, DEFAULTS, "C")


def read_rates(rates: ConstantsInput) -> dict[str, float]:
    """Return all Lambda_G; groups that `rates` leaves out have 1."""
    return _read(rates, GROUPS, dict.fromkeys(GROUPS, 1.0), "rates")


def _read(
    constants: ConstantsInput, groups: tuple[str, ...], default: Mapping[str, float], name: str
) -> dict[str, float]:
    if constants is not None and not isinstance(constants, Mapping):
        raise ValueError(
            f"{name}: expected a mapping from groups to numbers, got {constants!r}; give"
            f" {name}={{'Q': 1.0}}"
        )
    values = dict(default)
    for group, value in (constants or {}).items():
        if group not in (*groups, "QKVU"):
            raise ValueError(
                f"{name}: expected groups out of {', '.join(groups)} or QKVU; got {group!r}"
            )
        number = real(value, f"{name}[{group!r}]", least=0)
        members = ATTENTION if group == "QKVU" else (group,)
        for member in members:
            values[member] = number
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
    factors = lr_factors(strategy, optimizer, n, n_in, n_out, mlp)
    units = lr_factors("neural-tangent", optimizer, n, n_in, n_out, mlp)
    lift = 0.0
    if optimizer != "sgd":
        lift = float(strategy_power(strategy) or 0) / 2
    rates = {}
    for group in GROUPS:
        line = TABLE.get(group, group)
        rates[group] = factors[line] / units[line]
        if not group.startswith("head"):
            rates[group] *= n**lift
    return rates
