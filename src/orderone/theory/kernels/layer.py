"""Base class of layers: functions from kernel to kernel, described by a few numbers.

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
    """Function from a kernel to the next one; layers with the same numbers are equal."""

    pointwise: ClassVar[bool] = False  # whether pairs are treated one by one

    # Whether new weights make the output independent of the input; None for layers without
    # weights, which do not change this.
    independent: ClassVar[bool | None] = None

    def __call__(self, kernel: KernelInput) -> Kernel:
        """Return the kernel after this layer."""
        return self.apply(instance(kernel, Kernel, "kernel", "start with kernels.inputs(X)"))

    @abstractmethod
    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel after this layer. A new type of layer implements only this."""


class Pointwise(Layer):
    """Layer that treats each pair of points separately.

    It can share a pass over the pairs with its neighbours.
    """

    pointwise = True

    @abstractmethod
    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        """Return the step for pairs of `points`, and the points after this layer.

        Pairs have the precision `dtype`.
        """

    def apply(self, kernel: Kernel) -> Kernel:
        return run([self], kernel)


LayerInput: TypeAlias = Annotated[Layer, UserInput]


def run(layers: Iterable[Layer], kernel: Kernel) -> Kernel:
    """Return the kernel after `layers`, all of them pointwise."""
    steps, points = steps_through(layers, kernel.points, kernel.gap.dtype)
    return through(kernel, steps, points)


@np.errstate(all="ignore")  # as in `through`
def steps_through(
    layers: Iterable[Layer], points: Points, dtype: object
) -> tuple[list[Step], Points]:
    """Return the steps of all layers for pairs, and the points after the last layer."""
    steps = []
    for layer in layers:
        assert isinstance(layer, Pointwise)
        step, points = layer.prepare(points, dtype)
        steps.append(step)
    return steps, points


def read_layers(layers: Sequence[object], name: str) -> tuple[Layer, ...]:
    """Return the layers; raise an InputError that names the first value that is not a layer."""
    remedy = "pass layers such as kernels.Dense(...) and kernels.Activation('relu')"
    return tuple(
        instance(layer, Layer, f"{name}: layer {i}", remedy) for i, layer in enumerate(layers, 1)
    )
