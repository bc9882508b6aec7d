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
from orderone.torch_compat import tree_map
from orderone.training import checkpoint as checkpoints
from orderone.training.code_state import fresh_caches, global_texts
from orderone.training.resume_check import (
    changed,
    different_attributes,
    later_text,
    lost_text,
    named_files,
)
from orderone.training.same_update import Update, difference
from orderone.training.source import Batch
from orderone.training.stacked.alike import description
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.value_text import text_of
from orderone.training.written_files import written_files


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
    stack.seed([trial.seed])
    set_seed(trial.seed)
    stack.step(*batches[0])
    globals_before = global_texts(stack.program.model, stack.program.loss)
    generators = checkpoints.random_states(torch.device(job.device))
    state = {name: x.detach().clone() for name, x in stack.state().items()}
    tensors: dict[str, torch.Tensor] = {}
    packed = checkpoints.pack(checkpoints.extra_states(stack.program.model), tensors, "extra")
    same_batches = tree_map(_copied, batches[1])  # a model may write to its batch
    with written_files() as files:
        update = _update(stack, batches[1])
    checkpoints.restore_random(generators, torch.device(job.device))
    other.load(state)
    checkpoints.restore_extra(other.program.model, checkpoints.unpack(packed, tensors))
    with fresh_caches(stack.program.model, stack.program.loss):
        other_update = _update(other, same_batches)
    different = difference(update, other_update, state, job.settings.half)
    model = stack.program.model
    outside = changed(globals_before, global_texts(model, stack.program.loss))
    if text_of(stack.program.loss) != text_of(other.program.loss):
        outside.append("the loss function")
    outside += named_files(files)
    if different is None:
        return later_text(different_attributes(model, other.program.model) + outside)
    names = different_attributes(model, other.program.model, exact=False) + outside
    if not names and different.unclear:
        return None  # a resume repeats updates, and compares their losses
    return lost_text(names or changed(at_start, description(model)), different.text)


def _copied(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _update(stack: Stack, batches: Sequence[Batch]) -> Update:
    """Make an update, and return it."""
    losses, gradients = stack.gradients(batches)
    stack.update(gradients, finite=stack.unscale(gradients))
    return Update(losses.tolist(), gradients, stack.tensors)
