"""By which law an optimizer is judged: that of its class, where it is known, and otherwise what its
steps show."""

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from orderone.measure.degrees import Degrees, degrees, settles
from orderone.optimizers.table import ALGORITHMS, CLASSES, known_name

DEFAULT_OPTIMIZER = "adamw"
LATER = 16  # steps to look beyond those of a check


@dataclass(frozen=True)
class Law:
    name: Any  # of an optimizer that has it
    begins: int = 0  # the first step that follows it
    note: str = ""
    trouble: str = ""  # why these steps do not show it


def law_of(model: nn.Module, optimizer: Any, asked: Any, steps: int) -> Law:
    """Of a class that is known, what was asked for, or the nearest known class that it inherits
    from."""
    kind = type(optimizer)
    known = known_name(kind)
    if known is not None and (kind is CLASSES[known] or asked == DEFAULT_OPTIMIZER):
        return Law(known)
    if known is not None or not isinstance(optimizer, Optimizer):
        return Law(asked)
    return _shown(kind.__name__, asked, _looked_at(model, optimizer, steps + LATER), steps)


def _looked_at(model: nn.Module, optimizer: Optimizer, steps: int) -> Degrees:
    try:
        return degrees(model, optimizer, steps)
    except (
        Exception
    ):  # some optimizers refuse to be copied, or to step without a closure, in ways of their own
        return {}


def _shown(kind: str, asked: Any, found: Degrees, steps: int) -> Law:
    if asked == DEFAULT_OPTIMIZER and settles(found, 1.0) == 0:
        return Law(
            "sgd",
            note=(
                f"{kind} is judged as sgd, as its steps are proportional to the gradient;"
                " optimizer= names another law"
            ),
        )
    name = asked.__name__.lower() if isinstance(asked, type) else str(asked).lower()
    degree = ALGORITHMS[name].update_law.gradient if name in ALGORITHMS else 0
    first = settles(found, float(degree))
    told = f"{kind} is judged as {name}; optimizer= names another law"
    if not first:
        return Law(asked, note=told)
    other = f"the first {first} steps of {kind} do not follow the gradient as those of {name} do"
    if first < steps:
        return Law(asked, first, note=f"{told}; {other}, and updates are judged after them")
    return Law(asked, first, told, trouble=f"{other}: give steps={first + steps}")
