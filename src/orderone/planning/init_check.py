"""Check of a plan on two small instances at initialization, one planned relative to the other.

Forward: the RMS of the output of every module with tensors. Backward: the RMS of the gradient of
every tensor, for output gradients of order one. Each is compared with the exponent that the plan
predicts. A difference means that the forward code depends on the width in a way that neither shapes
nor constants show.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orderone.core.errors import with_code
from orderone.observe.inventory import inventory
from orderone.observe.trace import call_with, undisturbed
from orderone.planning.counterparts import stack_of
from orderone.planning.huggingface import GROWTH, LARGEST
from orderone.planning.initial_sizes import parameter_count
from orderone.planning.options import ExampleBatch
from orderone.planning.traced_pair import Pair
from orderone.torch_compat import tree_leaves

if TYPE_CHECKING:
    from orderone.planning.plan import Plan
    from orderone.planning.plan_row import Row

# errors of an exponent that is measured with two widths, a few dozen tokens and one seed
TOLERANCE = {"output": 0.3, "gradient": 0.6}
DEVIATIONS = 3.0  # standard deviations of the size of a few random outputs, such as four classes
FAINT = 1e-9  # smaller sizes are rounding
MOST_NOTES = 4


@dataclass(frozen=True)
class Observation:
    """An exponent of the width, observed and predicted."""

    name: str  # module (for an output) or tensor (for a gradient)
    quantity: str
    observed: float
    predicted: float
    # standard deviation of the observed exponent, from the number of outputs alone
    noise: float = 0.0

    @property
    def off(self) -> float:
        """Distance between observed and predicted exponent."""
        return abs(self.observed - self.predicted)

    def __str__(self) -> str:
        observed = f"n^{self.observed:+z.2f}"
        predicted = f"n^{self.predicted:+z.2f}"
        return (
            f"the {self.quantity} of {self.name} scales like {observed}; the plan predicts"
            f" {predicted}"
        )


def can_observe(pair: Pair) -> bool:
    """Return whether the instances differ in width and the wide one is small enough to copy."""
    if pair.growth == 1:
        return False
    return pair.owned or parameter_count(pair.large) <= LARGEST


def writable(pair: Pair) -> nn.Module:
    """Return the wide instance, or a copy of it that may be initialized."""
    if pair.owned:
        return pair.large
    return copy.deepcopy(pair.large)


def observe(
    plan: "Plan", small: nn.Module, large: nn.Module, pair: Pair
) -> tuple[Observation, ...]:
    """Compare the sizes of the two instances.

    `plan` is for `large` relative to `small`, and has been applied.
    """
    before = _sizes(small, pair.inputs)
    after = _sizes(large, pair.inputs)
    rows = {row.name: row for row in plan.rows}
    base_names = _base_names(plan)
    logarithms: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for (name, quantity), size in after.items():
        base_size = before.get((base_names.get(name) or name, quantity), 0.0)
        predicted = _predicted(plan, rows, name, quantity)
        if not predicted or min(size, base_size) < FAINT:
            continue
        observed_growth = size / base_size
        nearest = min(predicted, key=lambda growth: abs(math.log(observed_growth / growth)))
        # modules of a Sequential share a stack but not their roles
        row = rows.get(name) or rows.get(f"{name}.weight")
        key = (stack_of(name), quantity, row.role if row else "")
        pairs = logarithms.setdefault(key, [])
        pairs.append((math.log(observed_growth), math.log(nearest)))
    scale = math.log(pair.growth)
    outputs = _numbers_of_outputs(large)
    base_outputs = _numbers_of_outputs(small)
    result: list[Observation] = []
    for (name, quantity, _), pairs in logarithms.items():
        observed_growths, predicted_growths = zip(*pairs, strict=True)
        observed = sum(observed_growths) / len(pairs) / scale
        predicted = sum(predicted_growths) / len(pairs) / scale
        noise = 0.0
        if quantity == "output" and name in outputs:
            numbers = (base_outputs.get(base_names.get(name) or name, outputs[name]), outputs[name])
            noise = _noise(numbers, scale) / len(pairs) ** 0.5
        result.append(Observation(name, quantity, observed, predicted, noise))
    return tuple(result)


def _noise(numbers: Iterable[int], scale: float) -> float:
    """Return the standard deviation of an exponent from the sizes of two sets of random entries.

    The logarithm of the root mean square of k normal numbers has the variance 1 / 2k.
    """
    variance = sum(1 / (2 * number) for number in numbers)
    return math.sqrt(variance) / abs(scale)


def _numbers_of_outputs(model: nn.Module) -> dict[str, int]:
    """Return the number of output features of linear layers and convolutions, by name.

    Samples may share their features, so that only these are independent at initialization.
    """
    numbers: dict[str, int] = {}
    for name, module in model.named_modules():
        for attribute in ("out_features", "out_channels"):
            number = getattr(module, attribute, None)
            if isinstance(number, int) and number > 0:
                numbers[name] = number
    return numbers


def _base_names(plan: "Plan") -> dict[str, str | None]:
    """Return the counterparts of all tensors, and of the first module that holds each."""
    names: dict[str, str | None] = {row.name: row.base_name for row in plan.rows}
    for row in plan.rows:
        for module in row.uses[:1]:
            names[module] = (row.base_name or "").rpartition(".")[0]
    return names


def _predicted(plan: "Plan", rows: "Mapping[str, Row]", name: str, quantity: str) -> list[float]:
    """Return the ratios between the two instances that agree with the plan; none if unknown.

    There are two if the plan compensates a constant of the forward code. If the code multiplies the
    output of the module, the module itself shows the compensation. If it multiplies the input (a
    normalization to length one), the module shows both, and they cancel.
    """
    if quantity == "gradient":
        if name in rows and rows[name].role != "fixed":
            return [rows[name].factors.gradient]
        return []
    row = _weight_of(plan, name)
    if row is None:
        return []
    growth = row.output_growth(rows.get(f"{name}.bias"))
    if growth is None:
        return []
    compensated = row.factors.gauge / row.factors.multiplier
    if row.role == "hidden" and compensated != 1:
        return [growth, growth * compensated]
    return [growth]


def _weight_of(plan: "Plan", module: str) -> "Row | None":
    """Return the row of the tensor that makes a module's output."""
    for row in plan.rows:
        if module in row.uses and row.name.endswith("weight"):
            return row
    return None


