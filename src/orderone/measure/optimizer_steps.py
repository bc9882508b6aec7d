"""What the steps of an optimizer do, measured on copies: its law and its weight decay.

The degree is the power of the gradient's size that a step follows:

    RMS(dW of steps on c g) = c^degree RMS(dW of steps on g)

It is 0 where steps are normalized (Adam, Lion, Muon) and 1 where they are proportional to the
gradient (SGD). S0 (12) has a law for each. So the degree tells by which law to judge an optimizer
of an unknown class, and from which step on: the first five steps of RAdam are those of SGD with
momentum. It is measured with gradients of size one, beside which eps is nothing, and without weight
decay.

Weight decay is what a step does to weights whose gradient is zero. In ordinary steps the decay
hides behind the update, which is far larger. Adam adds its penalty to the gradient and normalizes
the sum, so that no weight shrinks by a fraction of itself. What counts there is the penalty beside
the gradient: if it grows with the size, it is all that large models learn.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.measure.inputs import OptimizerInput
from orderone.observe.inventory import inventory
from orderone.observe.moments import Ledger, Moments
from orderone.optimizers.table import ALGORITHMS, CLASSES, known_name

DEFAULT_OPTIMIZER = "adamw"
LATER = 16  # steps to measure beyond those of a check
SCALE = 4.0  # a power of two: nothing is rounded
NEAR = 0.25  # degrees that differ by less are the same
SAME_DIRECTION = 1e-2  # decay shrinks a weight along itself; Adam's normalized penalty does not
Degrees = dict[str, list[float]]  # by tensor, step by step


def _copies(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], Optimizer]:
    """Copy the trained tensors, by name, and the optimizer that moves them.

    A warm-up starts at rate zero; the copy has the rate that follows it.
    """
    model, optimizer = copy.deepcopy((model, optimizer))
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] or group.get("initial_lr", 0.0)
    tensors = {}
    for name, item in inventory(model).items():
        if item.tensor.requires_grad:
            tensors[name] = item.tensor
    return tensors, optimizer


# --- the law of an optimizer ----------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """The law by which an optimizer is judged."""

    optimizer: OptimizerInput  # one that follows it
    begins: int = 0  # the first step that follows it
    note: str = ""
    trouble: str = ""  # why these steps do not show it


def law_of(model: nn.Module, optimizer: object, requested: OptimizerInput, steps: int) -> Law:
    """Return the law of an optimizer.

    The class decides if it is known, or inherits from a known one, unless another law is
    `requested`. Otherwise the law is requested, and steps on copies show where it holds.
    """
    kind = type(optimizer)
    known = known_name(kind)
    if known is not None and (kind is CLASSES[known] or requested == DEFAULT_OPTIMIZER):
        return Law(known)
    if known is not None or not isinstance(optimizer, Optimizer):
        return Law(requested)
    try:
        measured = degrees(model, optimizer, steps + LATER)
    except Exception:  # some optimizers refuse to be copied, or to step without a closure
        measured = {}
    return _law_of_degrees(kind.__name__, requested, measured, steps)


def _law_of_degrees(kind: str, requested: OptimizerInput, measured: Degrees, steps: int) -> Law:
    if requested == DEFAULT_OPTIMIZER and settles(measured, 1.0) == 0:
        note = (
            f"{kind} is judged as sgd, as its steps are proportional to the gradient;"
            " optimizer= names another law"
        )
        return Law("sgd", note=note)
    name = requested.__name__ if isinstance(requested, type) else str(requested)
    name = name.lower()
    degree = ALGORITHMS[name].update_law.gradient if name in ALGORITHMS else 0
    first = settles(measured, float(degree))
    note = f"{kind} is judged as {name}; optimizer= names another law"
    if not first:
        return Law(requested, note=note)
    differs = f"the first {first} steps of {kind} do not follow the gradient as those of {name} do"
    if first < steps:
        return Law(requested, first, f"{note}; {differs}, and updates are judged after them")
    return Law(requested, first, note, trouble=f"{differs}: give steps={first + steps}")


def degrees(model: nn.Module, optimizer: Optimizer, steps: int) -> Degrees:
    """Measure the degree of every tensor that the optimizer moves in every step."""
    plain = _update_norms(model, optimizer, steps, 1.0)
    scaled = _update_norms(model, optimizer, steps, SCALE)
    measured = {}
    for name, norms in plain.items():
        if all(norm > 0 and math.isfinite(norm) for norm in norms + scaled[name]):
            pairs = zip(norms, scaled[name], strict=True)
            measured[name] = [math.log(large / small) / math.log(SCALE) for small, large in pairs]
    return measured


def _update_norms(
    model: nn.Module, optimizer: Optimizer, steps: int, scale: float
) -> dict[str, list[float]]:
    """Return norms of updates, step by step, on the same random gradients for every `scale`."""
    tensors, stepper = _copies(model, optimizer)
    for group in stepper.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0
    norms: dict[str, list[float]] = {name: [] for name in tensors}
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for tensor in tensors.values():
            tensor.grad = scale * torch.randn(tensor.shape, generator=generator).to(tensor)
        stepper.step()
        for name, tensor in tensors.items():
            update = (tensor.detach() - before[name]).double()
            norms[name].append(float(torch.linalg.vector_norm(update)))
    return norms


def settles(measured: Degrees, degree: float) -> int | None:
    """Return the first step from which on all tensors have this degree.

    None: never, or nothing is known.
    """
    steps = max((len(of_tensor) for of_tensor in measured.values()), default=0)
    first = 0
    for step in range(steps):
        if any(abs(of_tensor[step] - degree) > NEAR for of_tensor in measured.values()):
            first = step + 1
    return first if first < steps else None


# --- weight decay ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decay:
    """What weight decay does in one step."""

    fractions: Mapping[str, Moments] = field(default_factory=dict)  # by which a tensor shrinks
    # RMS of what is added to a gradient that is normalized afterwards
    penalties: Mapping[str, float] = field(default_factory=dict)


def decay_of(model: nn.Module, optimizer: Optimizer) -> Decay:
    """Measure the weight decay of each tensor; tensors that do not shrink are left out."""
    if not any(group.get("weight_decay") for group in optimizer.param_groups):
        return Decay()
    tensors, stepper = _copies(model, optimizer)
    for tensor in tensors.values():
        tensor.data = tensor.data.double()  # in single precision, rounding hides a decay of 1e-6
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.grad = torch.zeros_like(tensor)
    stepper.step()

    fractions = _shrunk_fractions(before, tensors)
    coefficients: dict[int, float] = {}
    for group in stepper.param_groups:
        for tensor in group["params"]:
            coefficients[id(tensor)] = float(group.get("weight_decay", 0.0))
    penalties = {}
    for name, tensor in tensors.items():
        if name not in fractions and not torch.equal(tensor, before[name]):
            penalties[name] = coefficients[id(tensor)] * _rms(before[name])
    return Decay(fractions, penalties)


def _rms(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel())


@torch.no_grad()
def _shrunk_fractions(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Moments]:
    """Return the fraction by which each tensor has shrunk along itself."""
    ledger = Ledger()
    names = []
    for name, old in before.items():
        change = old - after[name]
        size = torch.linalg.vector_norm(old)
        moved = torch.linalg.vector_norm(change)
        if moved > 0 and size > 0:
            fraction = moved / size
            if torch.linalg.vector_norm(change - fraction * old) <= SAME_DIRECTION * moved:
                ledger.add(fraction.reshape(1))
                names.append(name)
    return dict(zip(names, ledger.fetch(), strict=True))
