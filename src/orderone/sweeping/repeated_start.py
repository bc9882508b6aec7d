"""Notice what trials of one process share: repeat the start of the first trial after later ones.

Trials that are trained one after another in a process share its global variables, files, threads
and libraries. A trial begins with what the trials before it have left, so that its losses may
differ from those of a training in a new process. Texts of global variables show only a part of it.

So the first updates of the first trial of an architecture are recorded. After 2, 4, 8, ... trials
another model of the same seed makes these updates again. Losses and random draws must be the same;
otherwise a note names the first module whose output differs. Nothing is repeated between the first
trial and the second, so the repetition changes neither of them.

If the process has trained such a model before (a trial that was resumed, or those of an earlier
sweep), the first updates that are recorded may have been changed by it. Then they are repeated at
the end of their own trial, too.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from orderone.seeding import AllGenerators, preserved, seeded
from orderone.sweeping.trial import Trial
from orderone.torch_compat import is_functorch_wrapped_tensor, tree_leaves
from orderone.training.code_state import fresh_caches
from orderone.training.loop import TrainingLoop
from orderone.training.repeated_updates import UPDATES, compared_loss, loss_rounding

LEAST = 2  # trials before the first repetition


@dataclass(frozen=True)
class Output:
    """Norm of the tensors that a module returned."""

    module: str
    kind: str
    norm: float


@dataclass
class Start:
    """First updates of a trial, and how many trials of its architecture this process has ended."""

    trial: Trial
    losses: list[float] = field(default_factory=list)
    draws: str = ""  # digest of all random generators afterwards
    outputs: list[Output] = field(default_factory=list)  # of the first pass, in order
    trained: int = 0
    is_later: bool = False  # whether this process has trained such a model before

    @property
    def complete(self) -> bool:
        """Whether all updates were recorded; a trial that was resumed has made them before."""
        return bool(self.draws)

    @property
    def is_repeated_now(self) -> bool:
        """Whether the number of trials is 2, 4, 8, ..., or 1 if others were trained before."""
        least = 1 if self.is_later else LEAST
        return self.trained >= least and self.trained & (self.trained - 1) == 0


@contextmanager
def recorded(loop: TrainingLoop, start: Start, outputs: bool) -> Iterator[None]:
    """Record the first updates of a training that runs in this context.

    With `outputs`, those of all modules in its first pass, too.
    """
    names: dict[int, str] = {}
    for name, module in loop.step.module.named_modules():
        names[id(module)] = name
    handle = None
    if outputs:
        handle = register_module_forward_hook(partial(_record, names, start.outputs))

    def after_update(loop: TrainingLoop) -> None:
        if handle is not None:
            handle.remove()
        if loop.done == UPDATES:
            loop.read_losses()
            start.losses = loop.losses[:UPDATES]
            start.draws = _digest(AllGenerators.now())

    loop.after_update = after_update
    try:
        yield
    finally:
        loop.after_update = None
        if handle is not None:
            handle.remove()


def different_start(start: Start, make: Callable[[Trial], TrainingLoop]) -> str | None:
    """Make the first updates of a trial again; return what differs, None if nothing does."""
    with preserved():
        loop = make(start.trial)
    again = Start(start.trial)
    with (
        seeded(start.trial.seed),
        fresh_caches(loop.step.module, loop.step.loss_function),
        recorded(loop, again, outputs=bool(start.outputs)),
    ):
        for _ in range(UPDATES):
            loop.update()
            if loop.after_update is not None:
                loop.after_update(loop)
    different = _different_loss(start, again, loop)
    if different is None and again.draws != start.draws:
        different = "it drew other random numbers"
    if different is None:
        return None
    module = _different_output(start, again)
    where = ""
    if module is not None:
        where = f"; the output of {module} is the first that differs"
    trials = "1 trial" if start.trained == 1 else f"{start.trained} trials"
    return f"the trial {start.trial} was repeated after {trials}: {different}{where}"


def _record(
    names: dict[int, str],
    outputs: list[Output],
    module: nn.Module,
    args: object,
    output: object,
) -> None:
    if id(module) not in names:  # of another model, such as a teacher in the loss
        return
    total = 0.0
    for x in tree_leaves(output):
        if _has_numbers(x):
            if x.is_complex():
                wide = torch.complex128
            else:
                wide = torch.float64
            total += float(torch.linalg.vector_norm(x.detach(), dtype=wide))
    outputs.append(Output(names[id(module)], type(module).__name__, total))


def _has_numbers(x: object) -> TypeGuard[Tensor]:
    """Return whether the values of a tensor can be read; those of a model's own vmap cannot."""
    if not isinstance(x, Tensor) or x.is_meta or is_functorch_wrapped_tensor(x):
        return False
    return x.is_floating_point() or x.is_complex()


def _digest(generators: AllGenerators) -> str:
    digest = hashlib.sha256(repr(generators.python).encode())
    for part in generators.numpy:
        digest.update(np.asarray(part).tobytes())
    digest.update(generators.cpu.numpy().tobytes())
    if generators.cuda is not None:
        digest.update(generators.cuda.numpy().tobytes())
    return digest.hexdigest()


def _different_loss(start: Start, again: Start, loop: TrainingLoop) -> str | None:
    near = _rounding(loop)
    for step, loss in enumerate(again.losses):
        if compared_loss(start.losses, step, loss, 0, near) is not None:
            return f"the loss of update {step} was {start.losses[step]:.6g}, and is now {loss:.6g}"
    return None


def _rounding(loop: TrainingLoop) -> float:
    dtypes = {p.dtype for p in loop.step.module.parameters()}
    return loss_rounding(dtypes, loop.settings.half is not None, loop.world.device)


def _different_output(start: Start, again: Start) -> str | None:
    for before, now in zip(start.outputs, again.outputs, strict=False):
        if before != now:
            return f"{now.module or 'the model'} ({now.kind})"
    return None
