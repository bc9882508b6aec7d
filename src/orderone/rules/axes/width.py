"""Width: the factors that a rule gives to a tensor whose dimensions grew.

A rule's exponents are powers of one width n. A real tensor has two dimensions, which may grow by
different ratios, so each power of n goes to the dimension that it comes from. The rule is folded
first: its multipliers n^-a move into initial sizes and learning rates, so that a = 0 (`canonical`,
the gauge "folded"). With r_in and r_out the growth of fan-in and fan-out:

    embedding, vector   r_out^-x_e        no sum over a growing dimension: the powers belong to the
                                          output
    readout             r_in^-x_r         nothing that grows is left at the output
    hidden              r_out^-x_e r_in^-(x_h - x_e)

for x = b (initial size) and x = c (learning rate), where x_e, x_h, x_r are the folded exponents of
embedding, hidden and readout. muP with Adam has folded c = 0, 1, 1; `get("mup").c` is 1/2, 1, 1/2,
because its table has a = -1/2, 0, 1/2. Both limits are right: for muP and Adam the hidden rate is
r_in^-1, for SGD it is r_out / r_in, as the spectral condition says (Yang, Simon & Bernstein 2023,
arXiv:2310.17813). Gradients belong to the output of their tensor,
RMS(W') = r_out^-g; a readout's to its input.
"""

from fractions import Fraction
from functools import lru_cache

from orderone.core.errors import one_of
from orderone.core.exact import ZERO
from orderone.core.inputs import Name
from orderone.core.roles import ROLES, Role
from orderone.rules.factors import Factors, Growth
from orderone.theory.exponents import Parameterization, canonical, gradient_exponents
from orderone.theory.exponents.parameterization import Exponents
from orderone.theory.exponents.updates import LawInput


def width_factors(
    p: Parameterization, role: Name, growth: Growth, optimizer: LawInput = "adam"
) -> Factors:
    """Return the folded factors of a tensor of this role: no multiplier, only initialization and
    learning rate.

    `optimizer` names an update law of `theory.exponents` ("adam", "adamw", "sgd", ...).
    """
    folded, g = _folded_with_gradients(p, optimizer)
    std = _power(growth, *_exponents(folded.b, role))
    lr = _power(growth, *_exponents(folded.c, role))
    gradient = _power(growth, *_gradient_exponents(g, role))
    return Factors(1.0, std, lr, gradient)


@lru_cache
def _folded_with_gradients(
    p: Parameterization, optimizer: LawInput
) -> tuple[Parameterization, Exponents]:
    """Return the rule in the gauge "folded", and its exponents of gradients."""
    folded = canonical(p, optimizer)
    return folded, gradient_exponents(folded)


def _exponents(x: Exponents, role: Name) -> tuple[Fraction, Fraction]:
    """Return the exponents of fan-in and fan-out."""
    role = one_of(role, ROLES, "role")
    if role == Role.HIDDEN:
        return x[Role.HIDDEN] - x[Role.EMBEDDING], x[Role.EMBEDDING]
    if role == Role.READOUT:
        return x[Role.READOUT], ZERO
    return ZERO, x.get(role, x[Role.EMBEDDING])  # a vector is an embedding whose input is 1


def _gradient_exponents(g: Exponents, role: Name) -> tuple[Fraction, Fraction]:
    if role == Role.READOUT:
        return g[Role.READOUT], ZERO
    return ZERO, g.get(role, g[Role.EMBEDDING])


def _power(growth: Growth, fan_in: Fraction, fan_out: Fraction) -> float:
    if growth.fan_in == growth.fan_out:  # one power, so that r^x r^-x is exactly 1
        return growth.fan_in ** -float(fan_in + fan_out)
    return growth.fan_in ** -float(fan_in) * growth.fan_out ** -float(fan_out)


def tied_multiplier(p: Parameterization, fan_in: float, optimizer: LawInput = "adam") -> float:
    """Return the multiplier of a readout that shares its tensor with the embedding.

    No gauge shift removes it (`gauge(tied=True)`).
    """
    folded, _ = _folded_with_gradients(p, optimizer)
    return fan_in ** -float(folded.b[Role.READOUT] - folded.b[Role.EMBEDDING])


def paper_multiplier(p: Parameterization, role: Name, growth: Growth) -> float:
    """Return the multiplier in the original form of the rule."""
    if role in (Role.HIDDEN, Role.READOUT):
        return growth.fan_in ** -float(p.own[role])
    return growth.fan_out ** -float(p.own.get(role, ZERO))


def width_of(role: Name, growth: Growth) -> float:
    """Return the growth of the width to which a tensor belongs.

    This is the fan-in of hidden matrices and readouts, and the fan-out of other tensors.
    """
    if role in (Role.HIDDEN, Role.READOUT):
        return float(growth.fan_in)
    if role == Role.FIXED:
        return 1.0
    return float(growth.fan_out)
