"""Check at a resume that checkpoints hold all state: repeat updates between the last two of them.

The last checkpoint has the losses of all updates. So the training is loaded from the one before it,
makes its next updates again, and must have the same losses. This finds state that acts late,
wherever the training keeps it: in files, threads, other processes or libraries. It needs no copy of
the model, and works in several processes.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import isfinite

import torch

from orderone.training.checkpoint import Record, device_name
from orderone.training.loop import TrainingLoop

UPDATES = 2  # the first shows state of the forward pass, the second that of the update
# Relative differences of a loss that rounding explains, on a machine with other kernels:
# four units of the products (see `same_update`), for two updates
DOUBLE = 1e-9
SINGLE = 1e-5
ON_A_GPU = 4e-3  # the unit of TensorFloat32 is 2^-11
HALF = 3e-2  # that of bfloat16 is 2^-8
SMALLEST = 1e-3  # of the largest loss; smaller losses are compared with this part of it


def can_be_repeated(loop: TrainingLoop, record: Record, earlier: Record) -> bool:
    """Return whether a checkpoint continues an earlier one, on the kind of device that is used now.

    Other numbers of processes draw other random numbers.
    """
    if record.get("device") != device_name(loop) or earlier.get("device") != device_name(loop):
        return False
    done = len(earlier["losses"])
    if done >= len(record["losses"]) or record.get("of") != earlier.get("of"):
        return False
    return record["losses"][:done] == earlier["losses"]


def different_loss(loop: TrainingLoop, losses: Sequence[float]) -> str | None:
    """Repeat updates of a training that was loaded; return what differs from these losses."""
    first = loop.done
    for _ in range(min(UPDATES, len(losses) - first)):
        loop.update()
    loop.read_losses()
    dtypes = {p.dtype for p in loop.step.module.parameters()}
    near = loss_rounding(dtypes, loop.settings.half is not None, loop.world.device)
    for step, loss in enumerate(loop.losses[first:], start=first):
        different = compared_loss(losses, step, loss, first, near)
        if different is not None:
            return different
    return None


def compared_loss(
    losses: Sequence[float], step: int, repeated: float, first: int, near: float
) -> str | None:
    """Return how the loss of a repeated update differs from the one before; None if it agrees.

    The update was repeated from the checkpoint after `first` updates.
    """
    loss = losses[step]
    if not isfinite(loss) or not isfinite(repeated):
        same = isfinite(loss) == isfinite(repeated)
    else:
        largest = max(abs(x) for x in losses if isfinite(x))
        size = max(abs(loss), abs(repeated), SMALLEST * largest)
        same = abs(loss - repeated) <= near * size
    if same:
        return None
    return (
        f"the loss of update {step} was {loss:.6g}, and {repeated:.6g} when this update was"
        f" repeated from the checkpoint after {first} updates"
    )


def loss_rounding(dtypes: AbstractSet[torch.dtype], half: bool, device: torch.device) -> float:
    """Return the relative difference of a loss that rounding explains; `half`: autocast."""
    if half or dtypes & {torch.float16, torch.bfloat16}:
        return HALF
    if dtypes <= {torch.float64, torch.complex128}:
        return DOUBLE
    return SINGLE if device.type == "cpu" else ON_A_GPU
