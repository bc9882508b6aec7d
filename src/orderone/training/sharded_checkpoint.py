"""Checkpoints of `train` in a folder, in which every process writes its part of the tensors.

    folder/step-200/shard-*.safetensors   one file for each process (torch.distributed.checkpoint)
    folder/step-200/record.json           losses, settings, numbers of the optimizer; written last

The tensors are copied, and written while the training goes on. A checkpoint counts once it has a
record. The newest `keep` of them stay. Any number of processes can continue it: for each process
torch reads the parts that it needs. Nothing is pickled.
"""

import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from orderone.core.errors import InputError, with_code
from orderone.training import checkpoint as checkpoints
from orderone.training import optimizer_state
from orderone.training.checkpoint import Record
from orderone.training.loop import TrainingLoop
from orderone.training.model_structure import lost_structure, resized_by_training
from orderone.training.repeated_updates import can_be_repeated
from orderone.training.train_checkpoint import KIND, REMEDY, TrainCheckpoint
from orderone.training.world import World

RECORD = "record.json"
STEP = re.compile(r"step-(\d+)")


class ShardedCheckpoint(TrainCheckpoint):
    """Folder of checkpoints of one training, of which the last `keep` stay."""

    def __init__(
        self,
        path: Path,
        world: World,
        identity: Mapping[str, object],
        other: TrainingLoop | None = None,
        keep: int = 2,
    ):
        super().__init__(path, world, identity, other)
        self.keep = keep
        self._writing: Future[str] | None = None  # its result is what went wrong
        self._group: dist.ProcessGroup | None = None  # processes as the writing threads see them
        self._folder = path

    # --- writing ----------------------------------------------------------------------------------

    def save(self, loop: TrainingLoop) -> None:
        """Begin to write the state; all processes must call this."""
        if self.pending is not None and loop.done < loop.settings.steps:
            return
        self.finish()
        self.warn_if_resized(loop)
        tensors, record = self._state(loop)
        self._folder = self.path / f"step-{loop.done}"
        if self.world.first:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.world.wait()
        if self._group is None and _in_background(self.world):
            # messages of the training would mix with those of the writing threads
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        written = _write(self._folder, tensors, self.world, self._group)
        committed: Future[str] = Future()
        written.add_done_callback(
            lambda done: committed.set_result(self._commit(done, self._folder, record))
        )
        self._writing = committed
        if loop.done == loop.settings.steps:
            self.finish()

    def _commit(self, written: Future[Any], folder: Path, record: Record) -> str:
        """Make a checkpoint count after all processes have written; return what went wrong.

        This runs in the thread that writes. torch collects the results of all processes before it
        ends.
        """
        error = written.exception()
        if error is not None:
            return str(error) or type(error).__name__
        if self.world.first:
            try:
                _write_record(folder / RECORD, record)
            except OSError as problem:
                return str(problem)
            self._remove_old()
        return ""

    def finish(self) -> None:
        """Wait until the last checkpoint is written; all processes must call this.

        If that failed, warn and continue: a full disk must not end a training.
        """
        if self._writing is None:
            return
        problem = self._writing.result()
        self._writing = None
        if not self.world.any(bool(problem)):
            return
        if self.world.first:
            shutil.rmtree(self._folder, ignore_errors=True)
            text = (
                f"cannot write the checkpoint {self._folder} ({problem or 'in another process'});"
                " the training continues, and tries again later"
            )
            warnings.warn(with_code(text, "checkpoint-not-written"), stacklevel=2)

    def _state(self, loop: TrainingLoop) -> tuple[dict[str, Tensor], Record]:
        """Return copies of this process's parts of all tensors, and everything else."""
        tensors: dict[str, Tensor] = {}
        for name, value in checkpoints.model_tensors(loop.step.module).items():
            tensors[f"model.{name}"] = value.detach()
        optimizer = checkpoints.pack(self._optimizer_state(loop), tensors, "optimizer")
        extra = checkpoints.pack(checkpoints.extra_states(loop.step.module), tensors, "extra")
        for kind, random_state in checkpoints.random_states(self.world.device).items():
            for rank, value in enumerate(self.world.gathered(random_state)):
                tensors[f"random.{kind}.{rank}"] = value
        record: Record = {
            "kind": KIND,
            "format": checkpoints.FORMAT,
            "of": dict(self.identity),
            **checkpoints.progress(loop),
            "optimizer": optimizer,
            "extra": extra,
            "tensors": {name: [str(x.dtype), list(x.shape)] for name, x in tensors.items()},
            "start_sizes": {} if loop.monitor is None else loop.monitor.start,
        }
        # torch copies tensors of a GPU itself
        copies = {name: x.clone() if x.is_cpu else x for name, x in tensors.items()}
        return copies, json.loads(json.dumps(record))

    def _remove_old(self) -> None:
        complete = _complete(self.path)
        for folder in complete[: -self.keep]:
            shutil.rmtree(folder, ignore_errors=True)
        newest = _step(complete[-1])
        for folder in _folders(self.path):  # of trainings that were killed while they wrote
            if folder not in complete and _step(folder) < newest:
                shutil.rmtree(folder, ignore_errors=True)

    # --- reading ----------------------------------------------------------------------------------

    def verify(self, loop: TrainingLoop) -> None:
        """Warn if updates between the last two checkpoints have other losses when repeated."""
        folders = _complete(self.path)[-2:]
        if not folders:
            return
        record = _read_record(folders[-1] / RECORD)
        if dict(self.identity) != record["of"]:
            return
        if resized_by_training(record.get("resized", {}), loop.step.module) is not None:
            return  # `restore` says so
        lost = lost_structure(loop.step.module, record.get("structure", {}))
        if lost is not None:
            self._warn(lost)
            return
        earlier = _read_record(folders[0] / RECORD)
        if not can_be_repeated(loop, record, earlier):
            return
        self._check_shapes(loop, record)
        self._load_folder(loop, folders[0], earlier)
        self._compare(loop, record["losses"])

    def restore(self, loop: TrainingLoop) -> None:
        """Continue from the newest complete checkpoint, if there is one.

        Raise an InputError if it belongs to another training.
        """
        complete = _complete(self.path)
        if not complete:
            return
        folder = complete[-1]
        record = _read_record(folder / RECORD)
        self._check_identity(record["of"])
        self._check_shapes(loop, record)
        self._load_folder(loop, folder, record)
        if loop.monitor is not None:
            loop.monitor.first = loop.done
            loop.monitor.start |= record["start_sizes"]

    def _load_folder(self, loop: TrainingLoop, folder: Path, record: Record) -> None:
        tensors = self._templates(loop, record)
        _read(folder, tensors, self.world)
        with torch.no_grad():
            for name, value in checkpoints.model_tensors(loop.step.module).items():
                value.copy_(tensors[f"model.{name}"])
        optimizer_state.load_state(
            loop.step.optimizer, checkpoints.unpack(record["optimizer"], tensors)
        )
        checkpoints.restore_extra(loop.step.module, checkpoints.unpack(record["extra"], tensors))
        self._restore_random(tensors)
        checkpoints.restore_progress(loop, record)

    def _check_shapes(self, loop: TrainingLoop, record: Record) -> None:
        empty: dict[str, Tensor] = {}
        for name, (dtype, shape) in record["tensors"].items():
            kind = getattr(torch, dtype.removeprefix("torch."))
            empty[name] = torch.empty(shape, dtype=kind, device="meta")
        self._check_model(loop, empty, record)

    def _templates(self, loop: TrainingLoop, record: Record) -> dict[str, Tensor]:
        """Return tensors to read into, distributed over processes as those of the training."""
        like: dict[str, Tensor] = {}
        for name, value in checkpoints.model_tensors(loop.step.module).items():
            like[f"model.{name}"] = value
        like |= _parameters_of_states(loop.step.optimizer)
        templates: dict[str, Tensor] = {}
        for name, (dtype, shape) in record["tensors"].items():
            kind = getattr(torch, dtype.removeprefix("torch."))
            model = like.get(name, like.get(name.rpartition(".")[0]))
            if model is not None and list(model.shape) == shape:
                templates[name] = torch.empty_like(model.detach(), dtype=kind)
            else:
                templates[name] = torch.empty(shape, dtype=kind)
        return templates


