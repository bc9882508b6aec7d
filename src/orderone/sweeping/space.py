"""The points to train: what is compared (rules, sizes), what is repeated (seeds), and what is
tuned.

arms     rule x optimizer x width x depth                  each has an optimum of its own
repeats  seed x data_seed                                  a point is judged by their mean
points   everything else: lr, weight_decay, betas, ...     a grid, or drawn
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from torch.optim import Optimizer

from orderone import rules
from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.optimizers.table import algorithm
from orderone.sweeping.trial import CHOICES, SEEDS, SIZES, TUNED, Scalar
from orderone.theory.exponents import Parameterization

Point = dict[str, Scalar]
MOST = 1_000_000  # values of a grid
LARGEST_SEED = 2**63 - 1  # of torch and of SQLite
_DIGITS = 12  # that all machines agree on


class LogGrid(tuple[float, ...]):
    """Values at equal ratios. Samplers draw between its ends, uniformly in the logarithm."""

    __slots__ = ()


def log_grid(low: Number, high: Number, n: Count) -> LogGrid:
    """`n` values from `low` to `high` at equal ratios: log_grid(1e-4, 1e-1, 4) is 1e-4, 1e-3, 1e-2,
    1e-1."""
    low = real(low, "low", above=0)
    high = real(high, "high", above=0)
    n = count(n, "n", most=MOST)
    if high < low or (n > 1 and high == low):
        raise ValueError(f"log_grid: expected low < high, got {low:g} and {high:g}")
    if n == 1 and low != high:
        raise ValueError(
            f"log_grid: one value cannot reach from {low:g} to {high:g}; take n = 2 or more"
        )
    steps = max(n - 1, 1)
    return LogGrid(float(f"{low * (high / low) ** (i / steps):.{_DIGITS}g}") for i in range(n))


@dataclass(frozen=True)
class Space:
    """Read and checked."""

    arms: Mapping[str, tuple[Scalar, ...]]
    repeats: Mapping[str, tuple[Scalar, ...]]
    tuned: Mapping[str, Sequence[Scalar]]  # a LogGrid or a range stays one
    rules: Mapping[str, Any]  # of the user's own, by name
    optimizers: Mapping[str, type[Optimizer]]  # the user's own classes, by label

    def all_arms(self) -> list[Point]:
        return list(_product(self.arms))

    def all_repeats(self) -> list[Point]:
        return list(_product(self.repeats))

    def grid(self) -> Iterator[Point]:
        return _product(self.tuned)

    def draw(self, number: int, seed: int) -> Iterator[Point]:
        """Random points, the same for the same seed."""
        generator = random.Random(seed)
        for _ in range(number):
            yield {name: _draw(values, generator) for name, values in self.tuned.items()}

    @property
    def sizes(self) -> dict[str, tuple[Scalar, ...]]:
        return {name: self.arms[name] for name in SIZES if name in self.arms}

    @property
    def arguments(self) -> list[str]:
        """Of `build`."""
        return [name for name in self.tuned if name not in TUNED]


def _product(axes: Mapping[str, Iterable[Scalar]]) -> Iterator[Point]:
    return (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _draw(values: Sequence[Scalar], generator: random.Random) -> Scalar:
    if not isinstance(values, LogGrid):
        return generator.choice(values)
    low = float(values[0])
    high = float(values[-1])
    return float(f"{low * (high / low) ** generator.random():.{_DIGITS}g}")


# --- reading --------------------------------------------------------------------------------------


def read_space(space: Any, widths: Any, depths: Any, rule: Any, optimizer: Any) -> Space:
    if not isinstance(space, Mapping):
        raise ValueError(
            f'space: expected a mapping such as {{"lr": [1e-3, 1e-2]}}, got {type(space).__name__}'
        )
    if not space:
        raise ValueError(
            'space: expected at least one setting to vary, such as {"lr": [1e-3, 1e-2]}; got none'
        )
    axes = {str(name): _values(name, values) for name, values in space.items()}
    given = {"width": widths, "depth": depths}
    twice = [name for name in SIZES if name in axes]
    if twice:
        raise ValueError(
            f"space: {twice[0]} does not belong here; give {twice[0]}s=[...] beside the space"
        )
    arms = {name: _sizes(name, sizes) for name, sizes in given.items() if sizes is not None}
    ruled, own = _rules(axes.pop("rule", None) or _values("rule", rule))
    optimizers, classes = _optimizers(
        axes.pop("optimizer", None) or _values("optimizer", optimizer)
    )
    arms |= {"rule": ruled, "optimizer": optimizers}
    repeats = {"seed": (0,)} | {
        name: _seeds(name, axes.pop(name)) for name in SEEDS if name in axes
    }
    return Space(
        arms, repeats, {name: _tuned(name, values) for name, values in axes.items()}, own, classes
    )


def _values(name: Any, values: Any) -> Sequence[Any]:
    """Several values as a sequence; one is a sequence of one."""
    if isinstance(values, (LogGrid, range)):
        found: Sequence[Any] = values
    elif isinstance(values, (str, bytes, type, Mapping, Parameterization)) or not hasattr(
        values, "__iter__"
    ):
        found = (values,)
    else:
        found = tuple(
            x.item() if isinstance(x, np.generic) else x
            for x in (values.tolist() if hasattr(values, "tolist") else values)
        )
    if not len(found):
        raise ValueError(f"{name}: expected at least one value, got none")
    return found


def _sizes(name: str, given: Any) -> tuple[int, ...]:
    return tuple(sorted({count(size, f"{name}s") for size in _values(f"{name}s", given)}))


def _seeds(name: str, given: Sequence[Any]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(count(seed, name, least=0, most=LARGEST_SEED) for seed in given))


def _rules(given: Sequence[Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    own = {rule.name: rule for rule in given if isinstance(rule, Parameterization)}
    named = [
        rule.name if isinstance(rule, Parameterization) else one_of(rule, rules.names(), "rule")
        for rule in given
    ]
    return tuple(dict.fromkeys(named)), own


def _optimizers(given: Sequence[Any]) -> tuple[tuple[str, ...], dict[str, type[Optimizer]]]:
    """Return the labels of all optimizers, and the classes among them that are the user's own."""
    found = [algorithm(optimizer) for optimizer in given]
    classes: dict[str, type[Optimizer]] = {}
    for a in found:
        if a.user_class is None:
            continue
        if classes.setdefault(a.label, a.user_class) is not a.user_class:
            raise ValueError(
                f"optimizer: two classes are called {a.label}; rename one of them, or make two"
                " sweeps"
            )
    return tuple(dict.fromkeys(a.label for a in found)), classes


_RANGES: dict[str, dict[str, float]] = {
    "lr": {"above": 0},
    "weight_decay": {"least": 0},
    "eps": {"least": 0},
    "init_scale": {"above": 0},
    "beta1": {"least": 0, "most": 1 - 1e-12},
    "beta2": {"least": 0, "most": 1 - 1e-12},
    "momentum": {"least": 0, "most": 1 - 1e-12},
}


def _tuned(name: str, values: Sequence[Any]) -> Sequence[Scalar]:
    if name in TUNED:
        if isinstance(values, LogGrid):
            real(values[-1], name, **_RANGES[name])
            return values
        return tuple(dict.fromkeys(real(value, name, **_RANGES[name]) for value in values))
    for value in values:
        if not isinstance(value, (bool, int, float, str, type(None))) or value != value:
            raise ValueError(
                f"{name}: expected numbers, words or None as arguments of build, got {value!r}"
            )
    return values


__all__ = ["CHOICES", "LogGrid", "Point", "Space", "log_grid", "read_space"]
