"""Axes with one ratio for the whole model: batch size, training tokens, axes of third parties.

`Horizon.read` validates the options of `plan`; `factors` gives those of one tensor, by axis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from numbers import Real
from typing import Annotated, Protocol, TypeAlias, runtime_checkable

from orderone.core.errors import InputError, one_of, with_code
from orderone.core.inputs import Name, UserInput
from orderone.core.roles import Role
from orderone.optimizers.table import Algorithm, Eps
from orderone.rules.axes import HORIZONS, TIMESCALE, Axis, Factors, ScaledTensor, horizon
from orderone.rules.composition import AxisInput, read_axis

Pair: TypeAlias = tuple[float, float]  # base and target
PairInput: TypeAlias = Annotated[Sequence[float], UserInput]
AxesInput: TypeAlias = Annotated[Mapping[str, Sequence[float]], UserInput]
SDE = "sde"


@runtime_checkable
class MeasuredNoise(Protocol):
    """A measured gradient noise, as `orderone.noise_scale` returns it."""

    @property
    def critical_batch(self) -> float: ...


CriticalBatch: TypeAlias = Annotated[float | MeasuredNoise, UserInput]


@dataclass(frozen=True)
class Horizon:
    """Validated sizes of a training, base and target, and the rules that follow them."""

    rule: str | None = None  # "sde", "power", or None: learning rates do not follow
    batch: Pair | None = None
    tokens: Pair | None = None
    critical_batch: float | None = None
    axes: tuple[tuple[Axis, Pair], ...] = ()  # of third parties

    @classmethod
    def read(
        cls,
        rule: Name | None,
        batch: PairInput | None,
        tokens: PairInput | None,
        critical_batch: CriticalBatch | None,
        axes: AxesInput | None,
        known: Sequence[AxisInput],
    ) -> "Horizon":
        """Validate the options of `plan`; `known` are the axes of a composition."""
        name = None if rule is None else one_of(rule, HORIZONS, "horizon")
        read_batch = None if batch is None else _pair(batch, "batch", "(64, 512)")
        read_tokens = None if tokens is None else _pair(tokens, "tokens", "(2e8, 5e9)")
        critical = None if critical_batch is None else _critical(critical_batch)
        if critical is not None and read_batch is None:
            raise InputError(
                "batch: critical_batch= has no effect without the batch size of the target; pass"
                " batch=(base, target)",
                "horizon-needs-batch",
                argument="batch",
            )
        if read_batch is None and read_tokens is None:
            name = None
        return cls(name, read_batch, read_tokens, critical, _read_axes(axes, known))

    @property
    def is_empty(self) -> bool:
        """Whether the user passed no size of the training."""
        return self.batch is None and self.tokens is None and not self.axes

    @property
    def kappa(self) -> float:
        """Ratio of batch sizes over that of tokens: the steps of the base over those of the target,
        up to sequence lengths."""
        kappa = 1.0
        if self.batch is not None:
            kappa *= self.batch[1] / self.batch[0]
        if self.tokens is not None:
            kappa /= self.tokens[1] / self.tokens[0]
        return kappa

    @property
    def sizes(self) -> dict[str, Pair]:
        """Base and target of every axis, by name."""
        sizes: dict[str, Pair] = {}
        if self.batch is not None:
            sizes["batch"] = self.batch
        if self.tokens is not None:
            sizes["tokens"] = self.tokens
        for axis, pair in self.axes:
            sizes[axis.name] = pair
        return sizes

    def factors(self, optimizer: Algorithm, role: Role, decay: str) -> dict[str, Factors]:
        """Return the factors of a tensor by axis."""
        tensor = ScaledTensor(
            role,
            1.0,
            optimizer.update_law,
            optimizer.memory,
            coupled_decay=not optimizer.decouples_decay,
        )
        factors: dict[str, Factors] = {}
        for axis, pair in self._axes():
            ratio = pair[1] / pair[0]
            factors[axis.name] = axis.factors(replace(tensor, ratio=ratio))
        if decay == TIMESCALE and self.rule is None:
            # no rule follows batch and tokens: weight decay alone preserves the timescale
            if self.batch is not None:
                ratio = self.batch[1] / self.batch[0]
                # a penalty that is normalized with the gradient grows as the noise falls
                is_divided = tensor.coupled_decay and tensor.normalizes
                factors["batch"] = Factors(weight_decay=ratio**0.5 if is_divided else ratio)
            if self.tokens is not None:
                factors["tokens"] = Factors(weight_decay=self.tokens[0] / self.tokens[1])
        return factors

    def _axes(self) -> list[tuple[Axis, Pair]]:
        axes: list[tuple[Axis, Pair]] = []
        if self.rule is not None:
            batch_axis, tokens_axis = horizon(self.rule)
            if self.batch is not None:
                axes.append((batch_axis, self.batch))
            if self.tokens is not None:
                axes.append((tokens_axis, self.tokens))
        return [*axes, *self.axes]

    def notes(self) -> tuple[str, ...]:
        """Return a note if the batch of the target exceeds the critical one."""
        if self.critical_batch is None or self.batch is None:
            return ()
        if self.batch[1] <= self.critical_batch:
            return ()
        note = (
            f"the batch size of the target, {self.batch[1]:.4g}, exceeds the critical batch size"
            f" {self.critical_batch:.4g}: gradients are no longer dominated by noise, so that the"
            " rules for the batch size overestimate the learning rate, and larger batches save few"
            " steps. Use a smaller batch, or tune the learning rate at this one"
        )
        return (with_code(note, "beyond-critical-batch"),)


NO_HORIZON = Horizon()


def scaled_betas(
    optimizer: Algorithm, betas: Sequence[float] | None, factors: tuple[float, float]
) -> tuple[float, ...] | None:
    """Return betas of which 1 - beta grew by the factors; None if the optimizer has none.

    An optimizer with one average, such as RMSprop, averages squares. Where beta is 0 there is no
    average, and none appears.
    """
    if betas is None:
        return None
    if len(betas) > len(factors):
        raise InputError(
            f"horizon: {optimizer.label} has {len(betas)} betas, and the rule is known for two"
            " averages; pass horizon=None",
            "horizon-without-law",
            argument="horizon",
        )
    of_averages = factors[-len(betas) :]
    scaled: list[float] = []
    for beta, factor in zip(betas, of_averages, strict=True):
        fresh = (1 - beta) * factor
        if beta == 0 or factor == 1:
            scaled.append(beta)
            continue
        if fresh >= 1:
            raise InputError(
                f"batch: the memory of {optimizer.label} would be shorter than one step: 1 - beta ="
                f" {1 - beta:.4g} times {factor:.4g} is {fresh:.4g}, and must be below 1. Use a"
                " smaller ratio of batch sizes, a larger beta in the base"
                " (optimizer=functools.partial(AdamW, betas=...)), or horizon='power' or None",
                "memory-below-one-step",
                argument="batch",
            )
        scaled.append(1 - fresh)
    return tuple(scaled)


def times(eps: Eps, factor: float) -> Eps:
    """Return eps times a factor; of a pair, the floor of gradients."""
    if eps is None or factor == 1:
        return eps
    if isinstance(eps, tuple):
        floor, size = eps
        return (None if floor is None else floor * factor, size)
    return eps * factor


def _pair(value: object, name: str, example: str) -> Pair:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise InputError(
            f"{name}: expected a pair (base, target) such as {example}, got {value!r}",
            "not-a-pair",
            argument=name,
        )
    base, target = (_positive(number, name) for number in value)
    return base, target


def _positive(value: object, name: str) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    else:
        number = nan
    if not isfinite(number) or number <= 0:
        raise InputError(f"{name}: expected a positive number, got {value!r}", argument=name)
    return number


def _critical(value: CriticalBatch) -> float:
    if isinstance(value, MeasuredNoise):
        return _positive(value.critical_batch, "critical_batch")
    return _positive(value, "critical_batch")


def _read_axes(axes: AxesInput | None, known: Sequence[AxisInput]) -> tuple[tuple[Axis, Pair], ...]:
    """Return axes with their sizes; the axes of a composition need one each."""
    sizes = {} if axes is None else axes
    if not isinstance(sizes, Mapping):
        raise InputError(
            f'axes: expected {{"name": (base, target)}}, got {axes!r}',
            "wrong-type",
            argument="axes",
        )
    axes_of_rule: dict[str, Axis] = {}
    for axis in (read_axis(axis) for axis in known):
        axes_of_rule[axis.name] = axis
    missing = [name for name in axes_of_rule if name not in sizes]
    if missing:
        raise InputError(
            f"axes: the rule has the axis {missing[0]}, and its sizes were not passed; pass"
            f' axes={{"{missing[0]}": (base, target)}}',
            "axis-without-sizes",
            argument="axes",
        )
    result: list[tuple[Axis, Pair]] = []
    for name, pair in sizes.items():
        axis = axes_of_rule.get(name) or read_axis(name)
        result.append((axis, _pair(pair, f"axes[{name!r}]", "(1024, 4096)")))
    return tuple(result)
