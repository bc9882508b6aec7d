"""Check that the checkpoint of a stack holds all state: one step after a save and a load.

The models of a stack may keep state anywhere. So once for every architecture, a stack of one member
makes an update, its state is loaded into another one, and both make the second update.
"""

from collections.abc import Sequence

import torch

from orderone.seeding import preserved, set_seed
from orderone.sweeping.job import Job
from orderone.sweeping.stacked.feed import stacked_batches
from orderone.sweeping.stacked.making import make_stack
from orderone.sweeping.trial import Trial
from orderone.training import checkpoint as checkpoints
from orderone.training.resume_check import different_attributes, later_text
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
    set_seed(trial.seed)
    stack.step(*batches[0])
    generators = checkpoints.random_states(torch.device(job.device))
    state = {name: x.detach().clone() for name, x in stack.state().items()}
    tensors: dict[str, torch.Tensor] = {}
    packed = checkpoints.pack(checkpoints.extra_states(stack.program.model), tensors, "extra")
    expected = stack.step(*batches[1])
    checkpoints.restore_random(generators, torch.device(job.device))
    other.load(state)
    checkpoints.restore_extra(other.program.model, checkpoints.unpack(packed, tensors))
    found = other.step(*batches[1])
    if _same(expected, found) and _same_parameters(stack, other):
        return later_text(different_attributes(stack.program.model, other.program.model))
    now = description(stack.program.model)
    names = [name for name, text in now.items() if at_start.get(name) != text]
    where = " and ".join(names[:3]) or "something outside the parameters and buffers"
    return (
        f"the model keeps state in {where}, which is not in a checkpoint: the loss of the second"
        f" update is {expected.item():.6g}, and {found.item():.6g} after a save and a load;"
        " register a buffer for it, or implement get_extra_state and set_extra_state"
    )


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=NEAR, atol=0.0, equal_nan=True)


def _same_parameters(stack: Stack, other: Stack) -> bool:
    for name, p in stack.parameters.items():
        size = NEAR * float(p.detach().abs().max()) if p.numel() else 0.0
        if not torch.allclose(p, other.parameters[name], rtol=0.0, atol=size, equal_nan=True):
            return False
    return True
