"""Search space of the constants that muP leaves free: initial sizes and rates of single roles.

A rule fixes how a tensor scales with the size, not its constant. The constants are found at the
base and stay the same at every size, because a plan multiplies the values of the base:

    init_scale.KEY   factor of the initial size of the tensors with this key
    lr.KEY           their learning rate at the base

A multiplier m in front of a tensor W is such a pair and no third constant. With an update of degree
d in the gradient (0 for Adam, Lion and Muon, 1 for SGD), y = m W x trains as y = V x with V = m W:

    init(V) = m init(W),   lr(V) = m^(1 + d) lr(W)

so the pairs (init_scale, lr) of a role contain every multiplier (S0 1.2.1; eps is not part of it).
A temperature of attention is the constant of the query projections.
"""

from difflib import get_close_matches

from orderone.core.errors import InputError
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.core.roles import ROLES
from orderone.sweeping.space import LogGrid, log_grid

LOWEST = 0.25
HIGHEST = 4.0
NUMBER = 5


def multipliers(
    *keys: Name,
    low: Number = LOWEST,
    high: Number = HIGHEST,
    n: Count = NUMBER,
    lr: Number | None = None,
) -> dict[str, LogGrid]:
    """Return a search space of constants that stay the same at every size.

    For example, {"lr": o1.log_grid(1e-3, 1e-1, 7), **o1.multipliers("embedding", "readout")} is a
    space of `sweep`.

    Args:
        keys: Roles (embedding, hidden, readout, vector), names or patterns of tensors, such as
            "*.q_proj.weight" for the temperature of attention.
        low: Smallest factor.
        high: Largest factor.
        n: Number of factors, at equal ratios.
        lr: Learning rate of the base; if there is one, the rates of these keys are part of the
            space too, from `low` to `high` times this rate.
    """
    if not keys:
        raise InputError(
            f"multipliers: expected roles ({', '.join(ROLES)}) or patterns of tensors, got none",
            argument="keys",
        )
    factors = log_grid(real(low, "low", above=0), real(high, "high", above=0), n)
    space: dict[str, LogGrid] = {}
    for key in keys:
        _check_key(key)
        space[f"init_scale.{key}"] = factors
        if lr is not None:
            rate = real(lr, "lr", above=0)
            space[f"lr.{key}"] = log_grid(rate * factors[0], rate * factors[-1], n)
    return space


def _check_key(key: object) -> None:
    """Raise an InputError for a word that is neither a role nor can be the name of a tensor."""
    if not isinstance(key, str):
        raise InputError(
            f"multipliers: expected names of roles or tensors, got {type(key).__name__}",
            "wrong-type",
            argument="keys",
        )
    if key in ROLES or any(letter in key for letter in ".*?["):
        return
    near = get_close_matches(key, ROLES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"multipliers: expected a role ({', '.join(ROLES)}), or the name or a pattern of tensors"
        f" such as '*.q_proj.weight', got {key!r}{hint}",
        "unknown-name",
        argument="keys",
    )
