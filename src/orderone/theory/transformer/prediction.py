"""Result of a pass through a Transformer, in the shapes of the user's kernel.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Array, Count
from orderone.theory.transformer.stream import Stream


@dataclass(frozen=True, eq=False)
class Prediction:
    """Kernels (points, points), or in the shape of G0; lists run over the stem and the blocks."""

    streams: Sequence[Stream]  # after the stem and after each block
    output_kernel: np.ndarray
    output_theta: Mapping[str, np.ndarray]  # empty without tangent kernels
    # standard errors of each block's sampled averages, in units of the largest F (about 1)
    errors: Sequence[float]
    # bounds of the errors in the tangent kernel, in units of its largest entry
    theta_errors: Sequence[float]
    head_variances: Sequence[np.ndarray]  # of each block's branch with a single head
    eps: float  # eps of the norms
    norm_gain: float = 1.0
    plain: bool = True  # norms before branches, and skip paths without gains

    @property
    def kernels(self) -> list[Array]:
        """Return G after the stem and after each block."""
        return [stream.tokens.in_user_shape(stream.G) for stream in self.streams]

    @property
    def normalized(self) -> list[Array]:
        """Return F after the norms that follow the stem and each block; the last is the head's."""
        result = []
        for stream in self.streams:
            normalized = stream.normalized(self.eps, self.norm_gain)
            result.append(stream.tokens.in_user_shape(normalized.G))
        return result

    @property
    def output(self) -> Array:
        """Return the kernel of the outputs."""
        return self._last.tokens.in_user_shape(self.output_kernel)

    @property
    def ntk(self) -> list[Array]:
        """Return Theta after the stem, after each block, and of the outputs."""
        totals = [stream.tokens.in_user_shape(stream.total()) for stream in self.streams]
        outputs = sum(self.output_theta.values(), np.zeros_like(self.output_kernel))
        return [*totals, self._last.tokens.in_user_shape(outputs)]

    @property
    def contributions(self) -> list[dict[str, Array]]:
        """Return Theta of each group, in the order of `ntk`."""
        in_user_shape = self._last.tokens.in_user_shape
        result = []
        for theta in self._thetas:
            result.append({group: in_user_shape(part) for group, part in theta.items()})
        return result

    @property
    def shares(self) -> list[dict[str, float]]:
        """Return the share of each group in the trace of Theta, in the order of `ntk`.

        Shares are 0 if the trace is 0.
        """
        result = []
        for theta in self._thetas:
            traces = {group: float(np.trace(part)) for group, part in theta.items()}
            total = sum(traces.values()) or 1.0
            result.append({group: trace / total for group, trace in traces.items()})
        return result

    def head_std(self, heads: Count) -> list[Array]:
        """Return the standard deviation of G between networks with `heads` heads: erratum S2.5.

        There is one matrix after the stem and after each block. Each attention block adds the
        fluctuation of its branch, which is of order 1 / sqrt(heads) at any width. The response of
        later blocks to an earlier fluctuation is not included. Means are shifted by order
        1 / heads.
        """
        if not self.plain:
            raise InputError(
                "head_std: expected placement='pre' and skip_gain=1, where fluctuations of blocks"
                " add up; got other settings",
                argument="heads",
            )
        tokens = self._last.tokens
        heads = count(heads, "heads")
        sums = np.cumsum([np.zeros_like(self.streams[0].G), *self.head_variances], axis=0)
        return [tokens.in_user_shape(np.sqrt(each / heads)) for each in sums]

    @property
    def _thetas(self) -> list[Mapping[str, np.ndarray]]:
        """Return Theta of each group after the stem, after each block, and of the outputs."""
        return [*(stream.theta for stream in self.streams), self.output_theta]

    @property
    def _last(self) -> Stream:
        return self.streams[-1]
