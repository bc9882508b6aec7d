"""A plan whose learning rates are used and whose scales are not: said once, when the first step is
made.

Nothing fails in such a training, and nothing is as planned. Before the first step there is nothing
to say: `apply` may still come.
"""

import math
import warnings
from itertools import count
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from orderone.planning.apply import is_applied
from orderone.planning.initial import Initial

if TYPE_CHECKING:
    from orderone.planning.plan import Plan, Row

# logarithms of sizes nearer than this are those of the plan, but for the noise of few entries
SAME = 0.1


def remind(plan: "Plan", model: nn.Module, optimizer: Optimizer) -> None:
    steps = count()

    def first_step(*_: Any) -> None:  # stays on: hooks may not be removed while hooks are called
        if next(steps) == 0 and not plan.applied and not is_applied(model) and _would_change(plan):
            warnings.warn(
                "the plan was not applied to the model that is trained: initial sizes and"
                " multipliers are not those of the plan; call plan.apply() before the first step",
                stacklevel=4,
            )

    optimizer.register_step_pre_hook(first_step)


def _would_change(plan: "Plan") -> bool:
    return bool(plan.multipliers) or any(
        _off(row, plan.planned.get(row.name)) for row in plan.rows if row.trained
    )


def _off(row: "Row", now: Initial | None) -> bool:
    if now is None or min(now.rms, row.init_std) <= 0:
        return False
    return abs(math.log(row.init_std / now.rms)) > SAME + 2 / math.sqrt(math.prod(row.shape))
