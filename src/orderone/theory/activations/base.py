"""An activation, as theory needs it: its values, and its averages over one Gaussian or a pair of
them.

    second_moment(q)           E phi(x)^2           x ~ N(0, q)                                   S1
                                                    (2)
    derivative_moment(q)       E phi'(x)^2                                                        S1
                               (5), (10)
    pair(q1, q2, gap)          E phi(x) phi(y)      Var x = q1, Var y = q2, corr(x, y) = 1 - gap  S1
                                                    (3)
    derivative_pair(...)       E phi'(x) phi'(y)                                                  S1
                               (6)
    output_gap(...)            1 - E phi(x) phi(y) / sqrt(E phi(x)^2 E phi(y)^2)

The gap 1 - c is what is given and returned, not the correlation c: at criticality c tends to 1, and
a double next to 1 cannot hold what is left. Where c enters directly, E phi phi loses nothing.
Price's theorem joins the two pairs,

    d/dc E phi(x) phi(y) = sqrt(q1 q2) E phi'(x) phi'(y)

A family derives from `Activation`, fills in the underscored methods for arrays that are already
checked, and is listed in `orderone.theory.activations`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from orderone.core import checks
from orderone.core.arrays import broadcast, plain, together
from orderone.core.inputs import Array, ArrayLike

GAP_REMEDY = "it is 1 - correlation"


@dataclass(frozen=True)
class Activation(ABC):
    """Values, derivative and Gaussian averages; arrays broadcast, single precision stays single,
    torch stays torch."""

    name: str

    @property
    def homogeneous(self) -> float | None:
        """E phi(x)^2 / q if it is the same for all q, else None."""
        return None

    def exact_up_to(self) -> float:
        """Variances above see more kinks than can be told apart: averages there have three
        digits."""
        return math.inf

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """phi(x), elementwise."""

    @abstractmethod
    def derivative(self, x: Array) -> Array:
        """phi'(x), elementwise; at a kink, the mean of both sides."""

    def mean(self, q: ArrayLike) -> Array:
        """E phi(x) for x ~ N(0, q)."""
        return self._single(self._mean, q)

    def second_moment(self, q: ArrayLike) -> Array:
        """E phi(x)^2."""
        return self._single(self._second_moment, q)

    def derivative_moment(self, q: ArrayLike) -> Array:
        """E phi'(x)^2; inf if phi jumps."""
        return self._single(self._derivative_moment, q)

    def pair(self, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        """E phi(x) phi(y)."""
        return self._double(self._pair, q1, q2, gap)

    def derivative_pair(self, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        """E phi'(x) phi'(y)."""
        return self._double(self._derivative_pair, q1, q2, gap)

    def output_gap(self, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        """1 - corr(phi(x), phi(y)), uncentred, with all its digits however small it is."""
        return self._double(self._output_gap, q1, q2, gap)

    def moments(self, q: Array, xp: Any) -> tuple[Array, Array, Array]:
        """`second_moment`, `derivative_moment` and `mean` together, unchecked: what kernels
        iterate."""
        return self._second_moment(q, xp), self._derivative_moment(q, xp), self._mean(q, xp)

    def of_length(self, q: Array, xp: Any) -> tuple[Array, ...]:
        """What `gap_and_slope` needs to know of each length by itself."""
        size = self._second_moment(q, xp)
        return q, xp.sqrt(q / xp.where(size > 0, size, 1 + 0 * size))

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: Any
    ) -> tuple[Array, Array]:
        """`output_gap` and the derivative of the new correlation by the old one, together; gaps may
        be off by rounding.

        `one` and `other` are those of `of_length`, and the same object if lengths are. A family may
        share work here.
        """
        (q1, ratio1), (q2, ratio2), gap = one, other, xp.clip(gap, 0.0, 2.0)
        return self._output_gap(q1, q2, gap, xp), ratio1 * ratio2 * self._derivative_pair(
            q1, q2, gap, xp
        )

    def at(self, q: ArrayLike) -> "AtLength":
        """The averages of pairs of one common variance, for maps that are iterated there."""
        xp, q = together(q=q)
        return AtLength(self, checks.variance(xp, q, "q"), xp)

    def _single(self, average: Any, q: ArrayLike) -> Array:
        xp, q = together(q=q)
        return plain(average(checks.variance(xp, q, "q"), xp))

    def _double(self, average: Any, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        xp, *lengths, gaps = together(q1=q1, q2=q2, gap=gap)
        for name, q in zip(("q1", "q2"), lengths, strict=True):
            checks.variance(xp, q, name)
        broadcast(q1=lengths[0], q2=lengths[1], gap=gaps)
        return plain(average(*lengths, checks.within(xp, gaps, 0, 2, "gap", GAP_REMEDY), xp))

    @abstractmethod
    def _mean(self, q: Any, xp: Any) -> Any: ...

    @abstractmethod
    def _second_moment(self, q: Any, xp: Any) -> Any: ...

    @abstractmethod
    def _derivative_moment(self, q: Any, xp: Any) -> Any: ...

    @abstractmethod
    def _pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any: ...

    @abstractmethod
    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any: ...

    @abstractmethod
    def _drop(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        """pair(q1, q2, 0) - pair(q1, q2, gap), without cancellation."""

    def _output_gap(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        size = xp.sqrt(self._second_moment(q1, xp)) * xp.sqrt(self._second_moment(q2, xp))
        lengths_differ = xp.where(q1 == q2, 0 * size, size - self._pair(q1, q2, 0 * gap, xp))
        change = xp.clip(lengths_differ, 0, None) + self._drop(q1, q2, gap, xp)
        return xp.where(size > 0, change / xp.where(size > 0, size, 1 + 0 * size), gap + 0 * size)


class AtLength:
    """Averages of pairs that share one variance. Activations without closed forms keep here what
    depends on it alone."""

    def __init__(self, activation: Activation, q: Any, xp: Any):
        self.activation = activation
        self.q = q
        self.xp = xp

    def select(self, rows: Any) -> "AtLength":
        """Some of the variances."""
        return AtLength(self.activation, self.q[rows], self.xp)

    def output_gap(self, gap: Any) -> Any:
        return self.activation._output_gap(self.q, self.q, gap, self.xp)

    def derivative_pair(self, gap: Any) -> Any:
        return self.activation._derivative_pair(self.q, self.q, gap, self.xp)
