"""One training step: the size of weight updates, and their alignment with activations.

**Size.** The update is dW_l = Theta(n^{-e_l}), with

    SGD         e = c + g        dW = C n^{-c} W',  RMS(W') = n^{-g}          S0 (12)
    Adam, sign  e = c            dW = C n^{-c} sign(W')                       S0 (12)
    Adafactor   e = c + b        dW = C n^{-c} RMS(W) sign(W')                S0 (12)
    Muon        e = c + 1/2      dW = C n^{-c} U V^T,  W' = U S V^T
    spectral    e = c + 1/2 + gradient (g - k) - d

Erratum S0.4: c in the paper's conditions (14), (19)-(22) means e.

The derivations of the last two are in `laws`, those for Shampoo, SOAP and Dion in `matrix_laws`.

**Gauge.** A shift a + theta, b - theta does not change n^{-a} W; the update n^{-a} dW is unchanged
if a + e is. With e = c + gradient * g + weight * b, where g changes with a, the new c is

    c - (1 + gradient - weight) theta

The factor is 2 for SGD, 1 for Adam and Muon, 0 for Adafactor (erratum S0.3; the paper prints 1,
which is right for Adam).

**Alignment.** Exponents of the products of weights, updates and activations:

    RMS(W dh)  = n^omega RMS(W)  RMS(dh)      S0 (15)
    RMS(dW h)  = n^alpha RMS(dW) RMS(h)       S0 (16)
    RMS(dW dh) = n^u     RMS(dW) RMS(dh)      S0 (17)

A sum of n terms is n^{1/2} times one term when the terms are independent and n times one term when
they share a sign, hence 1/2 and 1. An embedding reads one-hot inputs, a sum of one term: it has no
alignment.

    full     alpha = u = 1, omega = 1/2: the assumption behind S0 Table 1
    no       everything 1/2
    worst    as full, and omega = 1 at the readout: the worst case, which muP assumes, and which
             training tokens really show

The readout's omega is .95-.98 from the first step on (erratum S0.5), because h'_{L+1} = W^T h'
aligns the next change of h_{L+1} with the rows of W.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, one_of
from orderone.core.exact import HALF, ONE, exact
from orderone.core.frozen import FrozenDict
from orderone.core.inputs import Exact, UserInput
from orderone.core.roles import ROLES, Role
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.matrix_laws import DION, VARIANTS, shampoo, soap

# --- size of an update ------------------------------------------------------------------------


_SIGN = UpdateLaw()
_ORTHOGONAL = UpdateLaw(spectral=True)
OPTIMIZERS: dict[str, UpdateLaw] = {
    "sgd": UpdateLaw(gradient=1),
    "adam": _SIGN,
    "adamw": _SIGN,
    "sign": _SIGN,
    "adafactor": UpdateLaw(weight=1),
    "muon": _ORTHOGONAL,
    # a second, slow average of gradients is added; entries are still of size lr
    "ademamix": _SIGN,
    # gradients are taken at an average of the weights; the steps are Adam's
    "schedule-free": _SIGN,
    # states are rounded to 8 bits, with a relative error that does not depend on the width
    "adam8bit": _SIGN,
    # the rows of U V^T get equal norms, and the whole gets the norm that it had
    "normuon": _ORTHOGONAL,
    "dion": DION,
    "soap": soap(),
    "shampoo": shampoo(),
}


# the name of an optimizer, or a law that no known optimizer has
LawInput: TypeAlias = Annotated[str | UpdateLaw, UserInput]


def has_law(name: str) -> bool:
    """Return whether this is the name of an update law."""
    return name.lower() in OPTIMIZERS or name.lower() in VARIANTS


def update_law(optimizer: LawInput) -> UpdateLaw:
    """Return the update law of the optimizer with this name; a law is returned as it is.

    Variants of SOAP and Shampoo have names such as "shampoo-1/2-in-blocked" (`matrix_laws`).
    """
    if isinstance(optimizer, UpdateLaw):
        return optimizer
    if isinstance(optimizer, str) and optimizer.lower() in VARIANTS:
        return VARIANTS[optimizer.lower()]
    return OPTIMIZERS[one_of(optimizer, OPTIMIZERS, "optimizer")]


# --- alignment --------------------------------------------------------------------------------

ALIGNED_ROLES = (Role.HIDDEN, Role.READOUT)
KINDS = ("omega", "alpha", "u")

PerRole: TypeAlias = Exact | Mapping[str, Exact]
PerRoleInput: TypeAlias = Annotated[PerRole | None, UserInput]


@dataclass(frozen=True, init=False)
class Alignment:
    """omega, alpha and u for `hidden` and `readout`.

    Each is a number for both roles, or a mapping. Missing values are those of `full`.
    """

    name: str
    omega: dict[str, Fraction]
    alpha: dict[str, Fraction]
    u: dict[str, Fraction]

    def __init__(
        self,
        name: str,
        omega: PerRoleInput = None,
        alpha: PerRoleInput = None,
        u: PerRoleInput = None,
    ):
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "omega", _per_role(omega, "omega", default=HALF))
        object.__setattr__(self, "alpha", _per_role(alpha, "alpha", default=ONE))
        object.__setattr__(self, "u", _per_role(u, "u", default=ONE))


AlignmentInput: TypeAlias = Annotated[str | Alignment | Mapping[str, PerRole], UserInput]


def _per_role(values: PerRoleInput, kind: str, default: Fraction) -> FrozenDict[str, Fraction]:
    if values is None:
        return FrozenDict(dict.fromkeys(ALIGNED_ROLES, default))
    if not isinstance(values, Mapping):
        return FrozenDict(dict.fromkeys(ALIGNED_ROLES, _unit_interval(values, kind)))
    exponents = {}
    for role, value in values.items():
        known_role = one_of(role, ROLES, f"role in {kind}")
        exponents[known_role] = _unit_interval(value, f"{kind}[{role}]")
    # embedding and vector have no alignment
    return FrozenDict({role: exponents.get(role, default) for role in ALIGNED_ROLES})


def _unit_interval(value: Exact, name: str) -> Fraction:
    exponent = exact(value, name)
    if not 0 <= exponent <= 1:
        raise InputError(
            f"{name}: expected an alignment exponent between 0 and 1, got {exponent}",
            argument=name,
        )
    return exponent


PRESETS: dict[str, Alignment] = {
    "full": Alignment("full"),
    "no": Alignment("no", omega=HALF, alpha=HALF, u=HALF),
    "worst": Alignment("worst", omega={Role.READOUT: ONE}),
}


def read_alignment(alignment: AlignmentInput) -> Alignment:
    """Return an `Alignment` from any of its forms.

    The forms are the name of a preset, a mapping omega/alpha/u -> number or {role: number}, and a
    mapping role -> {omega/alpha/u: number}.
    """
    if isinstance(alignment, Alignment):
        return alignment
    if isinstance(alignment, str):
        name = {"none": "no"}.get(alignment.lower(), alignment)
        return PRESETS[one_of(name, PRESETS, "alignment")]
    if not isinstance(alignment, Mapping):
        raise InputError(
            f"alignment: expected {', '.join(PRESETS)} or a mapping with {', '.join(KINDS)}; got"
            f" {alignment!r}",
            argument="alignment",
        )
    by_kind = alignment
    if alignment and set(alignment) <= set(ROLES):
        by_kind = _transposed(alignment)
    exponents: dict[str, PerRole] = {}
    for kind, value in by_kind.items():
        exponents[one_of(kind, KINDS, "alignment exponent")] = value
    for kind, value in exponents.items():
        if value is None:
            exact(None, kind)  # raises: None means a default only in `Alignment`
    return Alignment("custom", **exponents)


def _transposed(by_role: Mapping[str, PerRole]) -> dict[str, PerRole]:
    """Turn role -> {kind: number} into kind -> {role: number}."""
    by_kind: dict[str, dict[str, Exact]] = {}
    for role, row in by_role.items():
        if not isinstance(row, Mapping):
            raise InputError(
                f"alignment[{role}]: expected a mapping with {', '.join(KINDS)}; got {row!r}"
            )
        for kind, value in row.items():
            by_kind.setdefault(kind, {})[role] = value
    return dict(by_kind)
