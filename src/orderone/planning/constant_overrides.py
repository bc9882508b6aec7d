"""The constants of order one in absolute mode: C in initial variances, Lambda in learning rates.

Keys are roles, groups of S2 ("Effective Theory of Transformers at Initialization"), or matrices of
its group QKVU; the most specific one counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from orderone.core.errors import InputError, one_of
from orderone.planning.roles.evidence import OVERRIDES, read_name
from orderone.planning.settings import nonnegative
from orderone.theory.scaling import GROUPS

ATTENTION = ("Q", "K", "V", "U")  # within the group QKVU


@dataclass(frozen=True)
class OrderOne:
    """The user's constants."""

    C: Mapping[str, float]
    Lambda: Mapping[str, float]

    def variance(self, name: str, group: str, role: str) -> float:
        return _constant(self.C, name, group, role)

    def rate(self, name: str, group: str, role: str) -> float:
        return _constant(self.Lambda, name, group, role)

    def check(self, groups: Mapping[str, str]) -> None:
        """Raise an InputError for unknown keys; `groups` are those of all tensors.

        Q, K, V and U are valid keys only if the names of all attention matrices identify them.
        """
        unclear: list[str] = []
        for tensor, group in groups.items():
            if group == "QKVU" and read_name(tensor).attention_part is None:
                unclear.append(tensor)
        for constants, name in ((self.C, "C"), (self.Lambda, "Lambda")):
            _known(constants, name)
            if unclear and not set(ATTENTION).isdisjoint(constants):
                raise InputError(
                    f"{name}: expected QKVU, because the name {unclear[0]} does not say whether it"
                    f" is Q, K, V or U; got {', '.join(constants)}",
                    argument=name,
                )


def _known(constants: Mapping[str, float], name: str) -> None:
    words = (*GROUPS, *OVERRIDES, *ATTENTION)
    for key in constants:
        if key not in words:
            one_of(key, words, f"group in {name}")
        nonnegative(constants[key], f"{name}[{key}]")


def _constant(constants: Mapping[str, float], name: str, group: str, role: str) -> float:
    narrowest = group
    if group == "QKVU":
        narrowest = read_name(name).attention_part or group
    for key in (narrowest, group, role):
        if key in constants:
            return constants[key]
    return 1.0
