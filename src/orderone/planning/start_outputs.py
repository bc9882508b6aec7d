"""Activations, attention scores and logits at the start, beside the sizes that theory asks for.

    activation   order one. A residual stream is a sum: with branches of order one that start
                 independently, its RMS is sqrt(1 + b) after b of them. A block has two (attention
                 and MLP), so inside block number l (from 0) up to sqrt(1 + 2 (l + 1)) is expected.
    scores       at most order one. Small scores are no fault: attention then starts as a mean, and
                 zero queries are a good start (Yang et al. 2022, arXiv 2203.03466, appendix D.2).
    logits       at most order one. Small logits are no fault either: the loss then starts at that
                 of equal probabilities.

The sizes are root mean squares over a batch, of a model that has its initial values.
"""

import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import ModelInputs, on_device
from orderone.observe.derivatives import without_gradients
from orderone.observe.hooks import watching, watching_scores
from orderone.observe.quantities import Quantity
from orderone.observe.trace.recorder import call_with

FAR = 3.0  # a factor that changes what a model learns first; fan-in and Xavier differ by less
RECENT = 8  # outputs that are held, to find the modules that return the model's output
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


class Kind(StrEnum):
    """Kind of a measured size."""

    ACTIVATION = "activation"
    SCORES = "attention scores"
    LOGITS = "logits"


@dataclass(frozen=True)
class OutputSize:
    """Size of an output of the model at its start, and the sizes that theory expects."""

    name: str  # of the module
    kind: Kind
    size: float
    low: float  # smallest expected size; 0 if small ones are no fault
    high: float

    @property
    def ratio(self) -> float:
        """Size over the nearest expected one: 1 inside the range."""
        if not self.size <= self.high:  # also nan
            return self.size / self.high
        if self.size < self.low:
            return self.size / self.low
        return 1.0

    @property
    def verdict(self) -> str:
        """`small`, `large` or `fine`; exactly zero is a choice, not a mistake."""
        if not self.ratio <= FAR:  # also nan
            return "large"
        if 0 < self.ratio < 1 / FAR:
            return "small"
        return "fine"

    @property
    def expected(self) -> str:
        """The expected sizes in words."""
        if self.low == 0:
            return f"at most {self.high:.2g}"
        if self.low == self.high:
            return f"about {self.low:.2g}"
        return f"{self.low:.2g} to {self.high:.2g}"


def output_size(name: str, kind: Kind, size: float) -> OutputSize:
    """Return a measured size beside those that theory expects for its kind and depth."""
    if kind != Kind.ACTIVATION:
        return OutputSize(name, kind, size, 0.0, 1.0)
    number = _NUMBER.search(name)
    high = 1.0
    if number is not None:
        high = (1 + 2 * (int(number.group(1)) + 1)) ** 0.5
    return OutputSize(name, kind, size, 1.0, high)


def output_sizes(recorded: Mapping[tuple[str, Kind], float]) -> tuple[OutputSize, ...]:
    """Return all measured sizes; the output of the model itself has the name ""."""
    return tuple(output_size(name, kind, size) for (name, kind), size in recorded.items())


def kind_of(name: str, quantity: Quantity, readouts: Collection[str] = ()) -> Kind:
    """Return the kind of a record of a module.

    The outputs of the model itself, whose name is "", and of its readouts are logits.
    """
    if quantity == Quantity.SCORES:
        return Kind.SCORES
    if not name or name in readouts:
        return Kind.LOGITS
    return Kind.ACTIVATION


def measure_outputs(model: nn.Module, inputs: ModelInputs) -> tuple[OutputSize, ...]:
    """Run the model once without gradients, and return the sizes of its outputs and scores."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(
            "measure_start: the model is on the meta device, where tensors have no values; call"
            " model.to_empty(device=...) and plan.apply() first",
            "model-without-memory",
            argument="inputs",
        )
    squares: dict[tuple[str, Kind], list[float]] = {}
    recent: deque[tuple[str, Tensor]] = deque(maxlen=RECENT)

    def record(name: str, kind: Kind, x: Tensor) -> None:
        square = x.detach().abs().double().square().mean()
        squares.setdefault((name, kind), []).append(float(square))

    def output(name: str, quantity: Quantity, x: Tensor) -> None:
        record(name, kind_of(name, quantity), x)
        recent.append((name, x))

    trains = model.training
    args, kwargs = call_with(on_device(inputs, model))
    try:
        model.eval()
        with (
            without_gradients(model),
            watching(model, output, kinds=(Quantity.OUTPUT,)),
            watching_scores(model, lambda name, scores: record(name, Kind.SCORES, scores())),
            naming_batch("inputs", inputs, model),
        ):
            model(*args, **kwargs)
    finally:
        model.train(trains)
    readouts = _same_as_last(recent)
    means: dict[tuple[str, Kind], float] = {}
    for (name, kind), several in squares.items():
        if kind == Kind.ACTIVATION and name in readouts:
            kind = Kind.LOGITS
        means[name, kind] = (sum(several) / len(several)) ** 0.5
    return output_sizes(means)


def _same_as_last(recent: Collection[tuple[str, Tensor]]) -> set[str]:
    """Return the modules whose output is that of the model, which comes last.

    The tensors are still held, so that no other one can have their memory.
    """
    places: dict[str, tuple[int, tuple[int, ...]]] = {}
    for name, x in recent:
        places[name] = (x.data_ptr(), tuple(x.shape))
    return {name for name, place in places.items() if place == places.get("")}
