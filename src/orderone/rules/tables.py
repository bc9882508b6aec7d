"""The rules as tables: multipliers a and initial sizes b.

S0 is "Scale-Invariant Parameterizations" (Stratos), S2 is "Effective Theory of Transformers at
Initialization" (Dinan, Yaida & Zhang, arXiv:2304.02034).

The learning-rate exponents c are not written down: they are the largest stable ones, which the
solver derives for the optimizer and the alignment at hand. One rule does write them down:
`standard`, which is defined by using one learning rate for everything.
"""

from dataclasses import dataclass
from fractions import Fraction

from orderone.core.inputs import ExponentsInput


@dataclass(frozen=True)
class RuleTable:
    """Exponents of a rule in the order embedding, hidden, readout, vector.

    `alignment` is the assumption under which the rule's authors chose its rates.
    """

    name: str
    a: ExponentsInput
    b: ExponentsInput
    c: ExponentsInput | None = None  # by default, the largest stable ones
    alignment: str = "full"


# Standard parameterization: no multipliers, variance 1/fan-in.
# S0 appendix A; equivalent to `ntk`.
SP = RuleTable(
    "sp",
    a=(0, 0, 0, 0),
    b=(0, "1/2", "1/2", 0),
)

# Neural tangent parameterization: unit variance, multipliers 1/sqrt(fan-in).
# S0 Table 1; equivalent to `sp`.
NTK = RuleTable(
    "ntk",
    a=(0, "1/2", "1/2", 0),
    b=(0, 0, 0, 0),
)

# Maximal update parameterization: the readout is divided by another sqrt(n), so that W dh in the
# logits does not grow even if W and dh are fully aligned: S0 (24) with omega = 1. S0 appendix B,
# Table 1; equivalent to `mf`.
MUP = RuleTable(
    "mup",
    a=("-1/2", 0, "1/2", 0),
    b=("1/2", "1/2", "1/2", 0),
)

# Mean field parameterization: unit variance, readout multiplier 1/n.
# S0 Table 1; equivalent to `mup`.
MF = RuleTable(
    "mf",
    a=(0, "1/2", 1, 0),
    b=(0, 0, 0, 0),
)

# The baseline of S2: the same initialization as neural-tangent and one learning rate for everything
# (Table II.1.E).
STANDARD = RuleTable(
    "standard",
    a=(0, 0, 0, 0),
    b=(0, "1/2", "1/2", 0),
    c=(0, 0, 0, 0),
    alignment="worst",
)


def between(name: str, s: Fraction) -> RuleTable:
    """Return a strategy of S2 between neural-tangent (s = 0) and maximal-update (s = 1).

    S2 writes them as a head with standard deviation n^{-(1+s)/2} and, for AdamW, rates n^{s/2}
    times the neural-tangent ones everywhere but in the head (footnotes 8 and 26): c = (1-s)/2 for
    embeddings, (3-s)/2 for hidden matrices, 1 for the head. These are not written here: the solver
    derives them for this head under the alignment `worst`. W dh must not grow in the logits, so
    dh_{L+1} has to shrink like n^{-(1-s)/2}, and with it every learning rate below.
    """
    return RuleTable(
        name,
        a=(0, 0, 0, 0),
        b=(0, "1/2", (1 + s) / 2, 0),
        alignment="worst",
    )


NEURAL_TANGENT = between("neural-tangent", Fraction(0))
HYBRID = between("hybrid", Fraction(1, 2))
MAXIMAL_UPDATE = between("maximal-update", Fraction(1))

TABLES: dict[str, RuleTable] = {
    "sp": SP,
    "ntk": NTK,
    "mup": MUP,
    "mf": MF,
    "standard": STANDARD,
    "neural-tangent": NEURAL_TANGENT,
    "hybrid": HYBRID,
    "maximal-update": MAXIMAL_UPDATE,
}
