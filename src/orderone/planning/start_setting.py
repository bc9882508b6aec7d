"""The option `init` of a plan: the start of the base, for all tensors or some.

    init="fan-in"                                                     a start for all tensors
    init={"default": "fan-in", "embedding": 1.0, "readout": "zero"}   by name, pattern or role

A value is the name of a start (`rules.starts`), "zero", or a number, the size itself. Keys are
those of `settings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import UserInput
from orderone.core.roles import Role
from orderone.planning.settings import DEFAULT, PerTensor, nonnegative, sorted_keys
from orderone.rules import starts
from orderone.rules.starts import STARTS

StartValue: TypeAlias = str | float
InitInput: TypeAlias = Annotated[str | float | Mapping[str, str | float], UserInput]

INIT = "init"
KEEP = "keep"
ZERO_VALUE = "zero"


@dataclass(frozen=True)
class StartSetting(PerTensor[StartValue]):
    """The option `init`: the name of a start, "zero" or a size, for all or some of the tensors."""

    @staticmethod
    def read(value: object) -> "StartSetting":
        """Return the validated option; None is the start of the base."""
        if value is None:
            return KEPT
        if not isinstance(value, Mapping):
            return StartSetting(INIT, _value_for_all(value, INIT))
        values = sorted_keys(INIT, value, (), _read_value)
        default: StartValue = KEEP
        if DEFAULT in values[DEFAULT]:
            default = _value_for_all(values[DEFAULT][DEFAULT], f"{INIT}[{DEFAULT!r}]")
        for role in (Role.HIDDEN, Role.EMBEDDING):
            if values["roles"].get(role) == ZERO_VALUE:
                raise InputError(
                    f"init: {role} tensors of zero pass no signal, so nothing could be trained; use"
                    " a pattern of single tensors, or init='zero-residual'",
                    argument=INIT,
                )
        return StartSetting(INIT, default, {}, values["roles"], values["patterns"])

    @property
    def is_unset(self) -> bool:
        """Whether the user passed nothing: the start is that of the base."""
        return self.is_uniform and self.default is None

    @property
    def keeps_all(self) -> bool:
        """Whether all tensors keep the values of the model's own code."""
        return self.is_uniform and self.default in (None, KEEP)


KEPT = StartSetting(INIT)  # the start of the base


def _read_value(value: object, place: str) -> StartValue:
    if isinstance(value, str):
        name = value.lower()
        if name == ZERO_VALUE or name in STARTS:
            return name
        one_of(value, (*starts.names(), ZERO_VALUE), INIT)
    number = nonnegative(value, place, INIT)
    if number == 0:
        return ZERO_VALUE
    return number


def _value_for_all(value: object, place: str) -> StartValue:
    read = _read_value(value, place)
    if read == ZERO_VALUE:
        raise InputError(
            f"{place}: a model of zeros passes no signal, so nothing could be trained; expected one"
            f" of {', '.join(starts.names())}, a size, or a mapping such as"
            ' {"default": "fan-in", "readout": "zero"}',
            argument=INIT,
        )
    return read
