"""Two signals through the layers: S1 (2)-(4), for lengths that differ and correlations of any sign.

With m_a = E phi(x_a)^2, new lengths q_a' = (weight_var / keep) m_a + bias_var, m and q' their geometric means, and G the
gap of the activations, the new gap is a sum of what dropout, the activation and unequal lengths take away:

    q' (1 - c') = weight_var m (1/keep - 1 + G) + [q' - (weight_var / keep) m - bias_var]

The last bracket is never negative (Cauchy), and zero if the lengths are equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orderone.core.shapes import Array
from orderone.theory.activations import Activation

LONGEST = 1e150  # longer signals are reported as infinite


@dataclass(frozen=True)
class Trajectory:
    """Layer 0 to depth along the first axis. Unpacks as q, c."""

    q: np.ndarray  # lengths of the first input
    c: np.ndarray  # correlations
    q_bb: np.ndarray  # lengths of the second input
    gap: np.ndarray  # 1 - c, with all its digits

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.q, self.c))

    @property
    def q_ab(self) -> np.ndarray:
        return self.c * np.sqrt(self.q) * np.sqrt(self.q_bb)


@dataclass(frozen=True)
class Layer:
    """One layer of the network, as a map of (q_aa, q_bb, gap)."""

    phi: Activation
    weight_var: Array
    bias_var: Array
    keep: Array

    def __call__(self, q1: Array, q2: Array, gap: Array) -> tuple[Array, Array, Array]:
        rate = self.weight_var / self.keep
        with np.errstate(over="ignore"):
            m1, m2 = (np.minimum(self.phi.second_moment(q), LONGEST) for q in (q1, q2))
            new1, new2 = (np.minimum(rate * m + self.bias_var, LONGEST) for m in (m1, m2))
        size, root = np.sqrt(m1) * np.sqrt(m2), np.sqrt(new1) * np.sqrt(new2)
        output_gap = self.phi.output_gap(q1, q2, gap)
        taken = self.weight_var * size * (1 / self.keep - 1 + output_gap)
        unequal = np.where(new1 == new2, 0.0, np.maximum(root - rate * size - self.bias_var, 0.0))
        safe = np.where(root > 0, root, 1.0)
        return new1, new2, np.where(root > 0, np.minimum((taken + unequal) / safe, 2.0), output_gap)


def follow(layer: Layer, q1: Array, q2: Array, gap: Array, depth: int) -> Trajectory:
    """Layers 0 to `depth`, from lengths q1, q2 and the correlation 1 - gap."""
    states = [(q1, q2, gap)]
    for _ in range(depth):
        states.append(layer(*states[-1]))
    first, second, gaps = (np.array(np.broadcast_arrays(*column)) for column in zip(*states, strict=True))
    first, second = (np.where(x >= LONGEST, np.inf, x) for x in (first, second))
    return Trajectory(first, 1 - gaps, second, gaps)
