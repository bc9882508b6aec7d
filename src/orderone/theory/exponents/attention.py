"""Attention scores: sums of products of two activations over a dimension that may grow.

    s = d_H^{-power} sum_i q_i k_i,   d_H = Theta(n^growth),   H d_H = Theta(n)       S0 section 2

Query, key, value and output matrices all have fan-in Theta(n) (the output's is H d_H; erratum
S0.12: the number of heads need not grow), so the exponents of the role `hidden` keep them stable.
(With SGD, growing heads and power 1, gradients of W_q and W_k have an extra factor
n^{-growth (power - 1/2)}: the rates are stable, but not the largest possible.) Only the score is
new. At initialization q and k are independent; in training their changes align, with exponent
kappa:

    s  = n^{growth (1/2 - power)} q k
    ds = n^{growth (kappa - power)} (q dk + k dq),    1/2 <= kappa <= 1

so 1/sqrt(d_H) is right at initialization and for heads of fixed size, and 1/d_H is needed when
heads grow and queries and keys align (kappa = 1, taken from alpha of `hidden`), unless their
changes vanish with width. QK-norm fixes the sizes of q and k, not the angle between them: it only
adds the bound |s| <= d_H^{1 - power}, so a growing head still needs power = 1.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, instance
from orderone.core.exact import HALF, ZERO, count, exact, power
from orderone.core.inputs import Count, Exact, Flag, UserInput
from orderone.core.roles import Role
from orderone.theory.exponents.parameterization import Exponents, Rule, read_rule
from orderone.theory.exponents.sizes import rms
from orderone.theory.exponents.updates import Alignment, AlignmentInput, LawInput, read_alignment


@dataclass(frozen=True, init=False)
class Attention:
    """Scores divided by d_H^power, with the head size d_H = n^growth.

    `growth` is 0 if the number of heads grows, 1 if their size grows.
    """

    power: Fraction
    growth: Fraction
    qk_norm: bool

    def __init__(self, power: Exact = HALF, growth: Exact = 1, qk_norm: Flag = False):
        object.__setattr__(self, "power", exact(power, "power"))
        object.__setattr__(self, "growth", exact(growth, "growth"))
        checked = instance(qk_norm, bool, "qk_norm", "pass True or False")
        object.__setattr__(self, "qk_norm", checked)
        if not 0 <= self.growth <= 1:
            raise InputError(
                "growth: expected 0 to 1, because a head cannot shrink or grow faster than the"
                f" width; got {self.growth}",
                argument="growth",
            )

    def rms(
        self,
        p: Rule,
        alignment: AlignmentInput = "full",
        *,
        optimizer: LawInput = "adam",
        depth: Count = 3,
        norm: Flag = False,
    ) -> Exponents:
        """Return the exponents of q, k and the scores s, and of their changes at the rates p.c.

        `o` is the output of a head, a mean over values v = W_v h, and `o_final` the sum over heads
        of W_o o, both at initialization.
        """
        norm = instance(norm, bool, "norm", "pass True or False")
        align = read_alignment(alignment)
        size = self._size(read_rule(p))
        sizes = rms(
            p, depth, norm or self.qk_norm, training=True, optimizer=optimizer, alignment=align
        )
        # queries and keys are outputs of hidden layers
        outputs = range(2, count(depth, "depth") + 2)
        change = max(sizes[f"Δh{layer}"] for layer in outputs)
        value = HALF - p.a[Role.HIDDEN] - p.b[Role.HIDDEN]  # a norm of q and k does not change v
        score = self._training_exponent(align) + max(size + change, 2 * change)
        return {
            "q": size,
            "k": size,
            "Δq": change,
            "Δk": change,
            "s": self.score_at_init(p),
            "Δs": score,
            "o": value,
            "o_final": 2 * value,
        }

    def score_at_init(self, p: Rule) -> Fraction:
        """Return the exponent of the scores at initialization."""
        return self.growth * (HALF - self.power) + 2 * self._size(p)

    def slack(self, p: Rule, alignment: Alignment) -> Fraction:
        """Return the largest exponent that changes of q and k can have before scores grow."""
        return -self._training_exponent(alignment) - self._size(p)

    def smallest_power(self, alignment: AlignmentInput = "full") -> Fraction:
        """Return the smallest power of d_H for which scores of order-one q and k do not grow."""
        if self.growth:
            return max(HALF, read_alignment(alignment).alpha[Role.HIDDEN])
        return ZERO

    @property
    def text(self) -> str:
        return f"scores divided by {power(self.power, 'd_H')}, d_H = {power(self.growth)}"

    def _training_exponent(self, alignment: Alignment) -> Fraction:
        return self.growth * (alignment.alpha[Role.HIDDEN] - self.power)

    def _size(self, p: Rule) -> Fraction:
        if self.qk_norm:
            return ZERO
        return HALF - p.a[Role.HIDDEN] - p.b[Role.HIDDEN]


# `solver.Network` validates it
AttentionInput: TypeAlias = Annotated[Attention | None, UserInput]
