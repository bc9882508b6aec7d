"""Update laws of optimizers that treat a matrix as a matrix: Shampoo, SOAP, Dion.

G is the gradient of a matrix with d_o rows (fan-out) and d_i columns (fan-in), and |.| the spectral
norm. A law gives |dW| of the step dW. All powers of d_o and d_i below are those of Qiu et al. 2025
(arXiv:2512.05620; their code: scaling-matrix-preconditioning, `assign_lr` in train.py), who write
them as learning rates: the rate that makes |dW| = sqrt(d_o / d_i), for |G| = sqrt(d_i / d_o).

**Shampoo** (Gupta, Koren & Singer 2018, arXiv:1802.09568) steps along L^-k G R^-k, where L and R
are averages of G G^T and G^T G. k = 1/4 is the original, k = 1/2 a common variant. On one side
only, L or R is left out. With E = k times the number of sides, a gradient of low rank whose
singular directions persist has

    |dW| = |G|^(1 - 2 E)

**SOAP** (Vyas et al. 2024, arXiv:2409.11321) is Adam in the eigenbasis of L and R. A gradient of
rank r has r x r entries there that are not zero, and Adam makes each of them one:

    |dW| = 1                both sides
    |dW| = d_o^(1/2)        inputs only: r x d_o entries
    |dW| = d_i^(1/2)        outputs only

**Blocks.** A matrix that is cut into b_o x b_i blocks has |G| / sqrt(b_o b_i) in each. The steps of
all blocks together have sqrt(b_o b_i) times the norm of one. Hence the factors (b_o b_i)^E for
Shampoo and (b_o b_i)^(1/2) for SOAP, where a side that is not preconditioned is not cut. Blocks of
a fixed size grow in number like the dimensions. On both sides this is a law of entries, since a
block does not know the width: Adam's for SOAP, |dW_ij| = |G_ij|^(1 - 2 E) for Shampoo.

**Rank.** The above assumes that the averages L and R have few directions. If they average over
samples whose gradients differ, G of one step is smaller than the root of L in each of its R_o
directions, by R_o^(1/2), and likewise for R:

    Shampoo    |dW| = |G|^(1 - 2 E) (R_o R_i)^k        SOAP    |dW| = (R_o R_i)^(1/2)

where R_o <= d_o and R_i <= d_i are the numbers of directions in L and R, at most the number of
samples in the average. `full_rank` is the other end, R_o = d_o and R_i = d_i: then SOAP has the law
of Adam. SOAP divides every direction by its size, however small it is, so R counts all directions
above eps. Averages over many more samples than the width have full rank.

**Dion** (Ahn et al. 2025, arXiv:2504.05295) and the spectral convention of Muon multiply an
orthonormal step by sqrt(d_o / d_i).
"""

from fractions import Fraction
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, one_of, switch
from orderone.core.exact import HALF, ZERO, exact
from orderone.core.inputs import Name, UserInput
from orderone.theory.exponents.laws import UpdateLaw

SIDES: dict[str, tuple[bool, bool]] = {  # whether outputs and inputs are preconditioned
    "both": (True, True),
    "in": (False, True),
    "out": (True, False),
}
DION = UpdateLaw(spectral=True, fan_out=HALF, fan_in=-HALF)

Power: TypeAlias = Annotated[Fraction | int | str, UserInput]


def shampoo(
    power: Power = Fraction(1, 4),
    sides: Name = "both",
    *,
    blocked: bool = False,
    full_rank: bool = False,
) -> UpdateLaw:
    """Return the update law of Shampoo.

    Args:
        power: k of the preconditioners L^-k and R^-k: 1/4 or 1/2 in practice.
        sides: Sides that are preconditioned: "both", "in" (R only) or "out" (L only).
        blocked: Whether the preconditioners consist of blocks of a fixed size.
        full_rank: Whether the averages have full rank, and not the rank of a few gradients.
    """
    k = exact(power, "power")
    blocked = switch(blocked, "blocked")
    full_rank = switch(full_rank, "full_rank")
    if not 0 < k <= 1:
        raise InputError(
            f"power: expected the power k of L^-k and R^-k, such as '1/4' or '1/2'; got {k}",
            argument="power",
        )
    out, into = SIDES[one_of(sides, SIDES, "sides")]
    total = k * (out + into)
    gradient = 1 - 2 * total
    if blocked and out and into:
        return UpdateLaw(gradient=gradient)
    per_side = ZERO
    if blocked:
        per_side = total
    elif full_rank:
        per_side = k
    return UpdateLaw(
        gradient=gradient, spectral=True, fan_out=out * per_side, fan_in=into * per_side
    )


def soap(sides: Name = "both", *, blocked: bool = False, full_rank: bool = False) -> UpdateLaw:
    """Return the update law of SOAP; the arguments are those of `shampoo`."""
    out, into = SIDES[one_of(sides, SIDES, "sides")]
    if switch(blocked, "blocked") or switch(full_rank, "full_rank"):
        return UpdateLaw()
    return UpdateLaw(spectral=True, fan_out=ZERO if out else HALF, fan_in=ZERO if into else HALF)


def _variants() -> dict[str, UpdateLaw]:
    """Return the laws of all variants by name: "soap-in", "shampoo-1/2-blocked"."""
    variants: dict[str, UpdateLaw] = {}
    kinds = {"": {}, "-blocked": {"blocked": True}, "-full-rank": {"full_rank": True}}
    for sides in SIDES:
        side = "" if sides == "both" else f"-{sides}"
        for suffix, kind in kinds.items():
            variants[f"soap{side}{suffix}"] = soap(sides, **kind)
            for power in ("1/4", "1/2"):
                law = shampoo(power, sides, **kind)
                variants[f"shampoo-{power}{side}{suffix}"] = law
                if power == "1/4":
                    variants[f"shampoo{side}{suffix}"] = law
    return variants


VARIANTS: dict[str, UpdateLaw] = _variants()
