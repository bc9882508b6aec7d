"""The strategies of S2 between neural-tangent (s = 0) and maximal-update (s = 1).

S2 writes them as a head with standard deviation n^{-(1+s)/2} and, for AdamW, rates n^{s/2} times
the neural-tangent ones everywhere but in the head (footnotes 8 and 26): c = (1-s)/2 for embeddings,
(3-s)/2 for hidden matrices, 1 for the head. Nothing of that is typed in here. It is what the solver
finds for this head under the alignment `worst`: W dh into the logits must not grow, so dh_{L+1} has
to shrink like n^{-(1-s)/2}, and with it every rate below.
"""

from fractions import Fraction

from orderone.rules.declare import Declared


def between(name: str, s: Fraction) -> Declared:
    return Declared(name, a=(0, 0, 0, 0), b=(0, "1/2", (1 + s) / 2, 0), alignment="worst")


NEURAL_TANGENT = between("neural-tangent", Fraction(0))
HYBRID = between("hybrid", Fraction(1, 2))
MAXIMAL_UPDATE = between("maximal-update", Fraction(1))

# What S2 compares them with: the same initialization as neural-tangent and one learning rate for
# everything (Table II.1.E).
STANDARD = Declared(
    "standard", a=(0, 0, 0, 0), b=(0, "1/2", "1/2", 0), c=(0, 0, 0, 0), alignment="worst"
)
