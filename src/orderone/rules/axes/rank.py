"""Rank of an adapter (LoRA): factors of its two matrices.

    y = W x + s B A x,    A: r x n,    B: m x r,    W frozen,    s = alpha r^-gamma

gamma = 1 is LoRA (Hu et al. 2021, arXiv:2106.09685), 1/2 is rsLoRA (Kalajdzievski 2023,
arXiv:2312.03732), 0 a constant multiplier; alpha may depend on r too. One of A and B starts at
zero.

**mup.** The rank is the width of a network with one hidden layer: A is its `embedding` (fan-in n
does not grow with r), B its `readout`. The linear program gives

    A    initial size 1, Adam's rate 1
    B    initial size and Adam's rate 1 / (r s): s B A x must not grow if all r terms align

where 1/s compensates the multiplier that the forward code already has. So the rates of LoRA do not
depend on the rank; rsLoRA's B learns with r^-1/2, and with a constant multiplier with r^-1. This
holds for a random A as for a random B.

**mua.** Maximal-Update Adaptation (Chen, Villar & Hayou 2026, arXiv:2602.06204) uses one rate for A
and B. Random A: the product of two updates, s r lr^2, is of order one for

    lr ~ (r s)^-1/2 = r^-(1 - gamma)/2

Random B and a multiplier that does not depend on the rank: lr does not depend on it either.
Initial sizes stay. For LoRA's s = alpha / r both rules agree. For other multipliers the first
update, which is linear in lr (B moves while A is random), grows with mua like (r s)^1/2.
"""

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import Name, Number
from orderone.core.roles import Role
from orderone.rules.axes.width import width_factors
from orderone.rules.factors import Factors, Growth
from orderone.rules.parameterizations import get
from orderone.theory.exponents.updates import LawInput, update_law

RANK_RULES = ("mup", "mua")
ADAPTER_TENSORS = ("a", "b")


def rank_factors(
    tensor: Name,
    rank: Number,
    multiplier: Number = 1.0,
    optimizer: LawInput = "adam",
    rule: Name = "mup",
    random: Name = "A",
) -> Factors:
    """Return the factors of a matrix of an adapter whose rank grows.

    `rank` and `multiplier` are ratios, target over base; `random` names the matrix that does not
    start at zero.
    """
    tensor = one_of(tensor, ADAPTER_TENSORS, "tensor")
    random = one_of(random, ADAPTER_TENSORS, "random")
    if one_of(rule, RANK_RULES, "rank_rule") == "mua":
        return _mua(rank, multiplier, optimizer, random)
    p = get("mup", optimizer)
    if tensor == "a":
        return width_factors(p, Role.EMBEDDING, Growth(fan_out=rank), optimizer)
    factors = width_factors(p, Role.READOUT, Growth(fan_in=rank), optimizer)
    return factors.folding(1 / multiplier, update_law(optimizer))


def _mua(rank: Number, multiplier: Number, optimizer: LawInput, random: str) -> Factors:
    law = update_law(optimizer)
    if law.gradient or law.weight or law.spectral:
        message = "rank: the rule 'mua' is known for Adam and sign updates; pass rank_rule='mup'"
        raise InputError(message, "rank-without-law", argument="rank_rule")
    if random == "a":
        return Factors(lr=(rank * multiplier) ** -0.5)
    if multiplier != 1:
        message = (
            "rank: with a random B, the rule 'mua' is known for a multiplier that does not depend"
            f" on the rank; here it changes by {multiplier:.4g}. Pass rank_rule='mup', or let alpha"
            " grow with the rank"
        )
        raise InputError(message, "rank-without-law", argument="rank_rule")
    return Factors()
