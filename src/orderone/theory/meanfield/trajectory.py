"""Two signals through the layers: S1 (2)-(4), for unequal lengths and correlations of any sign.

With m_a = E phi(x_a)^2, new lengths q_a' = (weight_var / keep) m_a + bias_var, m and q' their
geometric means, and G the gap of the activations, the new gap is a sum of the losses due to
dropout, to the activation, and to unequal lengths:

    q' (1 - c') = weight_var m (1/keep - 1 + G) + [q' - (weight_var / keep) m - bias_var]

The last bracket is never negative (Cauchy), and zero if the lengths are equal. Signals that
overflow still have a correlation: the bias is negligible, and q' = (weight_var / keep) m.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orderone.core.inputs import Array
from orderone.theory.activations import Activation
from orderone.theory.meanfield.large_q_limit import large_q_limit, longest

LONGEST = 1e300  # longer signals are reported as infinite


@dataclass(frozen=True)
class Trajectory:
    """Two signals at layers 0 to depth, along the first axis. Unpacks as q, c."""

    q: Array  # lengths of the first input
    c: Array  # correlations
    q_bb: Array  # lengths of the second input
    gap: Array  # 1 - c, without loss of digits

    def __iter__(self) -> Iterator[Array]:
        return iter((self.q, self.c))

    @property
    def q_ab(self) -> Array:
        """Return the covariance of the two signals."""
        return self.c * self.q**0.5 * self.q_bb**0.5


@dataclass(frozen=True)
class Layer:
    """Layer of the network, as a map of (q_aa, q_bb, gap)."""

    phi: Activation
    weight_var: Array
    bias_var: Array
    keep: Array

    def __call__(self, q1: Array, q2: Array, gap: Array) -> tuple[Array, Array, Array]:
        """Return the lengths and the gap after this layer."""
        rate = self.weight_var / self.keep
        m1, new1 = self._lengths(q1)
        m2, new2 = self._lengths(q2)
        output_gap = self.output_gap(q1, q2, gap)
        share = np.sqrt(_share(rate, m1, new1)) * np.sqrt(_share(rate, m2, new2))
        lost = self.keep * share * (1 / self.keep - 1 + output_gap)
        nonzero = (new1 > 0) & (new2 > 0)
        new_gap = np.minimum(lost + self._unequal(m1, m2, new1, new2), 2.0)
        return new1, new2, np.where(nonzero, new_gap, output_gap)

    def _lengths(self, q: Array) -> tuple[Array, Array]:
        """Return E phi^2 and the new length, inf where they overflow."""
        rate = self.weight_var / self.keep
        with np.errstate(over="ignore", invalid="ignore"):
            moment = self.phi.second_moment(np.minimum(q, LONGEST))
            m = np.nan_to_num(moment, nan=np.inf, posinf=np.inf)
            new = np.where(rate > 0, rate * m, 0.0) + self.bias_var
        return np.where(np.isfinite(new), m, np.inf), np.where(new < LONGEST, new, np.inf)

    def output_gap(self, q1: Array, q2: Array, gap: Array) -> Array:
        """Return G, the gap of the activations."""
        longest_q = longest(self.phi)
        shorter1 = np.minimum(q1, longest_q)
        shorter2 = np.minimum(q2, longest_q)
        output_gap = self.phi.output_gap(shorter1, shorter2, gap)
        both_long = (q1 > longest_q) & (q2 > longest_q)
        if not np.any(both_long):
            return output_gap
        limit = large_q_limit(self.phi).output_gap(longest_q, longest_q, gap)
        return np.where(both_long, limit, output_gap)

    def _unequal(self, m1: Array, m2: Array, new1: Array, new2: Array) -> Array:
        """Return the loss due to unequal lengths, relative to q'; zero if both are infinite."""
        positive = (new1 > 0) & (new2 > 0)
        known = np.isfinite(new1) & np.isfinite(new2) & (new1 != new2) & positive
        m1, m2, new1, new2 = (np.where(known, x, 1.0) for x in (m1, m2, new1, new2))
        new = np.sqrt(new1) * np.sqrt(new2)
        m = np.sqrt(m1) * np.sqrt(m2)
        loss = new - self.weight_var / self.keep * m - self.bias_var
        return np.where(known, np.maximum(loss, 0.0) / new, 0.0)


def _share(rate: Array, m: Array, new: Array) -> Array:
    """Return the share of the weights in the new length; 1 where that is infinite."""
    known = np.isfinite(m) & (new > 0) & np.isfinite(new)
    share = rate * np.where(known, m, 0.0) / np.where(known, new, 1.0)
    return np.where(known, share, np.isinf(new) * 1.0)


def follow(layer: Layer, q1: Array, q2: Array, gap: Array, depth: int) -> Trajectory:
    """Return layers 0 to `depth`, from lengths q1, q2 and the correlation 1 - gap."""
    first = [q1]
    second = [q2]
    gaps = [gap]
    for _ in range(depth):
        q1, q2, gap = layer(q1, q2, gap)
        first.append(q1)
        second.append(q2)
        gaps.append(gap)
    gap_path = np.array(np.broadcast_arrays(*gaps))
    return Trajectory(
        q=np.array(np.broadcast_arrays(*first)),
        c=1 - gap_path,
        q_bb=np.array(np.broadcast_arrays(*second)),
        gap=gap_path,
    )
