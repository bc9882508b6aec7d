"""Base class of activations: values, and averages over one Gaussian or a pair.

    second_moment(q)        E phi(x)^2          x ~ N(0, q)                             S1 (2)
    derivative_moment(q)    E phi'(x)^2                                                 S1 (5), (10)
    pair(q1, q2, gap)       E phi(x) phi(y)     Var x = q1, Var y = q2, corr = 1 - gap  S1 (3)
    derivative_pair(...)    E phi'(x) phi'(y)                                           S1 (6)
    output_gap(...)         1 - E phi(x) phi(y) / sqrt(E phi(x)^2 E phi(y)^2)

Arguments and results are gaps 1 - c, not correlations c: at criticality c tends to 1, and a double
near 1 cannot represent the difference. Where c enters directly, E phi phi loses no digits. Price's
theorem connects the two pairs,

    d/dc E phi(x) phi(y) = sqrt(q1 q2) E phi'(x) phi'(y)

A family derives from `Activation`, implements the methods that begin with an underscore, whose
arguments are already validated, and is listed in `orderone.theory.activations.registry`.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

from orderone.core import checks
from orderone.core.arrays import broadcast, plain, together
from orderone.core.inputs import Array, ArrayLike

GAP_REMEDY = "pass 1 - correlation"

SingleAverage: TypeAlias = Callable[[Array, ModuleType], Array]  # of (q, xp)
PairAverage: TypeAlias = Callable[[Array, Array, Array, ModuleType], Array]  # of (q1, q2, gap, xp)


@dataclass(frozen=True)
class Activation(ABC):
    """Values, derivative and Gaussian averages of an activation phi.

    Arrays broadcast. Results have the precision and the library (numpy, torch) of the arguments.
    """

    name: str

    @property
    def homogeneous(self) -> float | None:
        """Return E phi(x)^2 / q if it is the same for all q, else None."""
        return None

    def exact_up_to(self) -> float:
        """Return the largest variance at which averages are exact.

        At larger variances there are more kinks than can be resolved: averages have three digits.
        """
        return math.inf

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """Return phi(x), elementwise."""

    @abstractmethod
    def derivative(self, x: Array) -> Array:
        """Return phi'(x), elementwise; at a kink, the mean of both sides."""

    def mean(self, q: ArrayLike) -> Array:
        """Return E phi(x) for x ~ N(0, q)."""
        return self._single(self._mean, q)

    def second_moment(self, q: ArrayLike) -> Array:
        """Return E phi(x)^2."""
        return self._single(self._second_moment, q)

    def derivative_moment(self, q: ArrayLike) -> Array:
        """Return E phi'(x)^2; inf if phi jumps."""
        return self._single(self._derivative_moment, q)

    def pair(self, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        """Return E phi(x) phi(y)."""
        return self._double(self._pair, q1, q2, gap)

    def derivative_pair(self, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        """Return E phi'(x) phi'(y)."""
        return self._double(self._derivative_pair, q1, q2, gap)

    def output_gap(self, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        """Return 1 - corr(phi(x), phi(y)), uncentred, without loss of digits."""
        return self._double(self._output_gap, q1, q2, gap)

    def moments(self, q: Array, xp: ModuleType) -> tuple[Array, Array, Array]:
        """Return `second_moment`, `derivative_moment` and `mean` for validated arguments."""
        return self._second_moment(q, xp), self._derivative_moment(q, xp), self._mean(q, xp)

    def of_length(self, q: Array, xp: ModuleType) -> tuple[Array, ...]:
        """Return the arrays over lengths that `gap_and_slope` needs."""
        moment = self._second_moment(q, xp)
        return q, xp.sqrt(q / xp.where(moment > 0, moment, 1 + 0 * moment))

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: ModuleType
    ) -> tuple[Array, Array]:
        """Return `output_gap`, and the derivative of the new correlation in the old one.

        `one` and `other` are results of `of_length`, and the same object if the lengths are equal.
        Gaps may have rounding errors. A family may override this to share work between the two.
        """
        q1, ratio1 = one
        q2, ratio2 = other
        gap = xp.clip(gap, 0.0, 2.0)
        slope = ratio1 * ratio2 * self._derivative_pair(q1, q2, gap, xp)
        return self._output_gap(q1, q2, gap, xp), slope

    def at(self, q: ArrayLike) -> "AtLength":
        """Return the averages of pairs of the common variance q, for maps that are iterated."""
        xp, q = together(q=q)
        return AtLength(self, checks.variance(xp, q, "q"), xp)

    def _single(self, average: SingleAverage, q: ArrayLike) -> Array:
        xp, q = together(q=q)
        return plain(average(checks.variance(xp, q, "q"), xp))

    def _double(self, average: PairAverage, q1: ArrayLike, q2: ArrayLike, gap: ArrayLike) -> Array:
        xp, first, second, gaps = together(q1=q1, q2=q2, gap=gap)
        checks.variance(xp, first, "q1")
        checks.variance(xp, second, "q2")
        broadcast(q1=first, q2=second, gap=gaps)
        checks.within(xp, gaps, 0, 2, "gap", GAP_REMEDY)
        return plain(average(first, second, gaps, xp))

    @abstractmethod
    def _mean(self, q: Array, xp: ModuleType) -> Array: ...

    @abstractmethod
    def _second_moment(self, q: Array, xp: ModuleType) -> Array: ...

    @abstractmethod
    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array: ...

    @abstractmethod
    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array: ...

    @abstractmethod
    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array: ...

    @abstractmethod
    def _drop(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        """Return pair(q1, q2, 0) - pair(q1, q2, gap), without cancellation."""

    def _output_gap(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        size = xp.sqrt(self._second_moment(q1, xp)) * xp.sqrt(self._second_moment(q2, xp))
        lengths_differ = xp.where(q1 == q2, 0 * size, size - self._pair(q1, q2, 0 * gap, xp))
        change = xp.clip(lengths_differ, 0, None) + self._drop(q1, q2, gap, xp)
        return xp.where(size > 0, change / xp.where(size > 0, size, 1 + 0 * size), gap + 0 * size)


class AtLength:
    """Averages of pairs that share one variance.

    Activations without closed forms store here the parts that depend only on the variance.
    """

    def __init__(self, activation: Activation, q: Array, xp: ModuleType) -> None:
        self.activation = activation
        self.q = q
        self.xp = xp

    def select(self, rows: Array) -> "AtLength":
        """Return the averages at some of the variances."""
        return AtLength(self.activation, self.q[rows], self.xp)

    def output_gap(self, gap: Array) -> Array:
        """Return 1 - corr(phi(x), phi(y))."""
        return self.activation._output_gap(self.q, self.q, gap, self.xp)

    def derivative_pair(self, gap: Array) -> Array:
        """Return E phi'(x) phi'(y)."""
        return self.activation._derivative_pair(self.q, self.q, gap, self.xp)
