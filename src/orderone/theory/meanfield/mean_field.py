"""Wide random networks with dropout, layer by layer: S1 section 3.

    z^l_i = (1 / keep) sum_j W_ij p_j phi(z^(l-1)_j) + b_i                                    S1 (1)
    W_ij  ~ N(0, weight_var / N)
    b_i   ~ N(0, bias_var)

p_j is 1 with probability keep, the keep rate, which the paper calls the dropout rate rho (erratum
S1.8). Lengths q are those of pre-activations z. Two inputs have independent dropout masks.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, together
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Array, ArrayLike, Count
from orderone.theory.meanfield import lengths, scales
from orderone.theory.meanfield.fixed_point import FixedPoint
from orderone.theory.meanfield.networks import Networks, number
from orderone.theory.meanfield.solution import DIVERGES, TINY, Solution, solve
from orderone.theory.meanfield.trajectory import LONGEST, Layer, Trajectory, follow


@dataclass(frozen=True, eq=False)
class MeanField(Networks):
    """Fixed points, phases and depth scales of one network, or of many.

    Parameters may be arrays, which broadcast.

    `activation` is a name (`theory.activations.names()`) or a function; `keep` is the keep rate, 1
    minus the dropout rate. Results are floats for numbers, arrays for arrays and tensors for
    tensors, on their device. Quantities that diverge are inf, and `status` says so. Two networks
    are equal if their parameters are.
    """

    @property
    def q_star(self) -> Array:
        """Return the length to which a signal of length 1 tends: S1 (2). inf if it diverges."""
        return self._in_shape(self._solution.q_star)

    @property
    def c_star(self) -> Array:
        """Return the correlation to which two signals tend: S1 (3), (4), erratum S1.1.

        If signals vanish, q* = 0, it is the limit of small biases; a trajectory without bias may
        end at another correlation.
        """
        return self._in_shape(1 - self._solution.gap)

    @property
    def gap_star(self) -> Array:
        """Return 1 - c*, without loss of digits."""
        return self._in_shape(self._solution.gap)

    @property
    def chi1(self) -> Array:
        """Return the factor of squared gradients from layer to layer: S1 (10), with 1/keep."""
        return self._in_shape(self._solution.chi1)

    @property
    def chi2(self) -> Array:
        """Return weight_var E phi'(x) phi'(y): S1 (6).

        It is the slope of the correlation map at c*, unless lengths diverge.
        """
        return self._in_shape(self._solution.chi2)

    @property
    def xi1(self) -> Array:
        """Return the number of layers over which a squared gradient changes by e: S1 (11)."""
        return self._in_shape(scales.depth_scale(self._solution.chi1))

    @property
    def xi2(self) -> Array:
        """Return the number of layers over which a difference of correlations decays by e: S1 (6).

        If lengths diverge, it is that of normalized signals.
        """
        return self._in_shape(scales.depth_scale(self._solution.slope))

    @property
    def status(self) -> Array:
        """Return converged, or diverges if the length grows without bound; it never oscillates."""
        return self._in_shape(self._solution.status)

    @property
    def phase(self) -> Array:
        """Return ordered, critical or chaotic: chi_1 below, at or above 1."""
        return self._in_shape(scales.phase(self._solution.chi1, self.tolerance))

    def trainable_depth(self, older: bool = False) -> Array:
        """Return min(12 xi_1, 12 xi_2), or the older law 6 xi_2."""
        xi2 = scales.depth_scale(self._solution.slope)
        if older:
            return self._in_shape(scales.DEPTHS_PER_SCALE_OLDER * xi2)
        xi1 = scales.depth_scale(self._solution.chi1)
        return self._in_shape(scales.DEPTHS_PER_SCALE * np.minimum(xi1, xi2))

    def length_map(self, q: ArrayLike) -> Array:
        """Return the length after one layer: S1 (2)."""
        xp, length = together(q=q)
        weight_var, bias_var, keep = self.parameters
        self._check_broadcast(length, "q")
        moment = self.phi.second_moment(as_numpy(checks.variance(xp, length, "q")))
        with np.errstate(over="ignore"):
            return self._in_input_type(weight_var / keep * moment + bias_var, q=q)

    def correlation_map(self, c: ArrayLike) -> Array:
        """Return the correlation after one layer of signals with length q*: S1 (3), (4)."""
        xp, correlation = together(c=c)
        checks.within(xp, correlation, -1, 1, "c", "pass a correlation")
        self._check_broadcast(correlation, "c")
        return self._in_input_type(1 - self._next_gap(1 - as_numpy(correlation)), c=c)

    def trajectory(self, q0: ArrayLike, c0: ArrayLike, depth: Count) -> Trajectory:
        """Return lengths and correlation at layers 0 to depth.

        `q0` is the length at layer 0: one number, or one for each of two inputs.
        """
        xp, start, correlation = together(q0=q0, c0=c0)
        first, second = _two(as_numpy(checks.variance(xp, start, "q0")))
        gap = 1 - as_numpy(checks.within(xp, correlation, -1, 1, "c0", "pass a correlation"))
        self._check_broadcast(first, "q0")
        self._check_broadcast(gap, "c0")
        layers = count(depth, "depth", least=0)
        path = follow(Layer(self.phi, *self.parameters), first, second, gap, layers)
        return Trajectory(
            q=self._in_input_type(path.q, q0=q0, c0=c0),
            c=self._in_input_type(path.c, q0=q0, c0=c0),
            q_bb=self._in_input_type(path.q_bb, q0=q0, c0=c0),
            gap=self._in_input_type(path.gap, q0=q0, c0=c0),
        )

    def lengths(self) -> tuple[FixedPoint, ...]:
        """Return all fixed points of the length map, for one network."""
        weight_var, bias_var, keep = (float(x) for x in self.one())
        rate = weight_var / keep
        fixed = lengths.all_fixed_lengths(self.phi, rate, bias_var)
        if not fixed:
            return ()
        slopes = lengths.length_slope(self.phi, np.full(len(fixed), rate), np.array(fixed))
        return tuple(FixedPoint(q, float(slope)) for q, slope in zip(fixed, slopes, strict=True))

    def correlations(self) -> tuple[FixedPoint, ...]:
        """Return all fixed points of the correlation map at q*, for one network.

        They are sorted from the largest down; there are none if there is no q*.
        """
        _, bias_var, keep = (float(x) for x in self.one())
        if self.status == DIVERGES:
            return ()
        fixed = []
        if keep == 1:
            fixed.append(FixedPoint(1.0, self.chi1))
        if self.gap_star > 0:
            fixed.append(FixedPoint(self.c_star, self.chi2))
        if keep == 1 and bias_var == 0 and self.q_star > 0 and self._is_odd():
            fixed.append(FixedPoint(-1.0, self.chi1))
        return tuple(fixed)

    def _next_gap(self, gap: Array) -> Array:
        """Return g' = A (1/keep - 1 + G).

        If the length diverges, the bias is negligible and A = keep.
        """
        weight_var, _, keep = self.parameters
        length = self._solution.q_star.reshape(np.shape(weight_var))
        q = np.clip(length, TINY, LONGEST)
        output_gap = Layer(self.phi, *self.parameters).output_gap(length, length, gap)
        share = np.where(np.isfinite(length), weight_var * (self.phi.second_moment(q) / q), keep)
        return share * (1 / keep - 1 + output_gap)

    def _is_odd(self) -> bool:
        x = np.linspace(0.1, 3, 30)
        return bool(np.allclose(self.phi(x), -np.asarray(self.phi(-x)), rtol=1e-12, atol=0))

    @cached_property
    def _solution(self) -> Solution:
        return solve(self.phi, *(x.ravel() for x in self.parameters))

    def _in_shape(self, flat: np.ndarray) -> Array:
        """Return a float or a word for numbers, an array for arrays, a tensor for tensors."""
        shaped = flat.reshape(self.parameters[0].shape)
        if shaped.dtype == object:
            return number(shaped)
        return self._in_input_type(shaped)


def _two(q0: Array) -> tuple[Array, Array]:
    """Return the lengths of two inputs; one number is the length of both."""
    if q0.ndim == 0:
        return q0, q0
    if len(q0) != 2:
        raise InputError(
            f"q0: expected one number, or one for each of two inputs; got shape {q0.shape}; for"
            " more inputs, call it for each pair",
            argument="q0",
        )
    return q0[0], q0[1]
