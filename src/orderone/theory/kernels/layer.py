"""The base class of layers: functions from kernel to kernel, described by a few numbers.

A pointwise layer treats each pair of points separately. It computes the new points (the diagonals,
exact and cheap), and returns a step for the pairs. `pairs.through` then runs any number of such
layers in one pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, TypeAlias

import numpy as np

from orderone.core.errors import instance
from orderone.core.inputs import UserInput
from orderone.theory.kernels.kernel import Kernel, Points
from orderone.theory.kernels.pairs import Step, through

KernelInput: TypeAlias = Annotated[Kernel, UserInput]


class Layer(ABC):
    """A layer, equal to any other with the same numbers. Call it with a kernel to get the next."""

    pointwise: ClassVar[bool] = False  # whether pairs are treated one by one

    # Whether new weights make the output independent of the input; None if the layer has no weights
    # and leaves this as it was.
    independent: ClassVar[bool | None] = None

    def __call__(self, kernel: KernelInput) -> Kernel:
        """Return the kernel behind this layer."""
        return self.apply(instance(kernel, Kernel, "kernel", "start with kernels.inputs(X)"))

    @abstractmethod
    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel behind this layer. A new kind of layer implements only this."""


class Pointwise(Layer):
    """A layer that treats each pair of points separately.

    It can share a pass over the pairs with its neighbours.
    """

    pointwise = True

    @abstractmethod
    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        """Return the step for pairs of `points`, and the points behind this layer.

        Pairs have the precision `dtype`.
        """

    def apply(self, kernel: Kernel) -> Kernel:
        return run([self], kernel)


LayerInput: TypeAlias = Annotated[Layer, UserInput]


def run(layers: Iterable[Layer], kernel: Kernel) -> Kernel:
    """Return the kernel behind `layers`, all of them pointwise."""
    steps, points = steps_through(layers, kernel.points, kernel.gap.dtype)
    return through(kernel, steps, points)


@np.errstate(all="ignore")  # as in `through`
def steps_through(
    layers: Iterable[Layer], points: Points, dtype: object
) -> tuple[list[Step], Points]:
    """Return the steps of all layers for pairs, and the points behind the last layer."""
    steps = []
    for layer in layers:
        assert isinstance(layer, Pointwise)
        step, points = layer.prepare(points, dtype)
        steps.append(step)
    return steps, points


def read_layers(layers: Sequence[object], name: str) -> tuple[Layer, ...]:
    """Return the layers, or raise a ValueError that names the first value that is none."""
    remedy = "give kernels.Dense(...), kernels.Activation('relu') and the like"
    return tuple(
        instance(layer, Layer, f"{name}: layer {i}", remedy) for i, layer in enumerate(layers, 1)
    )
