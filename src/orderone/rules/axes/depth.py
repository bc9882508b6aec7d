"""Depth: the factors of a tensor in a residual branch of a deeper model.

A residual branch is multiplied by r_L^-alpha, r_L = L / L_base: alpha = 1/2 is Depth-muP (Yang, Yu,
Zhu & Hayou 2023, arXiv:2310.02244, Table 1), alpha = 1 is CompleteP (Dey et al. 2025,
arXiv:2505.01618, Table 1). Together, L branches should change the residual stream by order one, so
a step must change each branch weight by r_L^(alpha - 1):

    gradient      r_L^-alpha
    Adam's rate   r_L^(alpha - 1)
    SGD's rate    r_L^(2 alpha - 1)
    Adam's eps    r_L^-alpha

for matrices, biases and gains in the branch alike; nothing changes outside the branches. These are
the entries of the tables (CompleteP: eps r_L^-alpha, bias and norm rates r_L^(alpha - 1), and at
alpha = 1 an unchanged weight decay; at alpha = 1/2 its authors leave weight decay unchanged too,
where ours keeps the product with the rate). The multiplier itself is folded into the last tensor of
the branch.
"""

from fractions import Fraction

from orderone.core.errors import one_of
from orderone.core.exact import HALF, ONE
from orderone.core.inputs import Name
from orderone.rules.factors import Factors
from orderone.theory.exponents.updates import LawInput, update_law

DEPTH_RULES: dict[str, Fraction] = {"sqrt": HALF, "completep": ONE}


def depth_factors(
    depth: Name, ratio: float, optimizer: LawInput = "adam", last: bool = False
) -> Factors:
    """Return the factors of a tensor in a residual branch.

    The multiplier of the branch is folded into its `last` tensors.
    """
    alpha = float(DEPTH_RULES[one_of(depth, DEPTH_RULES, "depth")])
    law = update_law(optimizer)
    gradient = ratio**-alpha
    inside = Factors(lr=ratio ** (alpha - 1) / gradient**law.gradient, gradient=gradient)
    if last:
        return inside.folding(ratio**-alpha, law)
    return inside
