"""Grouped-query attention: factors of keys and values that more queries share.

H query heads share H / r key and value heads: every key and value is repeated r times. A key or
value is a sum over its fan-in, which r does not change, so that its size, and the size of its
change for a given update, do not depend on r. Only gradients do: r query heads add theirs, with
independent signs.

    keys, values    initial size 1, gradient r^1/2; Adam's rate 1, SGD's r^-1/2; eps r^1/2

**mup** is this. **gqa-mup** (Chickering et al. 2026, arXiv:2605.15290) asks instead that the
repeated matrix, of rank 1/r of the full one, has the expected norm of a full matrix:

    initial size 1 / (1 + r^1/2), rate r^-1/2, weight decay r^1/2 (as lr times weight decay stays)

as in public implementations of it for AdamW. It makes keys and values smaller with r, and their
changes too.
"""

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import Name, Number
from orderone.rules.factors import Factors
from orderone.theory.exponents.updates import LawInput, update_law

REPETITION_RULES = ("mup", "gqa-mup")


def repetition_factors(
    base: Number, target: Number, optimizer: LawInput = "adam", rule: Name = "mup"
) -> Factors:
    """Return the factors of keys and values that are repeated `target` times, in the base `base`
    times."""
    law = update_law(optimizer)
    gradient = (target / base) ** 0.5
    if one_of(rule, REPETITION_RULES, "repetition_rule") == "mup":
        return Factors(lr=gradient ** -float(law.gradient), gradient=gradient)
    if law.gradient or law.weight or law.spectral:
        message = "repetition_rule: 'gqa-mup' is known for Adam and sign updates; pass 'mup'"
        raise InputError(message, "repetition-without-law", argument="repetition_rule")
    std = (1 + base**0.5) / (1 + target**0.5)
    return Factors(std=std, lr=1 / gradient, gradient=gradient)
