"""How strongly weights, updates and activations line up.

    RMS(W dh)  = n^omega RMS(W)  RMS(dh)      S0 (15)
    RMS(dW h)  = n^alpha RMS(dW) RMS(h)       S0 (16)
    RMS(dW dh) = n^u     RMS(dW) RMS(dh)      S0 (17)

A sum of n terms is n^{1/2} times one term when the terms are independent and n times one term when
they share a sign, hence 1/2 and 1. An embedding reads one-hot inputs, a sum of one term: it has no
alignment.

`full`    alpha = u = 1, omega = 1/2: the assumption behind S0 Table 1.
`no`      everything 1/2.
`worst`   as `full`, and omega = 1 at the readout: the worst case, which muP assumes, and what
          training tokens really do. The readout's omega is .95-.98 from the first step on (erratum
          S0.5), because h'_{L+1} = W^T h' aligns the next change of h_{L+1} with the rows of W.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from orderone.core.errors import one_of
from orderone.core.exact import HALF, ONE, exact
from orderone.core.frozen import FrozenDict
from orderone.core.inputs import Exact
from orderone.theory.exponents.parameterization import ROLES

ALIGNED_ROLES = ("hidden", "readout")
KINDS = ("omega", "alpha", "u")


if TYPE_CHECKING:
    GivenPerRole: TypeAlias = Exact | Mapping[str, Exact] | None
else:
    GivenPerRole = Any  # read below


@dataclass(frozen=True, init=False)
class Alignment:
    """omega, alpha and u for `hidden` and `readout`: a number for both, or a mapping; what is left
    out is as in `full`."""

    name: str
    omega: dict[str, Fraction]
    alpha: dict[str, Fraction]
    u: dict[str, Fraction]

    def __init__(
        self,
        name: str,
        omega: GivenPerRole = None,
        alpha: GivenPerRole = None,
        u: GivenPerRole = None,
    ):
        object.__setattr__(self, "name", name)
        for kind, given in zip(KINDS, (omega, alpha, u), strict=True):
            object.__setattr__(self, kind, FrozenDict(_per_role(given, kind)))


def _per_role(given: GivenPerRole, kind: str) -> dict[str, Fraction]:
    default = HALF if kind == "omega" else ONE
    if given is None:
        return dict.fromkeys(ALIGNED_ROLES, default)
    if not isinstance(given, Mapping):
        return {role: _unit_interval(given, kind) for role in ALIGNED_ROLES}
    values = {
        one_of(role, ROLES, f"role in {kind}"): _unit_interval(x, f"{kind}[{role}]")
        for role, x in given.items()
    }
    return {
        role: values.get(role, default) for role in ALIGNED_ROLES
    }  # embedding and vector have no alignment


def _unit_interval(value: Exact, name: str) -> Fraction:
    result = exact(value, name)
    if not 0 <= result <= 1:
        raise ValueError(
            f"{name}: expected an alignment exponent between 0 and 1 (S0 (15)-(17)), got {result}"
        )
    return result


PRESETS = {
    "full": Alignment("full"),
    "no": Alignment("no", omega=HALF, alpha=HALF, u=HALF),
    "worst": Alignment("worst", omega={"readout": ONE}),
}

if TYPE_CHECKING:
    GivenAlignment: TypeAlias = str | Alignment | Mapping[str, Exact | Mapping[str, Exact]]
else:
    GivenAlignment = Any  # read below


def read_alignment(given: GivenAlignment) -> Alignment:
    """A preset by name, or omega/alpha/u -> number or {role: number}, or role -> {omega/alpha/u:
    number}."""
    if isinstance(given, Alignment):
        return given
    if isinstance(given, str):
        return PRESETS[one_of({"none": "no"}.get(given.lower(), given), PRESETS, "alignment")]
    if not isinstance(given, Mapping):
        raise ValueError(
            f"alignment: expected {', '.join(PRESETS)} or a mapping with {', '.join(KINDS)}; got"
            f" {given!r}"
        )
    if given and set(given) <= set(ROLES):
        given = _transposed(given)
    read = {one_of(kind, KINDS, "alignment exponent"): value for kind, value in given.items()}
    return Alignment(
        "given",
        **{kind: exact(None, kind) if value is None else value for kind, value in read.items()},
    )


def _transposed(given: Mapping[str, Exact | Mapping[str, Exact]]) -> dict[str, Any]:
    """role -> {kind: number} as kind -> {role: number}."""
    result: dict[str, Any] = {}
    for role, row in given.items():
        if not isinstance(row, Mapping):
            raise ValueError(
                f"alignment[{role}]: expected a mapping with {', '.join(KINDS)}; got {row!r}"
            )
        for kind, value in row.items():
            result.setdefault(kind, {})[role] = value
    return result
