"""Differences between two ways to train the same members, in units of rounding.

    loss, evaluation   |a - b| / (eps |a|)
    gradient, buffer   max |a - b| / (eps max |a|)
    update             max |a - b| / (eps max |p| + eps' max |change of p|)

eps is the distance from 1 to the next number of the data type. eps' is that of the numbers in which
the optimizer computes: bfloat16 for Muon, otherwise that of the parameter. A sum of n numbers
rounds by about sqrt(n) units, so `ROUNDING` units are expected of layers with a few thousand
inputs. Where more were found, they are compared with what one unit in the parameters and inputs
does (`ways.rounded_otherwise`): that is the condition of the computation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from orderone.optimizers.update import Update
from orderone.training.stacked.draws import GeneratorStates
from orderone.training.stacked.ways import OneByOne, Together, Way

ROUNDING = 64.0  # units
SAME_BITS = 0.01  # share of the entries of a half precision tensor that an update may round apart
DIVERGING = 100.0  # times the first loss
EQUAL = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)  # numbers of equal tensors
HALF = (torch.bfloat16, torch.float16)


class Place(NamedTuple):
    """A place where two ways are compared."""

    step: int
    kind: str  # loss, gradient, gradients (all together), update, buffer or evaluation
    name: str = ""  # of a tensor


@dataclass(frozen=True)
class Difference:
    """Difference of two ways at one place."""

    place: Place
    units: float  # of rounding
    relative: float
    overall: float = inf  # of a gradient: in units of the largest gradient of the model

    @property
    def is_rounding(self) -> bool:
        return self.units <= ROUNDING


@dataclass
class _Pending:
    """Numbers that are still on the device."""

    place: Place
    numbers: Tensor  # difference, size, unit of each member

    def leave_out(self, calm: Tensor) -> None:
        """Judge only members whose loss has not exploded: the others compute with rounding."""
        apart, *others = self.numbers.to(calm.device).expand(3, len(calm))
        self.numbers = torch.stack([torch.where(calm, apart, 0.0), *others])


class Differences:
    """Differences of two ways over the first steps, by place."""

    def __init__(self, found: Iterable[Difference], drew: bool, same_draws: bool):
        self.found: dict[Place, Difference] = {difference.place: difference for difference in found}
        self.drew = drew
        self.same_draws = same_draws

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.found.values())

    def worst(self, *kinds: str) -> float:
        """Return the largest relative difference of these kinds."""
        return max((x.relative for x in self if x.place.kind in kinds), default=0.0)

    def beyond(self, others: Sequence["Differences"] = ()) -> list[Difference]:
        """Return differences that are larger than rounding, or than that of `others`."""
        left: list[Difference] = []
        for difference in self:
            expected = 1.0
            for other in others:
                if difference.place in other.found:
                    expected = max(expected, other.found[difference.place].units)
            if difference.overall <= 1.0:
                continue  # a gradient that is zero but for rounding
            if not difference.units <= ROUNDING * expected:
                left.append(difference)
        return left


def differences(
    alone: OneByOne, other: Way, steps: int, half: torch.dtype | None = None
) -> Differences:
    """Let both ways take the same steps, each with the gradients of `alone`, and compare them.

    The held-out loss is computed after the first step, so that what an evaluation leaves behind is
    seen in the second. `half` is the precision of autocast, or of parameters in half precision.
    """
    laws: Mapping[str, Update] = {}
    if isinstance(other, Together):
        laws = other.stack.optimizer.laws
    found = Comparison(laws, half)
    for step in range(steps):
        losses, gradients = alone.gradients(step)
        found.add_passes(step, losses, gradients, *other.gradients(step))
        found.add_states(alone.states, other.states)
        before = alone.parameters()
        alone.update(step, gradients)
        other.update(step, gradients)
        found.add_updates(step, before, alone.parameters(), other.parameters())
        found.add_buffers(step, alone.buffers(), other.buffers())
        if step == 0:
            evaluated = alone.evaluate()
            if evaluated is not None:
                found.add_evaluation(step, evaluated, other.evaluate())
    return found.read(alone.drew or other.drew)


class Comparison:
    """Compares two ways step by step; numbers stay on the device until `read`.

    `laws` are the updates of the stack's optimizer by parameter. `half` is as in `differences`.
    """

    def __init__(self, laws: Mapping[str, Update], half: torch.dtype | None = None):
        self.laws = laws
        self.half = half
        self.same_draws: bool = True
        self._pending: list[_Pending] = []
        self._first: Tensor | None = None  # losses

    def add_passes(
        self,
        step: int,
        losses: Tensor,
        gradients: Mapping[str, Tensor],
        other_losses: Tensor,
        other_gradients: Mapping[str, Tensor],
    ) -> None:
        """Compare losses and gradients."""
        half = self.half
        entries = [_compared(Place(step, "loss"), losses, other_losses, half)]
        for name in {**gradients, **other_gradients}:
            place = Place(step, "gradient", name)
            entries.append(_compared(place, gradients.get(name), other_gradients.get(name), half))
        if half is not None:
            place = Place(step, "gradients")
            entries.append(_compared_overall(place, gradients, other_gradients, half))
        if self._first is None:
            self._first = losses.abs()
        else:
            for entry in entries:
                entry.leave_out(losses.abs() <= DIVERGING * self._first)
        self._pending += entries

    def add_states(
        self, states: Sequence[GeneratorStates], others: Sequence[GeneratorStates]
    ) -> None:
        """Compare the states of random generators after a forward pass."""
        for a, b in zip(states, others, strict=True):
            self.same_draws = self.same_draws and a.same(b)

    def add_updates(
        self,
        step: int,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
    ) -> None:
        """Compare the parameters after an update."""
        for name, p in after.items():
            place = Place(step, "update", name)
            if name in self.laws:
                inner = self.laws[name].inner_precision
            else:
                inner = None
            if inner is None:
                inner = p.dtype
            self._pending.append(_compared_update(place, before[name], p, others[name], inner))

    def add_buffers(
        self, step: int, buffers: Mapping[str, Tensor], others: Mapping[str, Tensor]
    ) -> None:
        for name, buffer in buffers.items():
            place = Place(step, "buffer", name)
            self._pending.append(_compared(place, buffer, others.get(name), self.half))

    def add_evaluation(self, step: int, losses: Tensor, others: Tensor | None) -> None:
        self._pending.append(_compared(Place(step, "evaluation"), losses, others, self.half))

    def read(self, drew: bool) -> Differences:
        """Read all numbers; `drew` says whether a forward pass has drawn random numbers."""
        return Differences(_read(self._pending), drew, self.same_draws)


def _eps(dtype: torch.dtype, half: torch.dtype | None) -> float:
    if half is not None and torch.finfo(dtype).eps < torch.finfo(half).eps:
        dtype = half
    return torch.finfo(dtype).eps


def _compared(
    place: Place, a: Tensor | None, b: Tensor | None, half: torch.dtype | None
) -> _Pending:
    """Compare two tensors; one that is missing, or of another shape, differs without limit."""
    if a is None or b is None or a.shape != b.shape:
        return _Pending(place, torch.tensor([[torch.inf], [0.0], [0.0]], dtype=torch.float64))
    if place.kind == "buffer" and _same_bits(a, b):
        return _Pending(place, EQUAL)
    if not (a.is_floating_point() or a.is_complex()):
        apart = torch.where(_by_member(a != b).any(1), torch.inf, 0.0).double()
        return _Pending(place, torch.stack([apart, *2 * [torch.ones_like(apart)]]))
    apart, size = _apart_and_size(a, b)
    return _Pending(place, torch.stack([apart, size, size * _eps(a.dtype, half)]))


def _apart_and_size(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest difference and the largest value of each member.

    If all are finite, which is not asked on a GPU, half of the operations suffice.
    """
    if a.device.type == "cpu" and a.numel():
        apart = _by_member(a - b).abs().amax(1).double()
        size = _by_member(a).abs().amax(1).double()
        if bool(torch.isfinite(apart + size).all()):
            return apart, size
    return _apart(a, b), _largest(a)


