"""An axis of scale: a named function from a tensor and a ratio to factors.

Width and depth need the shapes and the forward pass of a model; `planning` finds their ratios.
Other axes (batch size, training tokens, axes of third parties) have one ratio for the whole model,
which the user passes as a pair (base, target).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from orderone.core.roles import Role
from orderone.rules.factors import Factors
from orderone.theory.exponents.laws import UpdateLaw


class Memory(StrEnum):
    """How an optimizer remembers former gradients, which decides what follows the batch size."""

    # Adam, RMSprop: averages of gradients and squares, each with its own beta, and the average of
    # squares normalizes. 1 - beta can follow the number of steps
    AVERAGES = "averages"
    # SGD, Lion, Muon: a momentum of a fixed number of steps. If the update is normalized, it is
    # normalized by the size of the momentum itself
    MOMENTUM = "momentum"


@dataclass(frozen=True)
class ScaledTensor:
    """One tensor, and the ratio of an axis: target over base."""

    role: Role
    ratio: float
    law: UpdateLaw
    memory: Memory | None = None  # None: unknown
    coupled_decay: bool = False  # weight decay is added to the gradient

    @property
    def normalizes(self) -> bool:
        """Whether the size of updates does not depend on the size of gradients."""
        return self.law.gradient == 0


@dataclass(frozen=True)
class Axis:
    """A named axis: a function from a tensor and its ratio to factors.

    `formula` and `source` are one line each; a plan prints the name beside the factors.
    """

    name: str
    factors: Callable[[ScaledTensor], Factors]
    formula: str
    source: str
