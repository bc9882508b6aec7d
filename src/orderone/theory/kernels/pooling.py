"""Layers that join the tokens, or pixels, of an input.

    AveragePool        h'(a) = (1 / T) sum_t h(a, t)
                       K'_ab = (1 / T^2) sum_ts K_(a,t)(b,s)               the same for Theta
    LocalAveragePool   the same over a window of pixels
    Flatten            neurons of all tokens become the neurons of the input
                       K'_ab = (1 / T) sum_t K_(a,t)(b,t)                  the same for Theta

Neurons that were Gaussian remain so after a mean. After `Flatten`, they have the variances of
different tokens; a Dense layer must follow before the next activation. Sums run in double
precision, because differences between pooled inputs may be small.
"""

from dataclasses import dataclass, replace

from array_api_compat import array_namespace, device

from orderone.core.errors import InputError, instance
from orderone.core.inputs import Array, Flag
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer
from orderone.theory.kernels.matrices import from_matrices
from orderone.theory.kernels.windows import SpaceInput, Windows, per_axis


@dataclass(frozen=True)
class AveragePool(Layer):
    """Mean over tokens, which makes each input one point."""

    def apply(self, kernel: Kernel) -> Kernel:
        check_tokens(kernel, self)
        xp = array_namespace(kernel.gap)
        mean = xp.mean(xp.reshape(kernel.points.mean, (-1, kernel.tokens)), axis=1)
        nngp = _pooled(kernel.nngp)
        ntk = _pooled(kernel.ntk)
        return from_matrices(nngp, ntk, mean, kernel.points.gaussian).astype(kernel.gap.dtype)


@dataclass(frozen=True, init=False)
class LocalAveragePool(Layer):
    """Mean over windows of pixels, as `torch.nn.AvgPool2d`; numbers for one axis hold for all.

    With `count_pad`, pixels outside the image are zeros that count.
    """

    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    count_pad: bool

    def __init__(
        self,
        window: SpaceInput,
        stride: SpaceInput | None = None,
        padding: SpaceInput = 0,
        count_pad: Flag = True,
    ) -> None:
        object.__setattr__(self, "window", per_axis(window, "window", 1))
        chosen = window if stride is None else stride
        object.__setattr__(self, "stride", per_axis(chosen, "stride", 1))
        object.__setattr__(self, "padding", per_axis(padding, "padding", 0))
        checked = instance(count_pad, bool, "count_pad", "pass True or False")
        object.__setattr__(self, "count_pad", checked)

    def apply(self, kernel: Kernel) -> Kernel:
        check_tokens(kernel, self)
        windows = Windows.of(kernel.space, self.window, self.stride, self.padding)
        xp = array_namespace(kernel.gap)
        weights = windows.average(self.count_pad)
        P = xp.asarray(weights, dtype=xp.float64, device=device(kernel.gap))
        mean = xp.reshape(kernel.points.mean, (-1, weights.shape[1])) @ P.T
        joined = []
        for matrix in (kernel.nngp, kernel.ntk):
            columns = xp.astype(matrix, xp.float64) @ P.T  # (inputs, old, inputs, new)
            rows = xp.permute_dims(columns, (0, 2, 3, 1)) @ P.T
            wide = xp.permute_dims(rows, (0, 3, 1, 2))
            side = wide.shape[0] * wide.shape[1]
            joined.append(symmetric(xp.reshape(wide, (side, side))))
        nngp, ntk = joined
        return from_matrices(
            nngp,
            ntk,
            xp.reshape(mean, (-1,)),
            kernel.points.gaussian,
            weights.shape[0],
            windows.space,
        ).astype(kernel.gap.dtype)


@dataclass(frozen=True)
class Flatten(Layer):
    """Neurons of all tokens as the neurons of one point."""

    def apply(self, kernel: Kernel) -> Kernel:
        check_tokens(kernel, self)
        xp = array_namespace(kernel.gap)
        mean = xp.mean(xp.reshape(kernel.points.mean, (-1, kernel.tokens)), axis=1)
        joined = []
        tokens = kernel.tokens or 1
        for matrix in (kernel.nngp, kernel.ntk):
            total = 0.0
            for token in range(tokens):
                total = total + xp.astype(matrix[:, token, :, token], xp.float64)
            joined.append(symmetric(total / tokens))
        nngp, ntk = joined
        return from_matrices(nngp, ntk, mean, gaussian=False).astype(kernel.gap.dtype)


@dataclass(frozen=True)
class Positions(Layer):
    """Pixels of an image as tokens in a row: later layers do not know where they are."""

    def apply(self, kernel: Kernel) -> Kernel:
        check_tokens(kernel, self)
        return replace(kernel, space=(kernel.tokens or 0,))


def check_tokens(kernel: Kernel, layer: Layer) -> None:
    """Raise an InputError if inputs are single points."""
    if kernel.tokens is None:
        raise InputError(
            f"{type(layer).__name__}: expected inputs with tokens, got inputs that are single"
            " points; pass kernels.inputs an array of shape (inputs, tokens, features)",
            "needs-tokens",
            argument="kernel",
        )


def symmetric(matrix: Array) -> Array:
    """Return the matrix, symmetric to the last bit."""
    return (matrix + matrix.T) / 2


def _pooled(matrix: Array) -> Array:
    """Average (inputs, tokens, inputs, tokens) to (inputs, inputs)."""
    xp = array_namespace(matrix)
    tokens = matrix.shape[1]
    pooled = xp.sum(matrix, axis=(1, 3), dtype=xp.float64) / tokens**2
    return symmetric(pooled)
