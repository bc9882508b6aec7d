"""`probe`: the sizes of everything while a model trains, as a table.

    with orderone.probe(model, optimizer=optimizer) as p:
        ... train ...
    p.frame

For every step and module: what it reads (`input`), gives (`output`) and is told (`output
gradient`); for every tensor: `weight`, `gradient` and what the step changed (`update`); with a
fixed `batch`, how far each output on it has moved since the context opened (`change`). On request,
attention `scores` and their change. A step ends with `optimizer.step()`, or without an optimizer
where the next forward pass begins. Several passes in one step (accumulated gradients, shared
modules) are counted together. The lines of step t belong to the weights after t updates; `update`
is the next one. Passes without gradients are not training, and are not recorded.

What is sized is what autograd has: under a GradScaler an output gradient carries the scale; a
`gradient` is what the optimizer reads. Of tensors spread over processes, every process records its
own part.

Sizes are computed on the tensors' own device; one transfer a step brings them over. Hooks are gone
when the context closes, also after an exception.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from inspect import signature

from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.core.errors import instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.measure.inputs import (
    CallInput,
    ModelInput,
    PatternsInput,
    QuantitiesInput,
    StepperInput,
)
from orderone.measure.recording import DEFAULT, QUANTITIES, Probe
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
    provenance: Mapping[str, object] | None = None,
) -> Iterator[Probe]:
    """Record the sizes of everything in `model` while it trains; `.frame` has them.

    Args:
        model: Any nn.Module, also compiled (inside the context it then runs as written) or wrapped
            in DistributedDataParallel (every process records its own activations).
        optimizer: Its `step` ends a step. Without one, every forward pass is a step, and there are
            no updates.
        batch: A fixed batch (tensor, tuple, or dict of keyword arguments) on which `change` is
            measured after every step: one more forward pass, always with the same dropout masks.
        quantities: Which of input, output, "output gradient", change, weight, gradient, update,
            scores, "score change".
        modules: A pattern, or several, of modules and tensors to look at: "*.mlp.*".
        every: Record every so many steps.
        provenance: What else to keep with the records: a seed, the name of a run.
    """
    instance(model, nn.Module, "model", "give the module that is trained")
    if optimizer is not None:
        instance(
            optimizer,
            Optimizer,
            "optimizer",
            "give the torch.optim optimizer that steps, or leave it out",
        )
    if not isinstance(batch, (Tensor, Mapping, Sequence, type(None))) or isinstance(batch, str):
        raise ValueError(
            "batch: expected a tensor, a tuple, or a dict of keyword arguments, got"
            f" {type(batch).__name__}"
        )
    if batch is not None:
        _check_call(model, batch)
    names = (quantities,) if isinstance(quantities, str) else tuple(quantities)
    chosen = tuple(Quantity(one_of(name, QUANTITIES, "quantity")) for name in names)
    wanted = _matcher(modules, model)
    recording = Probe(model, optimizer, batch, chosen, wanted, count(every, "every"), provenance)
    with recording.watch():
        yield recording


def _check_call(model: nn.Module, batch: CallInput) -> None:
    """Raise a ValueError if the model does not take the batch.

    A pair of inputs and targets is the usual mistake, and would end in an error of the model's own.
    """
    args, kwargs = call_with(batch)
    try:
        signature(unwrap(model).forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            "batch: expected what the model is called with, inputs alone; forward does not take"
            f" these ({error})"
        ) from None


def _matcher(patterns: PatternsInput, model: nn.Module) -> Callable[[str], bool]:
    """Return a test whether a module or tensor matches one of the patterns."""
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    names = [*inventory(model), *dict(unwrap(model).named_modules())]
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatch(name, pattern) for name in names):
            raise ValueError(
                f"modules: nothing is called {pattern!r}; the model has {names[0]}, ...,"
                f" {names[-1]}"
            )
    return lambda name: any(fnmatch(name, pattern) for pattern in patterns)
