"""Two signals through the layers: S1 (2)-(4), for lengths that differ and correlations of any sign.

With m_a = E phi(x_a)^2, new lengths q_a' = (weight_var / keep) m_a + bias_var, m and q' their
geometric means, and G the gap of the activations, the new gap is a sum of what dropout, the
activation and unequal lengths take away:

    q' (1 - c') = weight_var m (1/keep - 1 + G) + [q' - (weight_var / keep) m - bias_var]

The last bracket is never negative (Cauchy), and zero if the lengths are equal. Signals that
overflow keep a correlation: the bias has no share in it any more, and (weight_var / keep) m is all
of q'.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orderone.core.inputs import Array
from orderone.theory.activations import Activation
from orderone.theory.meanfield.large_q_limit import from_afar, longest

LONGEST = 1e300  # longer signals are reported as infinite


@dataclass(frozen=True)
class Trajectory:
    """Layer 0 to depth along the first axis. Unpacks as q, c."""

    q: Array  # lengths of the first input
    c: Array  # correlations
    q_bb: Array  # lengths of the second input
    gap: Array  # 1 - c, with all its digits

    def __iter__(self) -> Iterator[Array]:
        return iter((self.q, self.c))

    @property
    def q_ab(self) -> Array:
        return self.c * self.q**0.5 * self.q_bb**0.5


@dataclass(frozen=True)
class Layer:
    """One layer of the network, as a map of (q_aa, q_bb, gap)."""

    phi: Activation
    weight_var: Array
    bias_var: Array
    keep: Array

    def __call__(self, q1: Array, q2: Array, gap: Array) -> tuple[Array, Array, Array]:
        rate = self.weight_var / self.keep
        (m1, new1), (m2, new2) = (self._lengths(q) for q in (q1, q2))
        output_gap = self.output_gap(q1, q2, gap)
        share = np.sqrt(_share(rate, m1, new1)) * np.sqrt(_share(rate, m2, new2))
        taken = self.keep * share * (1 / self.keep - 1 + output_gap)
        alive = (new1 > 0) & (new2 > 0)
        return (
            new1,
            new2,
            np.where(alive, np.minimum(taken + self._unequal(m1, m2, new1, new2), 2.0), output_gap),
        )

    def _lengths(self, q: Array) -> tuple[Array, Array]:
        """E phi^2 and the new length, inf where they overflow."""
        rate = self.weight_var / self.keep
        with np.errstate(over="ignore", invalid="ignore"):
            m = np.nan_to_num(
                self.phi.second_moment(np.minimum(q, LONGEST)), nan=np.inf, posinf=np.inf
            )
            new = np.where(rate > 0, rate * m, 0.0) + self.bias_var
        return np.where(np.isfinite(new), m, np.inf), np.where(new < LONGEST, new, np.inf)

    def output_gap(self, q1: Array, q2: Array, gap: Array) -> Array:
        limit = longest(self.phi)
        far = (q1 > limit) & (q2 > limit)
        near = self.phi.output_gap(np.minimum(q1, limit), np.minimum(q2, limit), gap)
        if np.any(far):
            return np.where(far, from_afar(self.phi).output_gap(limit, limit, gap), near)
        return near

    def _unequal(self, m1: Array, m2: Array, new1: Array, new2: Array) -> Array:
        """What unequal lengths take away, as a part of the new length; nothing if both are
        infinite."""
        finite = np.isfinite(new1) & np.isfinite(new2) & (new1 != new2) & (new1 > 0) & (new2 > 0)
        m1, m2, new1, new2 = (np.where(finite, x, 1.0) for x in (m1, m2, new1, new2))
        root = np.sqrt(new1) * np.sqrt(new2)
        size = np.sqrt(m1) * np.sqrt(m2)
        left = root - self.weight_var / self.keep * size - self.bias_var
        return np.where(finite, np.maximum(left, 0.0) / root, 0.0)


def _share(rate: Array, m: Array, new: Array) -> Array:
    """Of the weights in the new length: all of it where that is infinite."""
    known = np.isfinite(m) & (new > 0) & np.isfinite(new)
    return np.where(
        known, rate * np.where(known, m, 0.0) / np.where(known, new, 1.0), np.isinf(new) * 1.0
    )


def follow(layer: Layer, q1: Array, q2: Array, gap: Array, depth: int) -> Trajectory:
    """Layers 0 to `depth`, from lengths q1, q2 and the correlation 1 - gap."""
    states = [(q1, q2, gap)]
    for _ in range(depth):
        states.append(layer(*states[-1]))
    first, second, gaps = (
        np.array(np.broadcast_arrays(*column)) for column in zip(*states, strict=True)
    )
    return Trajectory(first, 1 - gaps, second, gaps)
