"""State of a training in one process between two updates, as tensors and JSON."""

import torch
from torch import Tensor

from orderone.training import checkpoint as checkpoints
from orderone.training import optimizer_state
from orderone.training.checkpoint import Content, Record
from orderone.training.loop import TrainingLoop

MODEL = "model."


def snapshot(loop: TrainingLoop) -> Content:
    """Return the state; raise NotSavedError if a part of it cannot be written to a file."""
    module = loop.step.module
    optimizer = optimizer_state.state_of(loop.step.optimizer)
    extra = checkpoints.extra_states(module)
    unsaved = optimizer_state.unsaved_part(extra)
    if unsaved is not None:
        raise optimizer_state.NotSavedError(f"get_extra_state of a module returns {unsaved}")
    tensors: dict[str, Tensor] = {}
    for name, value in checkpoints.model_tensors(module).items():
        tensors[f"{MODEL}{name}"] = value
    for kind, state in checkpoints.random_states(loop.world.device).items():
        tensors[f"random.{kind}"] = state
    record: Record = {
        **checkpoints.progress(loop),
        "optimizer": checkpoints.pack(optimizer, tensors, "optimizer"),
        "extra": checkpoints.pack(extra, tensors, "extra"),
    }
    return tensors, record


def restore_snapshot(loop: TrainingLoop, content: Content) -> None:
    """Continue from a state of the same model."""
    tensors, record = content
    module = loop.step.module
    with torch.no_grad():
        for name, value in checkpoints.model_tensors(module).items():
            value.copy_(tensors[f"{MODEL}{name}"])
    state = checkpoints.unpack(record["optimizer"], tensors)
    optimizer_state.load_state(loop.step.optimizer, state)
    checkpoints.restore_extra(module, checkpoints.unpack(record.get("extra", _EMPTY), tensors))
    checkpoints.restore_random(checkpoints.named_random_states(tensors), loop.world.device)
    checkpoints.restore_progress(loop, record)


_EMPTY = {"dict": []}  # files of older versions have no extra states
