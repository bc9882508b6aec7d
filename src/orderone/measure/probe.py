"""`probe`: record the sizes of activations, weights, gradients and updates while a model trains.

    with orderone.probe(model, optimizer=optimizer) as p:
        ... train ...
    p.frame

For every step and module it records the `input`, the `output` and the `output gradient`; for every
tensor the `weight`, the `gradient` and the `update` of the step; with a fixed `batch`, the `change`
of each output on that batch since the context opened. On request it records attention `scores` and
their change, and spectral norms of matrices. A step ends with `optimizer.step()`; without an
optimizer, a step ends where the next forward pass begins. Several passes in one step (accumulated
gradients, shared modules) are counted together. The rows of step t belong to the weights after t
updates; `update` is the next update. Passes without gradients are not training, and are not
recorded.

Output gradients are those of autograd: under a GradScaler they include the scale. A `gradient` is
the one that the optimizer uses. If a tensor is distributed over processes, every process records
its part.

Sizes are computed on the device of each tensor, and transferred once in a step. Hooks are removed
when the context closes, also after an exception.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from inspect import signature

from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.measure.inputs import (
    CallInput,
    FlagInput,
    ModelInput,
    PatternsInput,
    QuantitiesInput,
    StepperInput,
)
from orderone.measure.noise_scale import NoiseMeter
from orderone.measure.recording import DEFAULT, QUANTITIES, Probe
from orderone.measure.spectral_norms import SpectralMeter
from orderone.observe.batch_errors import naming_batch
from orderone.observe.inventory import inventory, unwrap
from orderone.observe.quantities import Quantity
from orderone.observe.trace import call_with


@contextmanager
def probe(
    model: ModelInput,
    optimizer: StepperInput | None = None,
    *,
    batch: CallInput | None = None,
    quantities: QuantitiesInput = DEFAULT,
    modules: PatternsInput = "*",
    every: Count = 1,
    noise: Count | None = None,
    spectral: FlagInput = False,
    provenance: Mapping[str, object] | None = None,
) -> Iterator[Probe]:
    """Record the sizes of everything in `model` while it trains, in a table `.frame`.

    Args:
        model: Any nn.Module. A compiled model stays compiled: from the second recorded step on, a
            second program records the passes. In a model wrapped in DistributedDataParallel, every
            process records its activations.
        optimizer: The optimizer whose `step` ends a step. Without an optimizer, every forward pass
            is a step, and there are no updates.
        batch: A fixed batch (tensor, tuple, or dict of keyword arguments) for `change`. After every
            step it takes one more forward pass, always with the same dropout masks.
        quantities: Any of input, output, "output gradient", change, weight, gradient, update,
            scores, "score change".
        modules: One or several patterns of modules and tensors to record, such as "*.mlp.*".
        every: Record every `every`-th step.
        noise: Samples in one backward pass. If a step accumulates the gradients of several passes,
            `.noise_scale` is then the gradient noise scale, an estimate of the critical batch size.
        spectral: Record the spectral norm of every matrix and of its update, in a table
            `.spectral_norms`. Matrices with more than 512 rows and columns are estimated.
        provenance: Further information to store with the records: a seed, the name of a run.
    """
    instance(model, nn.Module, "model", "pass the module that is trained")
    if optimizer is not None:
        instance(
            optimizer,
            Optimizer,
            "optimizer",
            "pass the torch.optim optimizer of the training, or omit it",
        )
    if not isinstance(batch, (Tensor, Mapping, Sequence, type(None))) or isinstance(batch, str):
        message = (
            "batch: expected a tensor, a tuple, or a dict of keyword arguments, got"
            f" {type(batch).__name__}"
        )
        raise InputError(message, "wrong-type", argument="batch")
    if batch is not None:
        _check_call(model, batch)
    names = quantities
    if isinstance(quantities, str):
        names = (quantities,)
    chosen = tuple(Quantity(one_of(name, QUANTITIES, "quantity")) for name in names)
    wanted = _matcher(modules, model)
    meter = None
    if noise is not None:
        if optimizer is None:
            raise _without_optimizer("the noise of gradients is")
        parameters = {name: item.tensor for name, item in inventory(model).items()}
        meter = NoiseMeter(parameters, count(noise, "noise"))
    period = count(every, "every")
    spectral_meter = None
    if instance(spectral, bool, "spectral", "pass True to record spectral norms"):
        if optimizer is None:
            raise _without_optimizer("spectral norms are")
        spectral_meter = SpectralMeter(model, wanted, period)
    recording = Probe(
        model,
        optimizer,
        batch,
        chosen,
        wanted,
        lambda quantity, step: step % period == 0,
        provenance,
        meter,
        spectral=spectral_meter,
    )
    with recording.watch():
        yield recording


def _without_optimizer(what: str) -> InputError:
    return InputError(
        f"optimizer: {what} measured from step to step; pass the optimizer of the training",
        argument="optimizer",
    )


def _check_call(model: nn.Module, batch: CallInput) -> None:
    """Raise an InputError if the model's forward does not accept the batch.

    Users often pass a pair of inputs and targets; the model would then raise an obscure error.
    """
    args, kwargs = call_with(batch)
    with naming_batch("batch", batch, model):
        signature(unwrap(model).forward).bind(*args, **kwargs)


def _matcher(patterns: PatternsInput, model: nn.Module) -> Callable[[str], bool]:
    """Return a test whether a module or tensor matches one of the patterns."""
    if isinstance(patterns, str):
        patterns = (patterns,)
    patterns = tuple(patterns)
    names = [*inventory(model), *dict(unwrap(model).named_modules())]
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatch(name, pattern) for name in names):
            message = (
                f"modules: no module or tensor matches {pattern!r}; the model has {names[0]}, ...,"
                f" {names[-1]}"
            )
            raise InputError(message, "unknown-name", argument="modules")
    return lambda name: any(fnmatch(name, pattern) for pattern in patterns)
