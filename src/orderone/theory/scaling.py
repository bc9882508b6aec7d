"""Scaling strategies of S2 as absolute powers of the dimensions, for each group of tensors.

With s = 0 for neural-tangent, 1/2 for hybrid and 1 for maximal-update (S2 footnotes 8 and 26,
erratum S2.9):

    group      initial std  SGD factor   AdamW factor             S2
    patch      n_in^-1/2    n^s / n_in   n^((s-1)/2) / n_in       (1.99), (1.108)
    WE, PE     1            n^s          n^((s-1)/2)              (1.99)-(1.100), (1.108)-(1.109)
    QKVU       n^-1/2       n^s / n      n^(s/2) n^-3/2           (1.101)-(1.104), (1.110)-(1.113)
    W          n^-1/2       n^s / n      n^(s/2) / (n sqrt(M n))  (1.105), (1.114), erratum S2.3
    X          (M n)^-1/2   n^s / (M n)  n^(s/2) / (M n sqrt(n))  (1.106), (1.115), erratum S2.3
    head       n^-(1+s)/2   1 / n        1 / (n sqrt(n_out))      (1.107), (1.116), (1.34)
    head_bias  0            1            n_out^-1/2               (1.107), (1.116)

M is the ratio of the MLP's width to n. In short, the AdamW factor of a matrix is
n^(s/2) / (fan_in sqrt(fan_out)). `standard` starts like neural-tangent and uses the factor 1
everywhere (Table II.1.E). Any other s between 0 and 1 is a strategy too: "s=1/4".

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from fractions import Fraction

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count, exact
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real

STRATEGIES: dict[str, Fraction | None] = {
    "standard": None,
    "neural-tangent": Fraction(0),
    "hybrid": Fraction(1, 2),
    "maximal-update": Fraction(1),
}
GROUPS = ("patch", "WE", "PE", "QKVU", "W", "X", "head", "head_bias")
LARGEST_RATIO = 1e6  # of the width of an MLP and n
LANGUAGE_STD = 0.02  # initial standard deviation of every tensor of BART and R2C2, S2 II.2.C
_ADAPTIVE = ("adamw", "adam", "sign")
_BETWEEN = "s="


def is_strategy(name: Name) -> bool:
    """Return whether `name` is a strategy of S2 or has the form "s=1/4"."""
    return name in STRATEGIES or name.startswith(_BETWEEN)


def strategy_power(strategy: Name) -> Fraction | None:
    """Return the s of a strategy, by its name or as "s=1/4"; None for `standard`."""
    if not (isinstance(strategy, str) and strategy.startswith(_BETWEEN)):
        return STRATEGIES[one_of(strategy, STRATEGIES, "strategy")]
    s = exact(strategy.removeprefix(_BETWEEN), "strategy")
    if not 0 <= s <= 1:
        raise InputError(
            "strategy: expected s between 0 (neural-tangent) and 1 (maximal-update), got"
            f" {strategy!r}",
            argument="strategy",
        )
    return s


def lr_factors(
    strategy: Name,
    optimizer: Name = "adamw",
    n: Count = 768,
    n_in: Count = 768,
    n_out: Count = 1000,
    mlp: Number = 4,
) -> dict[str, float]:
    """Return the relative learning rate of every group of a Transformer of width n."""
    return {
        group: group_rate(strategy, group, fan_in, fan_out, optimizer)
        for group, (fan_in, fan_out) in _fans(n, n_in, n_out, mlp).items()
    }


def init_std(
    strategy: Name, n: Count = 768, n_in: Count = 768, n_out: Count = 1000, mlp: Number = 4
) -> dict[str, float]:
    """Return the initial standard deviation of every group, for constants C_G = 1."""
    return {
        group: group_std(strategy, group, fan_in)
        for group, (fan_in, _) in _fans(n, n_in, n_out, mlp).items()
    }


def n_rescale(strategy: Name, n: Count = 768) -> float:
    """Return N_rescale = n^-(1+s)/2, the factor of a tied head: S2 (1.24), (1.82), erratum S2.9."""
    s = strategy_power(strategy) or Fraction(0)
    return count(n, "n") ** -float((1 + s) / 2)


def language_constants(n: Count = 1024, mlp: Number = 4) -> dict[str, float]:
    """Return the constants C_G for which every tensor starts at the standard deviation 0.02.

    C is 0.02^2 times the fan-in: S2 II.2.C has .4096 and C_X = 1.6384 for n = 1024. For words and
    positions it is 0.02^2 (erratum S2.8).
    """
    square = LANGUAGE_STD**2
    width = count(n, "n")
    inner = _ratio(mlp) * width
    return {
        "WE": square,
        "PE": square,
        **dict.fromkeys(("Q", "K", "V", "U", "W", "head"), square * width),
        "X": square * inner,
    }


def vision_constants(mlp: Number = 4) -> dict[str, float]:
    """Return the constants C_G of the Vision Transformer: S2 II.1.C.

    Xavier's variance is 2 / (fan_in + fan_out), and queries, keys and values are one tensor. `mlp`
    is the width of the MLP divided by n.
    """
    mlp = _ratio(mlp)
    return {
        "patch": 1.0,
        "PE": 0.02**2,
        **dict.fromkeys(("Q", "K", "V"), 1 / 2),
        "U": 1 / 3,
        "W": 2 / (mlp + 1),
        "X": 2 * mlp / (mlp + 1),
        "head": 1.0,
    }


def _ratio(mlp: Number) -> float:
    return real(mlp, "mlp", least=1 / LARGEST_RATIO, most=LARGEST_RATIO)


def _fans(n: Count, n_in: Count, n_out: Count, mlp: Number) -> dict[str, tuple[Number, Number]]:
    """Return fan-in and fan-out of every group."""
    n = count(n, "n")
    n_in = count(n_in, "n_in")
    n_out = count(n_out, "n_out")
    mlp = _ratio(mlp)
    return {
        "patch": (n_in, n),
        "WE": (1, n),
        "PE": (1, n),
        "QKVU": (n, n),
        "W": (n, mlp * n),
        "X": (mlp * n, n),
        "head": (n, n_out),
        "head_bias": (1, n_out),
    }


def group_rate(
    strategy: Name,
    group: Name,
    fan_in: Number,
    fan_out: Number,
    optimizer: Name = "adamw",
    width: Number | None = None,
) -> float:
    """Return the learning-rate factor of a tensor; lookups and biases have fan_in 1.

    `width` is n. Without it, n is the fan-in of W and attention, and the fan-out of all others.
    """
    s = strategy_power(strategy)
    adaptive = one_of(optimizer, (*_ADAPTIVE, "sgd"), "optimizer") in _ADAPTIVE
    if s is None:
        return 1.0
    if width is not None:
        n = width
    elif group in ("QKVU", "W"):
        n = fan_in
    else:
        n = fan_out
    if group in ("head", "head_bias"):
        lift = 0
    else:
        lift = float(s)
    if adaptive:
        return n ** (lift / 2) / (fan_in * fan_out**0.5)
    return n**lift / fan_in


def group_std(strategy: Name, group: Name, fan_in: Number) -> float:
    """Return the initial standard deviation of a tensor with this fan-in."""
    s = strategy_power(strategy) or Fraction(0)
    if group == "head_bias":
        return 0.0
    if group == "head":
        return fan_in ** -float((1 + s) / 2)
    return fan_in ** -float(Fraction(1, 2))