def _compared_update(
    place: Place, before: Tensor, a: Tensor, b: Tensor, inner: torch.dtype
) -> _Pending:
    if _same_bits(a, b):
        return _Pending(place, EQUAL)
    change = _largest(a - before)
    rounding = torch.finfo(a.dtype).eps * _largest(a)
    unit = rounding + torch.finfo(inner).eps * change
    if a.dtype in HALF:
        # one unit is as large as the update itself: the bits must be the same, but for a few
        different = _by_member(a != b).sum(1)
        unit = torch.where(different > max(1.0, SAME_BITS * a[0].numel()), 0.0, unit)
    return _Pending(place, torch.stack([_apart(a, b), torch.maximum(change, rounding), unit]))


def _compared_overall(
    place: Place, a: Mapping[str, Tensor], b: Mapping[str, Tensor], half: torch.dtype
) -> _Pending:
    """Compare all gradients together, by their Euclidean norms."""
    apart: list[Tensor] = []
    sizes: list[Tensor] = []
    for name, g in a.items():
        size = torch.linalg.vector_norm(_by_member(g).double(), dim=1)
        sizes.append(size)
        if name in b:
            apart.append(torch.linalg.vector_norm(_by_member(g - b[name]).double(), dim=1))
        else:
            apart.append(size)
    size = torch.linalg.vector_norm(torch.stack(sizes), dim=0)
    whole = torch.linalg.vector_norm(torch.stack(apart), dim=0)
    same = whole.isnan() & size.isnan()
    whole = torch.where(same, 0.0, whole.nan_to_num(torch.inf, torch.inf))
    size = size.nan_to_num(0.0, 0.0)
    return _Pending(place, torch.stack([whole, size, size * torch.finfo(half).eps]))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors of the CPU are equal; on a GPU, that would wait for the device."""
    return a.device.type == "cpu" and torch.equal(a, b)


def _by_member(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1)


def _largest(x: Tensor) -> Tensor:
    """Return the largest absolute value of each member that is finite; 0 of no entries."""
    if not x.numel():
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)
    return _by_member(x).abs().nan_to_num(0.0, 0.0, 0.0).amax(1).double()


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Return the largest difference of each member; NaN and NaN are equal, infinities too."""
    if not a.numel():
        return torch.zeros(len(a), dtype=torch.float64, device=a.device)
    apart = (a - b).abs().double().nan_to_num(torch.inf, torch.inf)
    same = (a == b) | (a.isnan() & b.isnan())
    return _by_member(torch.where(same, 0.0, apart)).amax(1)


def _read(pending: list[_Pending]) -> Iterator[Difference]:
    """Read all numbers from the device at once."""
    device = pending[0].numbers.device
    members = pending[0].numbers.shape[1]
    rows = torch.stack([entry.numbers.to(device).expand(3, members) for entry in pending])
    gradients = [row for entry, row in zip(pending, rows, strict=True) if _is_gradient(entry)]
    largest: list[float] = [inf] * members
    if gradients:
        largest = torch.stack(gradients)[:, 2].amax(0).tolist()
    for entry, (apart, sizes, units) in zip(pending, rows.tolist(), strict=True):
        if _is_gradient(entry):
            overall = max(map(_ratio, apart, largest))
        else:
            overall = inf
        in_units = max(map(_ratio, apart, units))
        yield Difference(entry.place, in_units, max(map(_ratio, apart, sizes)), overall)


def _is_gradient(entry: _Pending) -> bool:
    return entry.place.kind == "gradient"


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else inf