def _parameters_of_states(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the parameter of each state, by the name of the state in the packed tensors."""
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters.extend(group["params"])
    numbers: list[int] = []
    for group in optimizer.state_dict()["param_groups"]:
        numbers.extend(group["params"])
    states: dict[str, Tensor] = {}
    for number, parameter in zip(numbers, parameters, strict=True):
        states[f"optimizer.state.{number}"] = parameter
    return states


# --- files ----------------------------------------------------------------------------------------


def is_folder(path: Path) -> bool:
    """Return whether a path names a folder of checkpoints, not a file."""
    return path.suffix == ""


def _folders(path: Path) -> list[Path]:
    """Return the folders of all checkpoints, oldest first."""
    if not path.is_dir():
        return []
    folders = [folder for folder in path.iterdir() if STEP.fullmatch(folder.name)]
    return sorted(folders, key=_step)


def _step(folder: Path) -> int:
    return int(folder.name.partition("-")[2])


def _complete(path: Path) -> list[Path]:
    return [folder for folder in _folders(path) if (folder / RECORD).is_file()]


def _write_record(path: Path, record: Record) -> None:
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _read_record(path: Path) -> Record:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["kind"] == KIND and record["format"] == checkpoints.FORMAT:
            return record
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(
        f"checkpoint: {path.parent} is not a checkpoint of o1.train; {REMEDY}",
        "not-a-checkpoint",
        argument="checkpoint",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch about a single process, and about what it plans to change."""
    logger = logging.getLogger("torch.distributed.checkpoint")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _in_background(world: World) -> bool:
    """Return whether threads can write while the training goes on."""
    return world.size > 1 and "gloo" in dist.get_backend_config()


def _write(
    folder: Path, tensors: dict[str, Tensor], world: World, group: dist.ProcessGroup | None
) -> Future[Any]:
    """Write all tensors; in the background if `group` connects the threads that write."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import async_save, save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _quiet():
        if group is not None:
            response = async_save(tensors, storage_writer=writer, process_group=group)
            if isinstance(response, Future):
                return response
            return response.upload_completion
        written: Future[Any] = Future()
        try:
            save(tensors, storage_writer=writer, no_dist=world.size == 1)
            written.set_result(None)
        except Exception as error:
            written.set_exception(error)
        return written


def _read(folder: Path, tensors: dict[str, Tensor], world: World) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    with _quiet():
        load(tensors, storage_reader=reader, no_dist=world.size == 1)
