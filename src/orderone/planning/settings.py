"""Settings that may differ between tensors: learning rate, weight decay, start, factor of initial
sizes.

    lr=3e-3                                                       one value for all tensors
    lr={"default": 3e-3, "embedding": 1e-2, "*.q_proj.weight": 1e-3}

A key of a mapping is one of these; if several fit a tensor, the first kind in this list counts:

    name         the exact name of a tensor, as the plan prints it
    pattern      a pattern of names; of several, the one with the most characters that are no
                 wildcards
    role         embedding, hidden, readout or vector
    optimizer    if a plan mixes two: muon, adamw
    default      all other tensors

The order of the keys does not count. Values are those of the base: the rule scales each of them as
it scales a single value. A role is the one that a tensor has at every size. (Relative to a base of
the same size no dimension grows, and the plan prints the role `fixed` for all tensors.)
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import isfinite
from numbers import Real
from typing import Annotated, Generic, TypeAlias, TypeVar

from orderone.core.errors import InputError, as_passed
from orderone.core.inputs import UserInput
from orderone.core.roles import ROLES, Role

SettingInput: TypeAlias = Annotated[float | Mapping[str, float], UserInput]
PlainSetting: TypeAlias = float | dict[str, float] | None

DEFAULT = "default"
LR = "lr"
WEIGHT_DECAY = "weight_decay"
INIT_SCALE = "init_scale"
PER_TENSOR = (LR, WEIGHT_DECAY, INIT_SCALE)
V = TypeVar("V")
_WILDCARDS = re.compile(r"\[[^]]*\]|[*?]")


@dataclass(frozen=True)
class Subject:
    """Facts about a tensor that keys of a mapping can refer to."""

    name: str
    optimizer: str
    # roles of the tensor at the sizes of base and target; more than one if they are ambiguous
    roles: tuple[str, ...] = ()
    trained: bool = True
    other_names: tuple[str, ...] = ()  # of a tied tensor


@dataclass(frozen=True)
class Choice(Generic[V]):
    """Value for one tensor, and the key that set it: None for a default."""

    value: V | None  # None: the default of the optimizer
    key: str | None = None


@dataclass(frozen=True)
class PerTensor(Generic[V]):
    """One value, or a mapping that was sorted by the kind of its keys."""

    name: str
    default: V | None = None
    optimizers: Mapping[str, V] = field(default_factory=dict)
    roles: Mapping[str, V] = field(default_factory=dict)
    patterns: Mapping[str, V] = field(default_factory=dict)  # names and patterns

    @property
    def is_uniform(self) -> bool:
        """Whether no key refers to some of the tensors only."""
        return not (self.optimizers or self.roles or self.patterns)

    @property
    def plain(self) -> V | dict[str, V] | None:
        """The setting as a user would write it, with sorted keys."""
        if self.is_uniform:
            return self.default
        mapping: dict[str, V] = {}
        if self.default is not None:
            mapping[DEFAULT] = self.default
        return {**mapping, **self.optimizers, **self.roles, **self.patterns}

    def for_optimizer(self, optimizer: str) -> V | None:
        """Return the value for a tensor of which only the optimizer is known."""
        return self.optimizers.get(optimizer, self.default)

    # --- one tensor -------------------------------------------------------------------------------

    def of(self, tensor: Subject) -> Choice[V]:
        """Return the value for a tensor; raise an InputError if it has none or several."""
        if self.is_uniform:
            return Choice(self.default)
        if tensor.name in self.patterns:
            return Choice(self.patterns[tensor.name], tensor.name)
        pattern = self._most_specific(tensor.name)
        if pattern is not None:
            return Choice(self.patterns[pattern], pattern)
        choices = [self._without_name(tensor, role) for role in tensor.roles or ("",)]
        if len({choice.value for choice in choices}) > 1:
            self._raise_ambiguous(tensor, choices)
        choice = choices[0]
        if choice.value is None and tensor.trained:
            self._raise_uncovered(tensor)
        return choice

    def _most_specific(self, name: str) -> str | None:
        """Return the matching pattern with the most characters that are no wildcards."""
        matching = [pattern for pattern in self.patterns if fnmatchcase(name, pattern)]
        if not matching:
            return None
        most = max(_literals(pattern) for pattern in matching)
        longest = [pattern for pattern in matching if _literals(pattern) == most]
        if len({self.patterns[pattern] for pattern in longest}) > 1:
            raise InputError(
                f"{self.name}: {' and '.join(map(repr, longest))} both match {name} and are equally"
                f" specific, with different values; add the key {name!r}, or make one of them more"
                " specific",
                argument=self.name,
            )
        return longest[0]

    def _without_name(self, tensor: Subject, role: str) -> Choice[V]:
        if role in self.roles:
            return Choice(self.roles[role], role)
        if tensor.optimizer in self.optimizers:
            return Choice(self.optimizers[tensor.optimizer], tensor.optimizer)
        return Choice(self.default)

    def _raise_ambiguous(self, tensor: Subject, choices: Sequence[Choice[V]]) -> None:
        values: list[str] = []
        for role, choice in zip(tensor.roles, choices, strict=True):
            values.append(f"{role} ({choice.value})")
        message = (
            f"{self.name}: the role of {tensor.name} depends on the size: {' or '.join(values)}, so"
            f" that its {self.name} would change with the size. Add the key {tensor.name!r} to"
            f' {self.name}, or choose the role: overrides={{"{tensor.name}": role}}'
        )
        raise InputError(message, "ambiguous-role", argument=self.name)

    def _raise_uncovered(self, tensor: Subject) -> None:
        if tensor.roles:
            role = f" ({tensor.roles[0]})"
        else:
            role = ""
        raise InputError(
            f"{self.name}: no key matches {tensor.name}{role}; add the key {DEFAULT!r}, the value"
            f" of all other tensors (in the space of a sweep: {self.name!r})",
            argument=self.name,
        )

    # --- all tensors ------------------------------------------------------------------------------

    def check(self, tensors: Sequence[Subject]) -> None:
        """Raise an InputError if a key fits no trained tensor."""
        for key, matching in self._matches(tensors):
            if any(tensor.trained for tensor in matching):
                continue
            message = f"{self.name}: the key {key!r} matches no tensor"
            if matching:
                message = (
                    f"{self.name}: the key {key!r} matches only frozen tensors"
                    f" ({matching[0].name}, ...), which are not trained"
                )
            raise InputError(message + self._hint(key, tensors), "unknown-name", argument=self.name)

    def _matches(self, tensors: Sequence[Subject]) -> Iterator[tuple[str, list[Subject]]]:
        for key in self.patterns:
            yield key, [tensor for tensor in tensors if fits_name(key, tensor.name)]
        for key in self.roles:
            yield key, [tensor for tensor in tensors if key in tensor.roles]
        for key in self.optimizers:
            yield key, [tensor for tensor in tensors if key == tensor.optimizer]

    def _hint(self, key: str, tensors: Sequence[Subject]) -> str:
        for tensor in tensors:
            for other in tensor.other_names:
                if fits_name(key, other):
                    return f"; {other} is tied to {tensor.name}: use this name"
        if key in ROLES:
            roles = sorted({role for tensor in tensors for role in tensor.roles})
            return f"; the tensors of this model have the roles {', '.join(roles)}"
        known: dict[str, None] = dict.fromkeys([DEFAULT, *map(str, ROLES)])
        for tensor in tensors:
            known[tensor.name] = None
            known[tensor.optimizer] = None
            parts = tensor.name.split(".")
            for start in range(1, len(parts)):
                known["*." + ".".join(parts[start:])] = None
        near = get_close_matches(key, list(known), n=3)
        for pattern in (f"*{key}*", f"*.{key}"):  # a part of a name, without wildcards
            if any(fits_name(pattern, tensor.name) for tensor in tensors):
                others = [name for name in near if not fits_name(pattern, name)]
                near = [pattern, *others][:2]
        if near:
            return f"; did you mean {' or '.join(map(repr, near))}?"
        return f"; the model has {tensors[0].name}, ..., {tensors[-1].name}"


@dataclass(frozen=True)
class Setting(PerTensor[float]):
    """A number, or numbers for some of the tensors: learning rate, weight decay, init_scale."""

    @staticmethod
    def read(name: str, value: object, optimizers: Sequence[str]) -> "Setting":
        """Return the validated setting; `optimizers` are the names that may be keys."""
        if name == INIT_SCALE:
            default = 1.0
        else:
            default = None
        if value is None:
            return Setting(name, default)
        if not isinstance(value, Mapping):
            return Setting(name, default=_number(value, name, name))
        if name == INIT_SCALE:
            keys = ()
        else:
            keys = optimizers
        numbers = sorted_keys(name, value, keys, lambda number, key: _number(number, key, name))
        return Setting(
            name,
            numbers.pop(DEFAULT, {}).get(DEFAULT, default),
            numbers["optimizers"],
            numbers["roles"],
            numbers["patterns"],
        )

    @property
    def uniform(self) -> "Setting":
        """The same setting without keys that refer to some of the tensors only."""
        return Setting(self.name, self.default)


def sorted_keys(
    name: str,
    mapping: Mapping[object, object],
    optimizers: Sequence[str],
    read: Callable[[object, str], V],
) -> dict[str, dict[str, V]]:
    """Return the values of a mapping by the kind of their keys.

    The kinds are "default", "optimizers", "roles" and "patterns". `read` validates a value; its
    second argument is the place of the value in words.
    """
    if not mapping:
        raise InputError(
            f'{name}: expected a value or a mapping such as {{"default": ...}}, got an empty'
            " mapping",
            argument=name,
        )
    kinds: dict[str, dict[str, V]] = {DEFAULT: {}, "optimizers": {}, "roles": {}, "patterns": {}}
    for raw_key in sorted(mapping, key=str):
        key = _read_key(name, raw_key)
        kind = "patterns"
        if key == DEFAULT:
            kind = DEFAULT
        elif key in optimizers:
            kind = "optimizers"
        elif key in ROLES:
            kind = "roles"
        kinds[kind][key] = read(mapping[raw_key], f"{name}[{key!r}]")
    return kinds


def _read_key(name: str, key: object) -> str:
    if not isinstance(key, str) or not key:
        raise InputError(
            f"{name}: expected text as keys (a role, a name or a pattern of tensors), got {key!r}",
            "wrong-type",
            argument=name,
        )
    if key == Role.FIXED:
        raise InputError(
            f"{name}: the role {key!r} cannot be a key, because which tensors are fixed depends on"
            " the base; use names or patterns of tensors",
            "unknown-name",
            argument=name,
        )
    return key


def fits_name(key: str, name: str) -> bool:
    """Return whether a key is the name of a tensor or a pattern that matches it."""
    return key == name or fnmatchcase(name, key)


def _literals(pattern: str) -> int:
    return len(_WILDCARDS.sub("", pattern))


def nonnegative(value: object, name: str, argument: str | None = None) -> float:
    """Return `value` as a float; raise an InputError unless it is finite and at least 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or value < 0:
        raise InputError(
            f"{name}: expected a number, zero or more; got {as_passed(value)}",
            argument=argument or name,
        )
    return float(value)


def _number(value: object, name: str, argument: str) -> float:
    number = nonnegative(value, name, argument)
    if argument == INIT_SCALE and number == 0:
        raise InputError(f"{name}: expected a number above zero, got {value!r}", argument=argument)
    return number
