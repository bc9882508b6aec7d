"""A rule from measurement: a and b of a known rule, and for c the largest rates that are stable
under the alignment of your own model, S0 (14) and (18)-(20).

Less alignment than a rule assumes means that its rates are too small at width, and more of it that
they are too large.
"""

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from orderone.core.inputs import Name
from orderone.rules.declare import derive
from orderone.theory.exponents import Parameterization, read_alignment
from orderone.theory.exponents.alignment import GivenAlignment


@runtime_checkable
class Measured(Protocol):
    """What `orderone.alignment` returns."""

    def as_alignment(self) -> GivenAlignment: ...


if TYPE_CHECKING:
    GivenMeasurement: TypeAlias = Measured | GivenAlignment
    GivenLike: TypeAlias = str | Parameterization
else:
    GivenMeasurement = GivenLike = Any  # read below


def from_alignment(
    alignment: GivenMeasurement,
    like: GivenLike = "mup",
    optimizer: Name = "adamw",
    name: Name | None = None,
) -> Parameterization:
    """The rule `like` with rates for a measured alignment: what `orderone.alignment` returns, or
    omega, alpha and u.

    Put to another optimizer, `plan` derives the rates again, for the same alignment.
    """
    from orderone.rules import get  # which imports this

    p = like if isinstance(like, Parameterization) else get(like, optimizer)
    found = read_alignment(
        alignment.as_alignment() if isinstance(alignment, Measured) else alignment
    )
    return derive(f"{p.name}-measured" if name is None else name, p.a, p.b, optimizer, found)
