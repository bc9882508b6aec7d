"""Groups of parameters of S2, their constants, and the learning rates of a strategy.

    weights of G:  variance C_G / fan-in                              S2 (1.25)-(1.33)
    rate of G:     lambda_G = Lambda_G * (a power of the width)       S2 (1.99)-(1.116)

C_G and Lambda_G are of order one; the powers are those of `theory.lr_factors`.

AdamW divides a gradient by its size. S2 uses this size to leading order in the width, and its
factors compensate it, so that the tangent kernels of SGD and AdamW obey the same recursion.
`relative_rates` returns the Lambda_G of another strategy: for AdamW, `standard` is
Lambda_G = 1 / (the neural-tangent factor), far from order one.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Mapping

from orderone.core.errors import InputError
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.theory.scaling import lr_factors, strategy_power
from orderone.theory.transformer.inputs import ConstantsInput

ATTENTION = ("Q", "K", "V", "U")
GROUPS = ("patch", "WE", "class", "PE", *ATTENTION, "W", "X", "head", "head_bias")
WITH_VARIANCE = GROUPS[:-1]  # biases start at 0
DEFAULTS: dict[str, float] = dict.fromkeys(WITH_VARIANCE, 1.0) | {"PE": 0.25}
# Groups that share a line in tables of factors.
TABLE: dict[str, str] = dict.fromkeys(ATTENTION, "QKVU") | {"class": "PE"}


def read_constants(C: ConstantsInput) -> dict[str, float]:
    """Return all C_G, with defaults for groups that are not in `C`."""
    return _read(C, WITH_VARIANCE, DEFAULTS, "C")


def read_rates(rates: ConstantsInput) -> dict[str, float]:
    """Return all Lambda_G, with 1 for groups that are not in `rates`."""
    return _read(rates, GROUPS, dict.fromkeys(GROUPS, 1.0), "rates")


def _read(
    constants: ConstantsInput, groups: tuple[str, ...], default: Mapping[str, float], name: str
) -> dict[str, float]:
    if constants is not None and not isinstance(constants, Mapping):
        raise InputError(
            f"{name}: expected a mapping from groups to numbers, such as {name}={{'Q': 1.0}}; got"
            f" {constants!r}",
            argument=name,
        )
    values = dict(default)
    for group, value in (constants or {}).items():
        if group not in (*groups, "QKVU"):
            raise InputError(
                f"{name}: expected the groups {', '.join(groups)} or QKVU; got {group!r}",
                "unknown-name",
                argument=name,
            )
        number = real(value, f"{name}[{group!r}]", least=0)
        if group == "QKVU":
            members = ATTENTION
        else:
            members = (group,)
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
    """Return Lambda_G of a strategy at width n: its factors in units of the neural-tangent ones.

    Gradients below the head shrink as n^(-s/2), and AdamW removes this, so n^(s/2) counts twice.
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
