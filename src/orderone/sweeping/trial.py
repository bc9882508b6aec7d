"""Trial: one training, identified by everything that defines it.

    key = SHA-256 of the canonical JSON of (job, settings)

Canonical: sorted keys, no spaces, floats by their shortest repr, which is unique.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

from orderone.core.canonical import canonical, digest

Scalar: TypeAlias = int | float | str | bool | None
Value: TypeAlias = float | str  # of a setting per tensor: a number, or the name of a start

# Settings of a trial; all other settings are keyword arguments of `build`.
SIZES = ("width", "depth")
TUNED = ("lr", "weight_decay", "beta1", "beta2", "momentum", "eps", "init_scale", "init")
# these may be set per role, pattern or optimizer: "lr.embedding", "lr.*.q_proj.weight", "lr.muon"
PER_TENSOR = ("lr", "weight_decay", "init_scale", "init")
CHOICES = ("rule", "optimizer")
AMOUNTS = ("batch_size", "steps")  # of data: samples in a batch, updates
SEEDS = ("seed", "data_seed")
KNOWN = (*SIZES, *CHOICES, *AMOUNTS, *TUNED, *SEEDS)
# columns of a frame of trials that are results; all others are settings
RESULTS: tuple[str, ...] = (
    "loss",
    "evaluation",
    "diverged",
    "steps",
    "updates",
    "seconds",
    "status",
    "error",
    "key",
)


def tuned_name(name: str) -> str | None:
    """Return the setting that a name of a space tunes, None for an argument of `build`.

    It is "lr" for "lr" and for "lr.embedding".
    """
    first, _, key = name.partition(".")
    if name in TUNED:
        return name
    if key and first in PER_TENSOR:
        return first
    return None


def setting_of(settings: Mapping[str, Scalar], name: str) -> "Value | dict[str, Value] | None":
    """Return a setting as `plan` takes it: a value, or a mapping of all "lr.key" of a trial."""
    default = cast("Value | None", settings.get(name))
    mapping: dict[str, Value] = {}
    for full_name, value in settings.items():
        first, _, key = full_name.partition(".")
        if first == name and key:
            mapping[key] = cast(Value, value)
    if not mapping:
        return default
    if default is not None:
        mapping["default"] = default
    return dict(sorted(mapping.items()))


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of settings in the order of `KNOWN`, "lr.embedding" after "lr"."""

    def place(name: str) -> tuple[int, bool]:
        setting = tuned_name(name) or name
        if setting in KNOWN:
            number = KNOWN.index(setting)
        else:
            number = len(KNOWN)
        return number, name != setting

    return sorted(names, key=place)


@dataclass(frozen=True)
class Trial:
    """Point of the space; `job` is the fingerprint of the settings that all trials share."""

    settings: Mapping[str, Scalar]
    job: str = ""

    @cached_property
    def key(self) -> str:
        return digest({"job": self.job, "settings": dict(self.settings)})

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trial) and other.key == self.key

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self.settings.get(name, otherwise)

    @property
    def seed(self) -> int:
        return int(self.get("seed", 0))

    @property
    def data_seed(self) -> int:
        """Seed of the data; by default the seed of the model."""
        return int(self.get("data_seed", self.seed))

    @property
    def arguments(self) -> dict[str, Scalar]:
        """Arguments of `build` other than the sizes."""
        arguments: dict[str, Scalar] = {}
        for name, value in self.settings.items():
            if name not in KNOWN and tuned_name(name) is None:
                arguments[name] = value
        return arguments

    @property
    def architecture(self) -> str:
        """Text that is equal for trials with the same tensors and optimizer."""
        return canonical(
            {name: self.get(name) for name in (*SIZES, "optimizer")} | {"build": self.arguments}
        )

    @property
    def program(self) -> str:
        """Text that is equal for trials that one program can train: also the same batch size."""
        return canonical([self.architecture, self.get("batch_size")])

    def __str__(self) -> str:
        parts: list[str] = []
        for name in in_order(self.settings):
            value = self.settings[name]
            if isinstance(value, float):
                parts.append(f"{name} {value:.4g}")
            else:
                parts.append(f"{name} {value}")
        return ", ".join(parts)
