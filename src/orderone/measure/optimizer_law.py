"""The law by which an optimizer is judged, measured on copies where its class is unknown.

The degree is the power of the gradient's size that a step follows:

    RMS(dW of steps on c g) = c^degree RMS(dW of steps on g)

It is 0 where steps are normalized (Adam, Lion, Muon) and 1 where they are proportional to the
gradient (SGD). S0 (12) has a law for each. So the degree decides by which law an optimizer of an
unknown class is judged, and from which step on: the first five steps of RAdam are those of SGD with
momentum. It is measured without weight decay and with gradients of size one, for which eps is
negligible.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import with_code
from orderone.measure.inputs import OptimizerInput
from orderone.measure.runs import copies_of
from orderone.optimizers.table import find_record, nearest_record

DEFAULT_OPTIMIZER = "adamw"
LATER = 16  # steps to measure beyond those of a check
SCALE = 4.0  # a power of two: nothing is rounded
NEAR = 0.25  # degrees that differ by less are the same
Degrees = dict[str, list[float]]  # by tensor, step by step


@dataclass(frozen=True)
class Law:
    """The law by which an optimizer is judged."""

    optimizer: OptimizerInput  # one that follows the law
    begins: int = 0  # the first step that follows the law
    note: str = ""
    trouble: str = ""  # why the steps of the check do not follow the law


def law_of(model: nn.Module, optimizer: object, requested: OptimizerInput, steps: int) -> Law:
    """Return the law of an optimizer.

    If the class is known, or inherits from a known class, it decides, unless another law is
    `requested`. Otherwise the requested law counts, and steps on copies show where it holds.
    """
    if not isinstance(optimizer, Optimizer):
        return Law(requested)
    kind = type(optimizer)
    known = nearest_record(kind)
    if known is not None and (kind is known.torch_class or requested == DEFAULT_OPTIMIZER):
        return Law(kind)
    if known is not None:
        return Law(requested)
    try:
        measured = degrees(model, optimizer, steps + LATER)
    except Exception:  # some optimizers refuse to be copied, or to step without a closure
        measured = {}
    return _law_of_degrees(kind.__name__, requested, measured, steps)


def _law_of_degrees(kind: str, requested: OptimizerInput, measured: Degrees, steps: int) -> Law:
    if requested == DEFAULT_OPTIMIZER and settles(measured, 1.0) == 0:
        note = (
            f"{kind} is judged as sgd, as its steps are proportional to the gradient; pass"
            " optimizer= to judge it by another law"
        )
        return Law("sgd", note=with_code(note, "optimizer-judged-as"))
    name = str(requested)
    if isinstance(requested, type):
        name = requested.__name__
    name = name.lower()
    degree = 0
    record = find_record(name)
    if record is not None:
        degree = record.update_law.gradient
    first = settles(measured, float(degree))
    note = f"{kind} is judged as {name}; pass optimizer= to judge it by another law"
    if not first:
        return Law(requested, note=with_code(note, "optimizer-judged-as"))
    differs = f"the first {first} steps of {kind} do not scale with the gradient as in {name}"
    if first < steps:
        note = f"{note}; {differs}, so updates are judged after them"
        return Law(requested, first, with_code(note, "optimizer-judged-as"))
    trouble = f"{differs}: pass steps={first + steps}"
    return Law(
        requested,
        first,
        with_code(note, "optimizer-judged-as"),
        with_code(trouble, "law-begins-later"),
    )


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
    """Return norms of updates, step by step; random gradients are the same for every `scale`."""
    tensors, stepper = copies_of(model, optimizer)
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

    Return None if there is no such step, or if nothing was measured.
    """
    steps = max((len(by_step) for by_step in measured.values()), default=0)
    first = 0
    for step in range(steps):
        if any(abs(by_step[step] - degree) > NEAR for by_step in measured.values()):
            first = step + 1
    if first < steps:
        return first
    return None
