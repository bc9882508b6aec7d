"""What a layer is: a function from kernel to kernel, described by a few numbers.

A pointwise layer needs no pair but the one at hand. It says what becomes of the points (the
diagonals, exact and cheap) and what becomes of the pairs; `pairs.through` then runs any number of
such layers in one pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from orderone.core.errors import instance
from orderone.theory.kernels.kernel import Kernel, Points
from orderone.theory.kernels.pairs import Step, through


class Layer(ABC):
    """A description, equal to any other with the same numbers. Call it with a kernel to get the
    next one."""

    pointwise: ClassVar[bool] = False  # whether pairs are treated one by one
    independent: ClassVar[bool | None] = (
        None  # of its input, by weights of its own; None if as much as its input was
    )

    def __call__(self, kernel: Any) -> Kernel:
        """The kernel behind this layer."""
        return self.apply(instance(kernel, Kernel, "kernel", "start with kernels.inputs(X)"))

    @abstractmethod
    def apply(self, kernel: Kernel) -> Kernel:
        """What a layer is, and all that one of your own needs to say."""


class Pointwise(Layer):
    """A layer that treats each pair of points by itself, and can share a pass over them with its
    neighbours."""

    pointwise = True

    @abstractmethod
    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        """What happens to pairs of `points`, in the precision `dtype`; and the points behind this
        layer."""

    def apply(self, kernel: Kernel) -> Kernel:
        return run([self], kernel)


def run(layers: Iterable[Layer], kernel: Kernel) -> Kernel:
    """`kernel` behind `layers`, all of them pointwise."""
    steps, points = steps_through(layers, kernel.points, kernel.gap.dtype)
    return through(kernel, steps, points)


@np.errstate(all="ignore")  # as in `through`
def steps_through(
    layers: Iterable[Layer], points: Points, dtype: object
) -> tuple[list[Step], Points]:
    """What all layers do to pairs, one after the other, and the points behind the last."""
    steps = []
    for layer in layers:
        assert isinstance(layer, Pointwise)
        step, points = layer.prepare(points, dtype)
        steps.append(step)
    return steps, points


def read_layers(layers: Sequence[Any], name: str) -> tuple[Layer, ...]:
    remedy = "give kernels.Dense(...), kernels.Activation('relu') and the like"
    return tuple(
        instance(layer, Layer, f"{name}: layer {i}", remedy) for i, layer in enumerate(layers, 1)
    )
