"""Attention: the one place where a product of two activations is summed over a dimension that may grow.

    s = d_H^{-power} sum_i q_i k_i,   d_H = Theta(n^growth),   H d_H = Theta(n)                S0 section 2

Query, key, value and output matrices all have fan-in Theta(n) (the output's is H d_H; erratum S0.12: the number of heads
need not grow), so their exponents are those of the role `hidden`. Only the score is new:

    at initialization q and k are independent:     s  = n^{growth (1/2 - power)} q k
    in training they line up, by kappa:            ds = n^{growth (kappa - power)} q k,  1/2 <= kappa <= 1

so 1/sqrt(d_H) is right at initialization and for heads of fixed size, and 1/d_H is needed when heads grow and the updates
of q and k align (kappa = 1, taken from alpha of `hidden`). QK-norm fixes the sizes of q and k, not the angle between
them: |s| <= d_H^{1 - power} is all that it adds, so a growing head still needs power = 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from orderone.core.exact import Exact, exact, power
from orderone.theory.exponents.alignment import Alignment, GivenAlignment, read_alignment
from orderone.theory.exponents.conditions import Condition
from orderone.theory.exponents.optimizers import HALF
from orderone.theory.exponents.parameterization import Exponents, Parameterization
from orderone.theory.exponents.sizes import ZERO


@dataclass(frozen=True, init=False)
class Attention:
    """Scores divided by d_H^power, with d_H = n^growth: growth 0 if the number of heads grows, 1 if their size does."""

    power: Fraction
    growth: Fraction
    qk_norm: bool

    def __init__(self, power: Exact = HALF, growth: Exact = 1, qk_norm: bool = False):
        object.__setattr__(self, "power", exact(power, "power"))
        object.__setattr__(self, "growth", exact(growth, "growth"))
        object.__setattr__(self, "qk_norm", qk_norm)
        if not 0 <= self.growth <= 1:
            raise ValueError(f"growth: a head cannot shrink or outgrow the width; expected 0 to 1, got {self.growth}")

    def rms(self, p: Parameterization, alignment: GivenAlignment = "full") -> Exponents:
        """Exponents of q, k, the scores s, and their change Δs when q and k change by as much as they are."""
        size = ZERO if self.qk_norm else HALF - p.a["hidden"] - p.b["hidden"]
        kappa = read_alignment(alignment).alpha["hidden"]
        s, change = (self.growth * (terms - self.power) + 2 * size for terms in (HALF, kappa))
        return {"q": size, "k": size, "s": s, "Δs": change}

    def conditions(self, p: Parameterization, alignment: Alignment) -> Iterator[Condition]:
        size = self.rms(p, alignment)
        text = f"scores over {power(self.power, 'd_H')} with d_H = {power(self.growth)}"
        yield Condition("(S0 sec. 2)", "scores", text, "q k at initialization", {}, -size["s"])
        yield Condition("(S0 sec. 2)", "scores", text, "q k in training", {}, -size["Δs"])

    def smallest_power(self, alignment: GivenAlignment = "full") -> Fraction:
        """The smallest power of d_H that keeps order-one queries and keys from making scores grow."""
        return max(HALF, read_alignment(alignment).alpha["hidden"]) if self.growth else ZERO
