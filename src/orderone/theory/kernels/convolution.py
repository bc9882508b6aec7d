"""Convolution with infinitely many channels.

    z_i(t)           = sqrt(weight_var / (n |D|)) sum_jd W_ijd h_j(t + d) + sqrt(bias_var) b_i
    K'_(a,t)(b,s)    = weight_var / |D| sum_d K_(a,t+d)(b,s+d) + bias_var
    Theta'           = weight_var / |D| sum_d Theta_(a,t+d)(b,s+d) + K'

t and s are pixels, D is the window of offsets d, and h is 0 outside of the image. Channels become
Gaussian, with mean 0. Novak et al. 2019, "Bayesian Deep Convolutional Networks with Many Channels
are Gaussian Processes"; Arora et al. 2019, "On Exact Computation with an Infinitely Wide Neural
Net", section 4.

All pairs of pixels are stored: (inputs * pixels)^2 numbers. Sums run in double precision.
"""

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace, device

from orderone.core.errors import one_of
from orderone.core.inputs import Array, Name, Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer
from orderone.theory.kernels.matrices import from_matrices
from orderone.theory.kernels.pooling import check_tokens, symmetric
from orderone.theory.kernels.windows import MODES, SpaceInput, Windows, per_axis


@dataclass(frozen=True, init=False)
class Conv(Layer):
    """Convolution with weights of variance `weight_var` / fan-in (channels times window).

    Numbers for one axis hold for all axes of space. `padding_mode` is that of `torch.nn.Conv2d`.
    """

    window: tuple[int, ...]
    weight_var: float
    bias_var: float
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: str
    independent: ClassVar[bool | None] = True

    def __init__(
        self,
        window: SpaceInput,
        weight_var: Number = 1.0,
        bias_var: Number = 0.0,
        *,
        stride: SpaceInput = 1,
        padding: SpaceInput = 0,
        dilation: SpaceInput = 1,
        padding_mode: Name = "zeros",
    ) -> None:
        object.__setattr__(self, "window", per_axis(window, "window", 1))
        object.__setattr__(self, "weight_var", real(weight_var, "weight_var", least=0))
        object.__setattr__(self, "bias_var", real(bias_var, "bias_var", least=0))
        object.__setattr__(self, "stride", per_axis(stride, "stride", 1))
        object.__setattr__(self, "padding", per_axis(padding, "padding", 0))
        object.__setattr__(self, "dilation", per_axis(dilation, "dilation", 1))
        object.__setattr__(self, "padding_mode", one_of(padding_mode, MODES, "padding_mode"))

    def apply(self, kernel: Kernel) -> Kernel:
        check_tokens(kernel, self)
        windows = Windows.of(
            kernel.space, self.window, self.stride, self.padding, self.dilation, self.padding_mode
        )
        scale = self.weight_var / windows.pixels.shape[0]
        nngp = scale * _summed(kernel.nngp, windows) + self.bias_var
        ntk = scale * _summed(kernel.ntk, windows) + nngp
        mean = array_namespace(nngp).zeros_like(nngp[:, 0])
        pixels = windows.pixels.shape[1]
        new = from_matrices(nngp, ntk, mean, True, pixels, windows.space)
        return new.astype(kernel.gap.dtype)


def _summed(matrix: Array, windows: Windows) -> Array:
    """Sum (inputs, pixels, inputs, pixels) over windows; return (new points, new points)."""
    xp = array_namespace(matrix)
    inputs, pixels = matrix.shape[:2]
    padded = xp.zeros(
        (inputs, pixels + 1, inputs, pixels + 1), dtype=xp.float64, device=device(matrix)
    )
    padded[:, :pixels, :, :pixels] = matrix
    total = None
    for row in windows.pixels:
        index = xp.asarray(row % (pixels + 1), device=device(matrix))  # -1 is the zero at the end
        part = xp.take(xp.take(padded, index, axis=1), index, axis=3)
        total = part if total is None else total + part
    assert total is not None
    side = inputs * total.shape[1]
    return symmetric(xp.reshape(total, (side, side)))
