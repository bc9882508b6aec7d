"""Checkpoints of `train`: whole tensors in one safetensors file, whoever wrote it.

Shards are put together tensor by tensor, so that what four processes wrote one can read, and the
reverse. Random states are those of every process, and are taken up if there are as many again.
Nothing is pickled.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from orderone.torch_compat import tree_map
from orderone.training import checkpoint as checkpoints
from orderone.training.world import World, like, whole

if TYPE_CHECKING:
    from orderone.training.loop import Training

KIND = "train"


class Kept:
    def __init__(self, path: Path, here: World):
        if path.suffix != checkpoints.SUFFIX:
            raise ValueError(
                f"checkpoint: expected a file that ends in {checkpoints.SUFFIX}, got {path}"
            )
        self.path = path
        self.here = here
        _make_folder(path.parent)

    # --- writing ----------------------------------------------------------------------------------

    def save(self, training: "Training") -> None:
        """All processes take part, the first one writes."""
        tensors: dict[str, Tensor] = {}
        for name, value in values(training).items():
            self._add(tensors, f"model.{name}", whole(value.detach()))
        state = tree_map(self._collected, training.optimizer.state_dict()["state"])
        for name, value in self._random().items():
            self._add(tensors, name, value)
        if self.here.first:
            record = {
                "kind": KIND,
                "keys": [],
                "of": dict(training.identity),
                "losses": training.losses,
                "evaluation": training.evaluation,
                "seconds": training.seconds,
                "optimizer": checkpoints.pack(state, tensors, "optimizer"),
            }
            checkpoints.save(self.path, tensors, record)
        self.here.wait()

    def _collected(self, value: Any) -> Any:
        """The first process keeps it; the others only help to put it together."""
        if not isinstance(value, Tensor):
            return value
        found = whole(value)
        if self.here.first:
            return found.cpu()
        return torch.empty(0)

    def _add(self, tensors: dict[str, Tensor], name: str, value: Tensor) -> None:
        if self.here.first:
            tensors[name] = value.cpu()

    def _random(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self.here.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.here.device)
        everyone = {kind: self.here.gathered(state) for kind, state in states.items()}
        return {
            f"random.{kind}.{rank}": state
            for kind, all_ in everyone.items()
            for rank, state in enumerate(all_)
        }

    # --- reading ----------------------------------------------------------------------------------

    def restore(self, training: "Training") -> None:
        """Nothing if there is no file; a ValueError if it is of another training."""
        if not self.path.exists():
            return
        found = checkpoints.load(self.path)
        if found is None or found[1].get("kind") != KIND:
            raise ValueError(
                f"checkpoint: {self.path} is no checkpoint of train; remove it, or give another"
                " path"
            )
        tensors, record = found
        self._compare(training, tensors, record)
        with torch.no_grad():
            for name, value in values(training).items():
                value.copy_(like(tensors[f"model.{name}"], value))
        self._restore_optimizer(
            training.optimizer, checkpoints.unpack(record["optimizer"], tensors)
        )
        self._restore_random(tensors)
        training.losses = list(record["losses"])
        training.seconds = float(record["seconds"])
        training.evaluation = [(int(step), float(value)) for step, value in record["evaluation"]]

    def _compare(
        self, training: "Training", tensors: dict[str, Tensor], record: dict[str, Any]
    ) -> None:
        remedy = "remove it, or give another path"
        ours = {f"model.{name}": tuple(value.shape) for name, value in values(training).items()}
        theirs = {
            name: tuple(value.shape) for name, value in tensors.items() if name.startswith("model.")
        }
        for name in ours | theirs:
            if ours.get(name) != theirs.get(name):
                told = (
                    f"{name.removeprefix('model.')} is {theirs.get(name)} there and"
                    f" {ours.get(name)} here"
                )
                raise ValueError(f"checkpoint: {self.path} is of another model: {told}; {remedy}")
        asked = dict(training.identity)
        for name in asked | record["of"]:
            if record["of"].get(name) != asked.get(name):
                told = f"{name} {record['of'].get(name)}, and this training has {asked.get(name)}"
                raise ValueError(f"checkpoint: {self.path} was written with {told}; {remedy}")

    def _restore_optimizer(self, optimizer: Any, state: dict[int, dict[str, Any]]) -> None:
        """States of a tensor's shape are sharded as the tensor is."""
        groups = optimizer.state_dict()["param_groups"]
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        numbers = [number for group in groups for number in group["params"]]
        owner = dict(zip(numbers, tensors, strict=True))

        def placed(value: Any, p: Tensor) -> Any:
            if isinstance(value, Tensor) and value.dim() and value.shape == p.shape:
                return like(value, p)
            return value

        state = {
            k: {name: placed(value, owner[k]) for name, value in of.items()}
            for k, of in state.items()
        }
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _restore_random(self, tensors: dict[str, Tensor]) -> None:
        number = sum(name.startswith("random.cpu.") for name in tensors)
        if number != self.here.size:
            return
        torch.set_rng_state(tensors[f"random.cpu.{self.here.rank}"])
        if self.here.device.type == "cuda" and f"random.cuda.{self.here.rank}" in tensors:
            torch.cuda.set_rng_state(tensors[f"random.cuda.{self.here.rank}"], self.here.device)


def values(training: "Training") -> dict[str, Tensor]:
    """Parameters and buffers, shared ones once."""
    return dict(training.module.named_parameters()) | dict(training.module.named_buffers())


def _make_folder(folder: Path) -> None:
    """Before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"checkpoint: the folder {folder} cannot be made ({error.strerror}); give another path"
        ) from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"checkpoint: the folder {folder} cannot be written to; give another path")
