"""Does the plan hold on real networks? Two small instances at initialization, one planned relative
to the other.

Forward: the RMS of what every module with tensors gives out. Backward: the RMS of every tensor's
gradient, for output gradients of order one. Each is compared with the exponent that the plan
implies; a difference points at something in the forward code that no shape shows and no constant
explains.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from orderone.observe.inventory import inventory
from orderone.observe.trace import call_with, undisturbed
from orderone.planning.counterparts import stack_of
from orderone.planning.forward_facts import Pair
from orderone.planning.huggingface import GROWTH, LARGEST
from orderone.torch_compat import tree_leaves

if TYPE_CHECKING:
    from orderone.planning.plan import Plan, Row

TOLERANCE = {
    "output": 0.3,
    "gradient": 0.6,
}  # of an exponent from two widths, a few dozen tokens and one seed
FAINT = 1e-9  # sizes below this are rounding
MOST_TOLD = 4


@dataclass(frozen=True)
class Observation:
    """An exponent of the width, seen and implied."""

    name: str  # of a module (output) or a tensor (gradient)
    quantity: str
    observed: float
    predicted: float

    @property
    def off(self) -> float:
        return abs(self.observed - self.predicted)

    def __str__(self) -> str:
        seen = f"n^{self.observed:+.2f}"
        implied = f"n^{self.predicted:+.2f}"
        return f"the {self.quantity} of {self.name} goes like {seen}, and {implied} was expected"


def can_observe(pair: Pair) -> bool:
    return pair.growth != 1 and (
        pair.owned or sum(p.numel() for p in pair.large.parameters()) <= LARGEST
    )


def writable(pair: Pair) -> nn.Module:
    """The wide instance, free to be initialised."""
    if pair.owned:
        return pair.large
    return copy.deepcopy(pair.large)


def observe(
    plan: "Plan", small: nn.Module, large: nn.Module, pair: Pair
) -> tuple[Observation, ...]:
    """`plan` is for `large` relative to `small`, and has been applied."""
    before = _sizes(small, pair.inputs)
    after = _sizes(large, pair.inputs)
    rows = {row.name: row for row in plan.rows}
    same = {row.name: row.base_name for row in plan.rows} | {
        module: (row.base_name or "").rpartition(".")[0]
        for row in plan.rows
        for module in row.uses[:1]
    }
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for (name, quantity), now in after.items():
        then = before.get((same.get(name) or name, quantity), 0.0)
        predicted = _predicted(plan, rows, name, quantity)
        if predicted is not None and min(now, then) >= FAINT:
            key = (stack_of(name), quantity, _role(rows, name))
            found.setdefault(key, []).append((math.log(now / then), math.log(predicted)))
    scale = math.log(pair.growth)
    return tuple(
        Observation(
            name,
            quantity,
            *(sum(column) / len(values) / scale for column in zip(*values, strict=True)),
        )
        for (name, quantity, _), values in found.items()
    )


def _role(rows: "Mapping[str, Row]", name: str) -> str:
    """Layers of a Sequential share a stack, and not their roles."""
    row = rows.get(name) or rows.get(f"{name}.weight")
    return row.role if row else ""


def _predicted(plan: "Plan", rows: "Mapping[str, Row]", name: str, quantity: str) -> float | None:
    """The factor that the plan implies between the two instances."""
    if quantity == "gradient":
        if name in rows and rows[name].role != "fixed":
            return rows[name].factors.gradient
        return None
    row = weight_of(plan, name)
    if row is None:
        return None
    return output_factor(row, rows.get(f"{name}.bias"))


def weight_of(plan: "Plan", module: str) -> "Row | None":
    """The row of the tensor that makes a module's output."""
    return next(
        (row for row in plan.rows if module in row.uses and row.name.endswith("weight")), None
    )


def output_factor(row: "Row", bias: "Row | None") -> float | None:
    """By what the initial output of the module with this weight grows, if its input stays as it is;
    None: not told."""
    if row.role == "fixed" or row.base_shape is None:
        return None
    size = row.factors.multiplier * row.factors.std
    if row.role == "vector":
        return size
    if row.role == "readout" and row.factors.gauge != 1:
        # the forward code multiplies, before the readout or after it: the output alone does not
        # tell
        return None
    if bias is not None and bias.role == "fixed" and bias.init_std > 0:
        return None  # a bias that stays hides a readout that shrinks
    if (
        row.role == "embedding"
    ):  # held by several modules, it is tied, and this one may be the readout
        return None if len(row.uses) > 1 else size
    return row.growth.fan_in**0.5 * size


def _sizes(model: nn.Module, inputs: Any) -> dict[tuple[str, str], float]:
    sizes: dict[tuple[str, str], float] = {}
    with _recording(model, sizes), torch.enable_grad():
        args, kwargs = call_with(inputs)
        output = _main_output(model(*args, **kwargs))
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(output.shape, generator=generator).to(output)
        names = {id(item.tensor): name for name, item in inventory(model).items()}
        parameters = [p for p in model.parameters() if p.requires_grad and id(p) in names]
        gradients = torch.autograd.grad(
            (output * direction).sum() / output.numel() ** 0.5, parameters, allow_unused=True
        )
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            sizes[names[id(parameter)], "gradient"] = _rms(gradient)
    return sizes


@contextmanager
def _recording(model: nn.Module, sizes: dict[tuple[str, str], float]) -> Iterator[None]:
    """Eval mode; every module that owns tensors writes down the size of its output."""

    def record(name: str):
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensors = [
                x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()
            ]
            if tensors:
                sizes[name, "output"] = _rms(tensors[0])

        return hook

    owners = [
        (name, module)
        for name, module in model.named_modules()
        if any(p is not None for p in module._parameters.values())
    ]
    handles = [module.register_forward_hook(record(name)) for name, module in owners]
    try:
        # cudnn's recurrent layers have no backward pass in eval mode
        with undisturbed(model), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _main_output(output: Any) -> Tensor:
    named = getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    tensors = [
        x
        for x in tree_leaves(output)
        if isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad
    ]
    if not tensors:
        raise ValueError("the model puts out no tensor with a gradient")
    return max(tensors, key=Tensor.numel)


def _rms(tensor: Tensor) -> float:
    return float(tensor.detach().float().square().mean().sqrt())


def unexpected(seen: Iterable[Observation], growth: float) -> list[Observation]:
    """What is off by more than noise, which weighs the more the closer the two widths are."""
    weight = max(1.0, math.log(GROWTH) / abs(math.log(growth)))
    return [o for o in seen if o.off > TOLERANCE[o.quantity] * weight]


def summary(told: str, seen: tuple[Observation, ...], growth: float) -> tuple[str, list[str]]:
    """A line for the plan, and what does not fit."""
    off = sorted(unexpected(seen, growth), key=lambda o: (o.quantity != "output", -o.off))
    outputs, gradients = (sum(o.quantity == q for o in seen) for q in ("output", "gradient"))
    line = f"{told}: {len(seen) - len(off)} of {len(seen)} exponents at initialization as expected"
    notes = [f"{o}: {_MEANING[o.quantity]}" for o in off[:MOST_TOLD]]
    if len(off) > MOST_TOLD:
        notes.append(
            f"{len(off) - MOST_TOLD} more exponents are not as expected; plan.observations has"
            " them all"
        )
    return f"{line} ({outputs} outputs, {gradients} gradients)", notes


_MEANING = {
    "output": (
        "the forward code, or a bottleneck in front of it, depends on the width in a way that no"
        " constant explains"
    ),
    "gradient": "nothing but eps is set by it",
}
