"""Check that the checkpoint of a stack holds all state: one step after a save and a load.

The models of a stack may keep state anywhere. So once for every architecture, a stack of one member
makes an update, its state is loaded into another one, and both make the second update.

If they differ, new stacks repeat both updates without a save and a load, as controls: where kernels
of a GPU add in any order, these differ from the first stack by a comparable amount, and no state is
lost (`due_to_kernels`). Counters in attributes, and global variables that training changes, are
state whatever the controls say: a global variable would make the controls differ, too.
"""

from collections.abc import Mapping, Sequence

import torch

from orderone.seeding import preserved, set_seed
from orderone.sweeping.job import Job
from orderone.sweeping.stacked.feed import stacked_batches
from orderone.sweeping.stacked.making import make_stack
from orderone.sweeping.trial import Trial
from orderone.training import checkpoint as checkpoints
from orderone.training.code_state import global_texts
from orderone.training.resume_check import (
    Deviation,
    deviation,
    different_attributes,
    due_to_kernels,
    later_text,
    lost_text,
)
from orderone.training.stacked.alike import description
from orderone.training.stacked.stack import Stack

NEAR = 1e-5  # relative difference of losses by other orders of addition on a GPU


def state_lost_by_checkpoints(job: Job, trials: Sequence[Trial]) -> str | None:
    """Return the state that a checkpoint would not hold; None if it holds all."""
    trial = trials[0]
    key = f"stack {trial.program}"
    if key not in job.resume_checks:
        lost = None
        if job.settings_of(trial).steps > 1:
            with preserved():
                lost = _check(job, trial)
        job.resume_checks[key] = (True, lost)
    return job.resume_checks[key][1]


def _check(job: Job, trial: Trial) -> str | None:
    source = job.source(trial)
    batches = [stacked_batches(job, source, step, [trial.data_seed]) for step in range(2)]
    stack = make_stack(job, [job.member(trial)])
    other = make_stack(job, [job.member(trial)])
    at_start = description(other.program.model)
    globals_at_start = global_texts(other.program.model)
    _seed(stack, trial)
    stack.step(*batches[0])
    generators = checkpoints.random_states(torch.device(job.device))
    state = {name: x.detach().clone() for name, x in stack.state().items()}
    tensors: dict[str, torch.Tensor] = {}
    packed = checkpoints.pack(checkpoints.extra_states(stack.program.model), tensors, "extra")
    expected = stack.step(*batches[1])
    checkpoints.restore_random(generators, torch.device(job.device))
    other.load(state)
    checkpoints.restore_extra(other.program.model, checkpoints.unpack(packed, tensors))
    losses = other.step(*batches[1])
    if _same(expected, losses) and _same_parameters(stack, other):
        return later_text(different_attributes(stack.program.model, other.program.model))
    found = deviation(expected.tolist(), losses.tolist(), stack.parameters, other.parameters)
    certain = different_attributes(stack.program.model, other.program.model, exact=False)
    certain += _changed(globals_at_start, global_texts(stack.program.model))
    del other, state, tensors, packed  # a control needs the memory

    def control() -> Deviation:
        again = make_stack(job, [job.member(trial)])
        _seed(again, trial)
        again.step(*batches[0])
        losses = again.step(*batches[1])
        return deviation(expected.tolist(), losses.tolist(), stack.parameters, again.parameters)

    if not certain and due_to_kernels(found, control):
        return None
    return lost_text(certain or _changed(at_start, description(stack.program.model)), found)


def _seed(stack: Stack, trial: Trial) -> None:
    """Let a stack of one member, and all generators, draw the same numbers each time."""
    stack.seed([trial.seed])
    set_seed(trial.seed)


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name, text in now.items() if before.get(name) != text]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=NEAR, atol=0.0, equal_nan=True)


def _same_parameters(stack: Stack, other: Stack) -> bool:
    for name, p in stack.parameters.items():
        size = NEAR * float(p.detach().abs().max()) if p.numel() else 0.0
        if not torch.allclose(p, other.parameters[name], rtol=0.0, atol=size, equal_nan=True):
            return False
    return True
