"""How strongly weights, updates and activations line up.

    RMS(W dh)  = n^omega RMS(W)  RMS(dh)      S0 (15)
    RMS(dW h)  = n^alpha RMS(dW) RMS(h)       S0 (16)
    RMS(dW dh) = n^u     RMS(dW) RMS(dh)      S0 (17)

A sum of n terms is n^{1/2} times one term when the terms are independent and n times one term when they share a sign,
hence 1/2 and 1. An embedding reads one-hot inputs, a sum of one term: it has no alignment.

`full`    alpha = u = 1, omega = 1/2: the assumption behind S0 Table 1.
`no`      everything 1/2.
`worst`   as `full`, and omega = 1 at the readout. That is the worst case muP assumes, and what training tokens really do:
          the readout's omega is .95-.98 from the first step on (errata S0.5), because h'_{L+1} = W^T h' aligns the next
          change of h_{L+1} with the rows of W.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from orderone.core.errors import one_of
from orderone.core.exact import Exact, exact
from orderone.theory.exponents.parameterization import ROLES

HALF, ONE = Fraction(1, 2), Fraction(1)
ALIGNED_ROLES = ("hidden", "readout")
KINDS = ("omega", "alpha", "u")


@dataclass(frozen=True)
class Alignment:
    name: str
    omega: dict[str, Fraction]
    alpha: dict[str, Fraction]
    u: dict[str, Fraction]

    @staticmethod
    def of(name: str, omega_hidden: Fraction, omega_readout: Fraction, updates: Fraction) -> "Alignment":
        omega = {"hidden": omega_hidden, "readout": omega_readout}
        return Alignment(name, omega, alpha=dict.fromkeys(omega, updates), u=dict.fromkeys(omega, updates))


PRESETS = {
    "full": Alignment.of("full", HALF, HALF, ONE),
    "no": Alignment.of("no", HALF, HALF, HALF),
    "worst": Alignment.of("worst", HALF, ONE, ONE),
}

GivenAlignment: TypeAlias = str | Alignment | Mapping[str, Exact | Mapping[str, Exact]]


def read_alignment(given: GivenAlignment) -> Alignment:
    """A preset by name, or omega/alpha/u -> number or {role: number}, or role -> {omega/alpha/u: number}.

    What a mapping leaves out is as in `full`.
    """
    if isinstance(given, Alignment):
        return given
    if isinstance(given, str):
        return PRESETS[one_of({"none": "no"}.get(given, given), PRESETS, "alignment")]
    if not isinstance(given, Mapping):
        raise ValueError(
            f"alignment: expected {', '.join(PRESETS)} or a mapping with {', '.join(KINDS)}; got {given!r}"
        )
    if given and set(given) <= set(ROLES):
        given = _transposed(given)
    for kind in given:
        one_of(kind, KINDS, "alignment exponent")
    return Alignment("given", **{kind: _per_role(given.get(kind, {}), kind) for kind in KINDS})


def _transposed(given: Mapping[str, Exact | Mapping[str, Exact]]) -> dict[str, dict[str, Exact]]:
    """role -> {kind: number} as kind -> {role: number}."""
    result: dict[str, dict[str, Exact]] = {}
    for role, row in given.items():
        if not isinstance(row, Mapping):
            raise ValueError(f"alignment[{role}]: expected a mapping with {', '.join(KINDS)}; got {row!r}")
        for kind, value in row.items():
            result.setdefault(kind, {})[role] = value
    return result


def _per_role(given: Exact | Mapping[str, Exact], kind: str) -> dict[str, Fraction]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(ALIGNED_ROLES, _unit_interval(given, kind))
    for role in given:  # values for embedding and vector are read and void: those roles have no alignment
        one_of(role, ROLES, f"role in {kind}")
    default = getattr(PRESETS["full"], kind)
    return {role: _unit_interval(given.get(role, default[role]), f"{kind}[{role}]") for role in ALIGNED_ROLES}


def _unit_interval(value: Exact, name: str) -> Fraction:
    result = exact(value, name)
    if not 0 <= result <= 1:
        raise ValueError(f"{name}: expected an alignment exponent between 0 and 1 (S0 (15)-(17)), got {result}")
    return result
