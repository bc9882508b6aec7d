"""Steps of a recorded forward pass.

`Value` says where a tensor comes from, `Operation` what was called, `Step` how values pass through
an operation. Every tensor has one of four levels:

    CONSTANT     made from numbers and buffers alone
    DATA         made from the inputs, no parameter yet
    PARAMETER    a parameter, a view or a copy of one, or a function of parameters alone, such as
                 1 + weight
    ACTIVATION   result of the use of a parameter

A parameter is used where a PARAMETER meets DATA or an ACTIVATION. On the meta device a constant in
a tensor cannot be read: its value is None.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from torch import Tensor

from orderone.observe.trace.facts import Use


class Level(IntEnum):
    """Origin of a tensor; see the head of this file."""

    CONSTANT, DATA, PARAMETER, ACTIVATION = range(4)


# for each dimension of a tensor, the axes of the parameter that it runs along
Dims = tuple[tuple[int, ...], ...]
# parameters that a tensor is computed from; None: their axes are lost
Weights = dict[str, Dims | None]


@dataclass
class Value:
    """A tensor with its origin.

    It holds the tensor, so that no other tensor can get the same id or memory.
    """

    tensor: Tensor
    level: Level = Level.CONSTANT
    # the step that made it; None for constants and for unchanged parameters
    step: int | None = None
    weights: Weights = field(default_factory=dict)  # at level PARAMETER
    owner: "Value | None" = None  # owner of the memory, if this is a view of a PARAMETER
    # a PARAMETER that is copied along a batch: it counts as an input, not as a weight
    spread: bool = False

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point() or self.tensor.is_complex()

    @property
    def is_input(self) -> bool:
        return self.level in (Level.DATA, Level.ACTIVATION)

    @property
    def is_weight(self) -> bool:
        return self.level == Level.PARAMETER

    def used(self, kind: str) -> list[tuple[str, Use]]:
        """Return a use of this kind for every parameter in the tensor."""
        return [(name, Use(kind)) for name in self.weights]

    def summed(self, kind: str, dims: Iterable[int]) -> list[tuple[str, Use]]:
        """Return uses that sum over `dims` of the tensor, as axes of the parameters."""
        dims = list(dims)
        uses: list[tuple[str, Use]] = []
        for name, axes_by_dim in self.weights.items():
            summed: set[int] = set()
            if axes_by_dim:
                for dim in dims:
                    summed.update(axes_by_dim[dim])
            uses.append((name, Use(kind, tuple(sorted(summed)) or None)))
        return uses


@dataclass
class Step:
    """An operation, classified by how values pass through it.

    pass, add, shift, constant, gain, weighting    linear; weighting is a product with a tensor made
                                                   without parameters
    product, contraction, attention                of activations: linear in each of `flow`
    matrix, convolution, lookup                    uses of parameters, where every walk stops
    normalized, norm                               division by a statistic; norm: with a gain
    softcap, softmax, stop                         not linear
    weights                                        the result is at level PARAMETER
    """

    kind: str
    flow: list[Value] = field(default_factory=list)  # the activations that pass through
    uses: list[tuple[str, Use]] = field(default_factory=list)
    factor: float | None = 1.0  # value of a constant; scale inside attention
    size: float = 1.0  # RMS of what a constant multiplies, if it was just normalized
    features: int = 0  # of a matrix: its fan-out
    # of a contraction: for both operands their step, and the sizes that are summed and not summed
    sides: tuple[tuple[int, int, int], ...] = ()
    gain: Value | None = None  # the parameters of a gain
    weights: Weights | None = None  # None: derive them from the tensors
    bends: bool = False  # f(c x) is no power of c times f(x)
    scaled_gain: bool = False  # a number multiplies the parameters of the gain; `factor` is it
    statistic: bool = False  # a root of a mean square, of a variance, ...
    squares: bool = False  # of one activation
    layer: str = ""  # the layer, with one matrix of its own, whose call this is a part of
    # repeats an operation that moves entries of its operands; the argument replaces its tensors
    move: "Callable[[Callable[[Tensor], Tensor]], object] | None" = None
    fed: bool = False  # depends on the inputs
    # steps of possible queries and keys, and the head size
    product: tuple[int, int, int] | None = None
    parents: tuple[int, ...] = ()  # the steps of `flow`
    ancestors: int = 0  # bit mask of steps, this one included


@dataclass(frozen=True)
class Operation:
    """A call of an aten operation."""

    name: str
    arguments: Mapping[str, Any]
    operands: list[Value]
    results: list[Tensor]
    # repeats the call; the argument replaces its tensors
    repeat: Callable[[Callable[[Tensor], Tensor]], object] | None = None

    @property
    def live(self) -> list[Value]:
        """Operands that depend on inputs or parameters."""
        return [value for value in self.operands if value.level != Level.CONSTANT]

    @property
    def inputs(self) -> list[Value]:
        """Floating operands that are data or activations."""
        return [value for value in self.operands if value.is_input and value.is_float]

    @property
    def other_uses(self) -> list[tuple[str, Use]]:
        """Uses of all parameters among the operands, without a known kind."""
        uses: list[tuple[str, Use]] = []
        for value in self.operands:
            uses += value.used("other")
        return uses


def is_of(name: str, layer: str) -> bool:
    """Return whether a parameter is one of a layer."""
    return bool(layer) and name.rpartition(".")[0] == layer
