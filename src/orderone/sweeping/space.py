"""Search space of a sweep: settings to compare (rules, sizes), to repeat (seeds) and to tune.

arms     rule, optimizer, width, depth, batch_size, steps    each arm has its own optimum
repeats  seed, data_seed                                     a point is judged by their mean loss
points   everything else: lr, weight_decay, betas, ...       a grid, or random
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import cast

import numpy as np

from orderone import rules
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.optimizers.table import UserOptimizer, algorithm, with_convention
from orderone.planning.settings import DEFAULT
from orderone.planning.start_setting import INIT, StartSetting
from orderone.rules.composition import Composition, find_composition
from orderone.sweeping.inputs import Optimizers, Rules, Sizes, SpaceInput
from orderone.sweeping.trial import AMOUNTS, PER_TENSOR, SEEDS, SIZES, Scalar, tuned_name
from orderone.theory.exponents import Parameterization

Point = dict[str, Scalar]
MOST = 1_000_000  # largest number of values in a grid
LARGEST_SEED = 2**63 - 1  # limit of torch and of SQLite
_DIGITS = 12  # rounded, so that all machines compute the same values


class LogGrid(tuple[float, ...]):
    """Values at equal ratios; samplers draw between its ends, uniformly in the logarithm."""

    __slots__ = ()


def log_grid(low: Number, high: Number, n: Count) -> LogGrid:
    """Return `n` values from `low` to `high` at equal ratios.

    For example, log_grid(1e-4, 1e-1, 4) is 1e-4, 1e-3, 1e-2, 1e-1.
    """
    low = real(low, "low", above=0)
    high = real(high, "high", above=0)
    n = count(n, "n", most=MOST)
    if high < low or (n > 1 and high == low):
        raise InputError(
            f"log_grid: expected low < high, got {low:g} and {high:g}", argument="high"
        )
    if n == 1 and low != high:
        raise InputError(
            f"log_grid: expected n = 2 or more for a grid from {low:g} to {high:g}, got n = 1",
            argument="n",
        )
    steps = max(n - 1, 1)
    return LogGrid(_between(low, high, i / steps) for i in range(n))


def _between(low: float, high: float, share: float) -> float:
    """Return the number at this share of the way from `low` to `high` in the logarithm."""
    value = low * (high / low) ** share
    return float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True)
class Space:
    """Validated space, sorted into arms, repeats and tuned settings."""

    sizes: Mapping[str, tuple[int, ...]]  # "width", "depth"
    choices: Mapping[str, tuple[str, ...]]  # "rule", "optimizer"
    repeats: Mapping[str, tuple[int, ...]]  # "seed", "data_seed"
    tuned: Mapping[str, Sequence[Scalar]]  # a LogGrid or a range stays one
    rules: Mapping[str, Parameterization | Composition]  # custom rules, by name
    optimizers: Mapping[str, UserOptimizer]  # custom optimizer classes, by label
    amounts: Mapping[str, tuple[int, ...]]  # "batch_size", "steps"

    @property
    def arms(self) -> dict[str, tuple[Scalar, ...]]:
        return {**self.sizes, **self.choices, **self.amounts}

    def all_arms(self) -> list[Point]:
        return list(_product(self.arms))

    def all_repeats(self) -> list[Point]:
        return list(_product(self.repeats))

    def grid(self) -> Iterator[Point]:
        return _product(self.tuned)

    def draw(self, number: int, seed: int) -> Iterator[Point]:
        """Draw random points, the same for the same seed."""
        generator = random.Random(seed)
        for _ in range(number):
            yield {name: _draw(values, generator) for name, values in self.tuned.items()}

    @property
    def arguments(self) -> list[str]:
        """Names of the tuned settings that are arguments of `build`."""
        return [name for name in self.tuned if tuned_name(name) is None]


def _product(axes: Mapping[str, Iterable[Scalar]]) -> Iterator[Point]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _draw(values: Sequence[Scalar], generator: random.Random) -> Scalar:
    if isinstance(values, LogGrid):
        return _between(values[0], values[-1], generator.random())
    return generator.choice(values)


# --- reading --------------------------------------------------------------------------------------


def read_space(
    space: SpaceInput,
    widths: Sizes,
    depths: Sizes,
    rule: Rules,
    optimizer: Optimizers,
    fixed: Mapping[str, object] | None = None,
) -> Space:
    """Validate the space together with widths, depths, rules and optimizers.

    `fixed` are settings that all trials share, such as {"lr": {"default": 3e-3}}; None: not set.
    """
    _check_not_empty(space, fixed or {})
    axes: dict[str, Sequence[object]] = {}
    for name, values in _flat(space, fixed or {}).items():
        axes[name] = _values(name, values)
    _refuse_sizes(axes)
    sizes = _read_sizes(widths, depths)
    rule_names, user_rules = _read_rules(axes.pop("rule", None) or _values("rule", rule))
    labels, classes = _read_optimizers(
        axes.pop("optimizer", None) or _values("optimizer", optimizer)
    )
    amounts: dict[str, tuple[int, ...]] = {}
    for name in AMOUNTS:
        if name in axes:
            several = {count(cast(int, value), name) for value in axes.pop(name)}
            amounts[name] = tuple(sorted(several))
    repeats: dict[str, tuple[int, ...]] = {"seed": (0,)}
    for name in SEEDS:
        if name in axes:
            repeats[name] = _read_seeds(name, axes.pop(name))
    # what is left after those with a meaning of their own
    tuned = {name: _read_tuned(name, values) for name, values in axes.items()}
    choices = {"rule": rule_names, "optimizer": labels}
    return Space(sizes, choices, repeats, tuned, user_rules, classes, amounts)


def _check_not_empty(space: object, fixed: Mapping[str, object]) -> None:
    """Raise an InputError if the space is no mapping, or has no setting."""
    if not isinstance(space, Mapping):
        raise InputError(
            f'space: expected a dict such as {{"lr": [1e-3, 1e-2]}}, got {type(space).__name__}',
            "wrong-type",
            argument="space",
        )
    if not space and not any(value is not None for value in fixed.values()):
        raise InputError(
            'space: expected at least one setting, such as {"lr": [1e-3, 1e-2]}; got none',
            argument="space",
        )


def _refuse_sizes(names: Iterable[str]) -> None:
    for name in SIZES:
        if name in names:
            raise InputError(
                f"space: {name!r} is not part of the space; pass {name}s=[...] as an argument of"
                " the sweep",
                "unknown-space-key",
                argument="space",
            )


def _flat(space: SpaceInput, fixed: Mapping[str, object]) -> dict[str, object]:
    """Return the space with one name for every axis.

    {"lr": {"default": x, "embedding": y}} becomes {"lr": x, "lr.embedding": y}.
    """
    axes: dict[str, object] = {}
    for source, argument in ((space, "space"), (fixed, None)):
        for name, values in source.items():
            name = str(name)
            if values is None and argument is None:
                continue
            entries: dict[str, object] = {name: values}
            if isinstance(values, Mapping) and name in PER_TENSOR:
                entries = _by_key(name, cast(Mapping[object, object], values))
            for key, value in entries.items():
                if key in axes:
                    raise InputError(
                        f"{key}: expected its values once, got them twice; remove one of them from"
                        " the space or from the arguments of the sweep",
                        argument=argument or name,
                    )
                axes[key] = value
    return axes


def _by_key(name: str, mapping: Mapping[object, object]) -> dict[str, object]:
    if not mapping:
        raise InputError(f"{name}: expected at least one value, got none", argument=name)
    entries: dict[str, object] = {}
    for key, value in mapping.items():
        entries[name if key == DEFAULT else f"{name}.{key}"] = value
    return entries


def _values(name: str, values: object) -> Sequence[object]:
    """Return several values as a sequence, and a single one as a sequence of one."""
    sequence: Sequence[object]
    if isinstance(values, (LogGrid, range)):
        sequence = values
    elif _is_single(values):
        sequence = (values,)
    else:
        to_list = getattr(values, "tolist", None)  # arrays of any library
        if to_list is None:
            several = cast(Iterable[object], values)
        else:
            several = to_list()
        sequence = tuple(_python_scalar(value) for value in several)
    if not len(sequence):
        raise InputError(f"{name}: expected at least one value, got none", argument=name)
    return sequence


def _is_single(values: object) -> bool:
    if isinstance(values, (str, bytes, type, Mapping, Parameterization, Composition)):
        return True
    return not hasattr(values, "__iter__")


def _python_scalar(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    return value


def _read_sizes(widths: Sizes, depths: Sizes) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {}
    for name, values in (("width", widths), ("depth", depths)):
        if values is not None:
            several = _values(f"{name}s", values)
            sizes[name] = tuple(sorted({count(size, f"{name}s") for size in several}))
    return sizes


def _read_seeds(name: str, values: Sequence[object]) -> tuple[int, ...]:
    seeds = [count(seed, name, least=0, most=LARGEST_SEED) for seed in values]
    return tuple(dict.fromkeys(seeds))


def _read_rules(
    values: Sequence[object],
) -> tuple[tuple[str, ...], dict[str, Parameterization | Composition]]:
    """Return the names of all rules, and the custom rules among them."""
    rule_names: list[str] = []
    user_rules: dict[str, Parameterization | Composition] = {}
    for rule in values:
        composed = find_composition(rule)
        user_rule = composed or rule
        if not isinstance(user_rule, (Parameterization, Composition)):
            rule_names.append(rules.get(cast("str", rule)).name)
            continue
        if composed is not None and user_rule.name in rule_names:
            raise InputError(
                f"rule: two rules have the name {user_rule.name}; pass name= to rules.compose",
                argument="rule",
            )
        rule_names.append(user_rule.name)
        user_rules[user_rule.name] = user_rule
    return tuple(dict.fromkeys(rule_names)), user_rules


def _read_optimizers(
    values: Sequence[object],
) -> tuple[tuple[str, ...], dict[str, UserOptimizer]]:
    """Return the labels of all optimizers, and the custom classes among them."""
    labels: list[str] = []
    classes: dict[str, UserOptimizer] = {}
    for value in values:
        optimizer = with_convention(value)
        entry = algorithm(optimizer)
        labels.append(entry.label)
        if not isinstance(optimizer, (type, partial)) or entry.user_text is None:
            continue
        earlier = classes.setdefault(entry.label, optimizer)
        if algorithm(earlier).user_class is not entry.user_class:
            raise InputError(
                f"optimizer: two different classes have the name {entry.label}; rename one of them,"
                " or run two sweeps",
                argument="optimizer",
            )
    return tuple(dict.fromkeys(labels)), classes


def _read_starts(name: str, values: Sequence[object]) -> tuple[Scalar, ...]:
    """Return names of starts and sizes; `init` itself cannot be zero, "init.readout" can."""
    read: list[Scalar] = []
    for value in values:
        if isinstance(value, Mapping):
            raise _list_of_mappings(name, value)
        key = name.partition(".")[2]
        setting = StartSetting.read({key: value} if key else value)
        start = setting.default
        if key:
            start = {**setting.roles, **setting.patterns}[key]
        read.append(start)
    return tuple(dict.fromkeys(read))


def _list_of_mappings(name: str, value: Mapping[object, object]) -> InputError:
    setting = name.partition(".")[0]
    return InputError(
        f"{name}: expected single values, got a list of mappings; pass one list for every key:"
        f' {{"{setting}.{next(iter(value), "embedding")}": [...], ...}}',
        "wrong-type",
        argument=name,
    )


_RANGES: dict[str, dict[str, float]] = {
    "lr": {"above": 0},
    "weight_decay": {"least": 0},
    "eps": {"least": 0},
    "init_scale": {"above": 0},
    "beta1": {"least": 0, "most": 1 - 1e-12},
    "beta2": {"least": 0, "most": 1 - 1e-12},
    "momentum": {"least": 0, "most": 1 - 1e-12},
}


def _read_tuned(name: str, values: Sequence[object]) -> Sequence[Scalar]:
    setting = tuned_name(name)
    if setting == INIT:
        return _read_starts(name, values)
    if setting is not None:
        if isinstance(values, LogGrid):
            real(values[-1], name, **_RANGES[setting])
            return values
        for value in values:
            if isinstance(value, Mapping):
                raise _list_of_mappings(name, value)
        numbers = [real(cast(float, value), name, **_RANGES[setting]) for value in values]
        return tuple(dict.fromkeys(numbers))
    for value in values:
        if not isinstance(value, (bool, int, float, str, type(None))) or value != value:
            raise InputError(
                f"space: expected numbers, strings, booleans or None for {name!r}, an argument of"
                f" build; got {value!r}",
                argument=name,
            )
    return cast(Sequence[Scalar], values)


__all__ = ["LogGrid", "Point", "Space", "log_grid", "read_space"]
