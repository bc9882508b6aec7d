"""Result of a pass through a Transformer, in the shapes the user gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orderone.core.exact import count
from orderone.core.inputs import Array, Count
from orderone.theory.transformer.stream import Stream


@dataclass(frozen=True, eq=False)
class Prediction:
    """Kernels (points, points), or in the shape of G0; lists run over the stem and the blocks
    behind it."""

    streams: Sequence[Stream]  # behind the stem and behind each block
    output_kernel: np.ndarray
    output_theta: Mapping[str, np.ndarray]  # empty, if tangent kernels were not asked for
    # of each block's averages by sampling, in units of the largest F (about 1)
    errors: Sequence[float]
    # what these can amount to in the tangent kernel, in units of its largest entry
    theta_errors: Sequence[float]
    head_variances: Sequence[np.ndarray]  # of each block's branch, if it had a single head
    eps: float  # of the norms

    @property
    def kernels(self) -> list[Array]:
        """G behind the stem, and behind each block."""
        return [stream.tokens.shown(stream.G) for stream in self.streams]

    @property
    def normalized(self) -> list[Array]:
        """F, behind the norms that follow the stem and each block; the last one is that of the
        head."""
        return [stream.tokens.shown(stream.normalized(self.eps).G) for stream in self.streams]

    @property
    def output(self) -> Array:
        """The kernel of the outputs."""
        return self._last.tokens.shown(self.output_kernel)

    @property
    def ntk(self) -> list[Array]:
        """Theta behind the stem, behind each block, and of the outputs."""
        totals = [stream.tokens.shown(stream.total()) for stream in self.streams]
        outputs = sum(self.output_theta.values(), np.zeros_like(self.output_kernel))
        return [*totals, self._last.tokens.shown(outputs)]

    @property
    def contributions(self) -> list[dict[str, Array]]:
        """Theta of each group, in the places of `ntk`."""
        shown = self._last.tokens.shown
        result = []
        for theta in self._thetas:
            result.append({group: shown(part) for group, part in theta.items()})
        return result

    @property
    def shares(self) -> list[dict[str, float]]:
        """The part of each group in the trace of Theta, in the places of `ntk`; 0 where nothing
        moves."""
        result = []
        for theta in self._thetas:
            traces = {group: float(np.trace(part)) for group, part in theta.items()}
            total = sum(traces.values()) or 1.0
            result.append({group: trace / total for group, trace in traces.items()})
        return result

    def head_std(self, heads: Count) -> list[Array]:
        """How much G fluctuates from network to network with that many heads, behind each block:
        erratum S2.5.

        Each attention block adds the fluctuation of its own branch, which is of order
        1 / sqrt(heads) at any width; what later blocks make of an earlier fluctuation is left out.
        Means are shifted by order 1 / heads.
        """
        tokens = self._last.tokens
        heads = count(heads, "heads")
        sums = np.cumsum([np.zeros_like(self.streams[0].G), *self.head_variances], axis=0)
        return [tokens.shown(np.sqrt(each / heads)) for each in sums]

    @property
    def _thetas(self) -> list[Mapping[str, np.ndarray]]:
        """Theta of each group behind the stem, behind each block, and of the outputs."""
        return [*(stream.theta for stream in self.streams), self.output_theta]

    @property
    def _last(self) -> Stream:
        return self.streams[-1]