def _sizes(model: nn.Module, inputs: ExampleBatch) -> dict[tuple[str, str], float]:
    """Return the RMS of outputs and gradients, by name and quantity."""
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
    """Record the size of the output of every module that owns tensors, in eval mode."""

    def record(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            for leaf in tree_leaves(output):
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    sizes[name, "output"] = _rms(leaf)
                    return

        return hook

    handles: list[RemovableHandle] = []
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            handles.append(module.register_forward_hook(record(name)))
    try:
        # cudnn's recurrent layers have no backward pass in eval mode
        with undisturbed(model), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _main_output(output: object) -> Tensor:
    """Return the logits, or the largest tensor with a gradient."""
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    tensors: list[Tensor] = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.requires_grad:
            tensors.append(leaf)
    if not tensors:
        raise ValueError("the output of the model contains no tensor with a gradient")
    return max(tensors, key=Tensor.numel)


def _rms(tensor: Tensor) -> float:
    return float(tensor.detach().abs().float().square().mean().sqrt())


def unexpected(observations: Iterable[Observation], growth: float) -> list[Observation]:
    """Return the observations that differ by more than noise, which is larger if the two widths are
    close, or outputs are few."""
    weight = max(1.0, math.log(GROWTH) / abs(math.log(growth)))
    result: list[Observation] = []
    for observation in observations:
        noise = DEVIATIONS * observation.noise
        if observation.off > max(TOLERANCE[observation.quantity] * weight, noise):
            result.append(observation)
    return result


def summary(
    note: str, observations: tuple[Observation, ...], growth: float
) -> tuple[str, list[str]]:
    """Return a line for the plan, and notes about unexpected exponents."""
    off = unexpected(observations, growth)
    off.sort(key=lambda observation: (observation.quantity != "output", -observation.off))
    quantities = Counter(observation.quantity for observation in observations)
    total = len(observations)
    line = (
        f"{note}: {total - len(off)} of {total} sizes at initialization depend on the width as"
        " predicted"
    )
    notes: list[str] = []
    for observation in off[:MOST_NOTES]:
        note = f"{observation}; {_MEANING[observation.quantity]}"
        notes.append(with_code(note, "unexpected-exponent"))
    if len(off) > MOST_NOTES:
        note = f"{len(off) - MOST_NOTES} more exponents are not as predicted; see plan.observations"
        notes.append(with_code(note, "unexpected-exponent"))
    counts = f"{quantities['output']} outputs, {quantities['gradient']} gradients"
    return f"{line} ({counts})", notes


_MEANING = {
    "output": (
        "in the forward code, or in a bottleneck before this module, something depends on the"
        " width, and no constant factor explains it"
    ),
    "gradient": "this prediction affects only the eps of the optimizer",
}
