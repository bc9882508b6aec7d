"""What is written down during a forward pass: tensors and where they come from, operations and how
values pass through them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from torch import Tensor

from orderone.observe.trace.facts import Use


class Level(IntEnum):
    CONSTANT, DATA, PARAMETER, ACTIVATION = range(4)


Dims = tuple[
    tuple[int, ...], ...
]  # for each dimension of a tensor, the axes of the parameter it runs along
Weights = dict[str, Dims | None]  # parameters a tensor is made of; None: the axes are lost


@dataclass
class Value:
    """What is known of a tensor. It holds the tensor, so that no other tensor gets its id or its
    memory."""

    tensor: Tensor
    level: Level = Level.CONSTANT
    step: int | None = (
        None  # the step that made it; None for constants and for parameters as they are
    )
    weights: Weights = field(default_factory=dict)  # at level PARAMETER
    owner: "Value | None" = None  # of the memory, where this is a view of a PARAMETER
    spread: bool = (
        False  # a PARAMETER copied along a batch: from there on an input rather than a weight
    )

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
        return [(name, Use(kind)) for name in self.weights]

    def summed(self, kind: str, dims: Iterable[int]) -> list[tuple[str, Use]]:
        """Uses that sum over `dims` of the tensor, in terms of the parameters' axes."""
        dims = list(dims)
        axes = {
            name: sorted({axis for d in dims for axis in own[d]} if own else ())
            for name, own in self.weights.items()
        }
        return [(name, Use(kind, tuple(found) or None)) for name, found in axes.items()]


@dataclass
class Step:
    """An operation, by how a value passes through it.

    pass, add, shift, constant, gain, weighting    linear; weighting is a product with a tensor made
                                                   without parameters
    product, contraction, attention                of activations: linear in each of `flow`
    matrix, convolution, lookup                    uses of parameters, where every walk ends
    normalized, norm                               division by a statistic; norm: with a gain
    softcap, softmax, stop                         not linear
    weights                                        the result is at level PARAMETER
    """

    kind: str
    flow: list[Value] = field(default_factory=list)  # the activations it is about
    uses: list[tuple[str, Use]] = field(default_factory=list)
    factor: float | None = 1.0  # of a constant; the scale inside attention
    weights: Weights | None = None  # None: to be found out from the tensors
    statistic: bool = False  # a root of a mean square, of a variance, ...
    fed: bool = False  # depends on the inputs
    product: tuple[int, int, int] | None = (
        None  # steps of what may be queries and keys, and the size of a head
    )
    parents: tuple[int, ...] = ()  # the steps of `flow`
    ancestors: int = 0  # bit mask of steps; its own included


@dataclass(frozen=True)
class Operation:
    """An aten operation as it was called."""

    name: str
    given: Mapping[str, Any]
    operands: list[Value]
    results: list[Tensor]

    @property
    def live(self) -> list[Value]:
        return [v for v in self.operands if v.level != Level.CONSTANT]

    @property
    def inputs(self) -> list[Value]:
        return [v for v in self.operands if v.is_input and v.is_float]

    @property
    def other_uses(self) -> list[tuple[str, Use]]:
        return [use for v in self.operands for use in v.used("other")]
