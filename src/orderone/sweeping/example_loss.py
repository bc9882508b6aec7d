"""The loss of the example batch, computed before the first training of a process and again later.

Trainings share global variables, files, threads and libraries of their process, and so do the
proof of a stack and its members. A new model of the same seed has the same loss at any time, unless
something that they share has changed and acts. The first loss is that of the pass which checks the
example batch; a process that receives trials computes it before its first stack. A later sweep with
the same settings is compared with the first one of the process.
"""

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import loss_of
from orderone.seeding import preserved, seeded
from orderone.sweeping.job import BASE_SEED, Job
from orderone.sweeping.trial import Trial
from orderone.training.code_state import fresh_caches
from orderone.training.fresh_loss import fresh_loss
from orderone.training.repeated_updates import compared_loss, loss_rounding
from orderone.training.resume_check import LARGEST, model_bytes
from orderone.training.source import moved
from orderone.training.stacked.alike import has_user_code


@dataclass(frozen=True)
class ExampleLoss:
    """Loss of a trial's model on the example batch, and the trial."""

    trial: Trial
    loss: float


# by fingerprint and device, for `know_losses_of_process`
_OF_PROCESS: dict[tuple[str, str], dict[str, ExampleLoss | None]] = {}


def know_losses_of_process(job: Job) -> None:
    """Give a job the losses of earlier sweeps of this process that had the same settings.

    If a sweep has a name, its code may be another one than before.
    """
    if job.name is None:
        key = (job.fingerprint, job.device)
        job.examples.update(_OF_PROCESS.get(key, {}))
        _OF_PROCESS[key] = job.examples


def compute_example_loss(job: Job, trial: Trial) -> None:
    """Compute the loss of the example batch, as the training of a trial does; keep the first one.

    The seed is always the same: what the pass leaves in caches must not depend on the first trial.
    """
    loss, model = _computed(job, trial)
    if trial.program not in job.examples:
        can_change = has_user_code(model) and model_bytes(model) <= LARGEST
        if can_change:
            job.examples[trial.program] = ExampleLoss(trial, loss)
        else:
            job.examples[trial.program] = None


def keep_example_loss(job: Job, trial: Trial) -> None:
    """Compute the first loss of an architecture, if it is not known; training shows errors."""
    if trial.program not in job.examples and job.verify:
        with suppress(Exception), preserved():  # of the user's code
            compute_example_loss(job, trial)


def changed_example_loss(job: Job, program: str) -> str | None:
    """Compute the first loss of an architecture again; return how it differs, if it does."""
    first = job.examples.get(program)
    if first is None or not job.verify:
        return None
    try:
        with preserved():
            loss, model = _computed(job, first.trial)
    except Exception as error:  # of the user's code, or for memory
        if isinstance(error, RuntimeError) and job.device != "cpu":
            return None
        kind = type(error).__name__
        return f"the model of {first.trial} could not be built and called again ({kind})"
    dtypes = {p.dtype for p in model.parameters()}
    near = loss_rounding(dtypes, job.settings.half is not None, torch.device(job.device))
    if compared_loss([first.loss], 0, loss, 0, near) is None:
        return None
    return (
        f"a new model of {first.trial} had the loss {first.loss:.6g} on the example batch before"
        f" the first training, and has {loss:.6g} now"
    )


def _computed(job: Job, trial: Trial) -> tuple[float, nn.Module]:
    device = torch.device(job.device)
    batch = job.source(trial).at(0, 0)
    with seeded(BASE_SEED):
        model = job.built(trial.settings).model.to(device, job.settings.dtype)
        with job.settings.autocast(device):
            batch = moved(batch, device, job.precision)
            with naming_batch("data", batch, model):
                loss = fresh_loss(job.loss or job.data.loss)
                with fresh_caches(model, loss):
                    return float(loss_of(model, batch, loss).detach()), model
