"""One training step: how large the update of a weight is, and how it lines up with activations.

**Size.** The update is dW_l = Theta(n^{-e_l}), with

    SGD         e = c + g        dW = C n^{-c} W',  RMS(W') = n^{-g}          S0 (12)
    Adam, sign  e = c            dW = C n^{-c} sign(W')                       S0 (12)
    Adafactor   e = c + b        dW = C n^{-c} RMS(W) sign(W')                S0 (12)
    Muon        e = c + 1/2      dW = C n^{-c} U V^T,  W' = U S V^T           derived below

Erratum S0.4: wherever the paper's conditions (14), (19)-(22) write c, they mean e.

**Muon.** Take gradients of full rank, as batches larger than the width give them. U V^T has
spectral norm 1 and Frobenius norm sqrt(min(rows, columns)). Its entries are then of size
sqrt(min / (rows * columns)), which is n^{-1/2} for n x n (hidden), n x V (embedding) and V x n
(readout) alike: e = c + 1/2. The spectral norm also bounds the alignment of a hidden update.
|U V^T h| <= |h| says n^alpha n^{-1/2} RMS(h) <= RMS(h), so alpha, u <= 1/2 whatever the data do.
Hence a_h + c_h >= 0: a hidden rate that does not depend on width in SP and muP. (A batch of order
one gives hidden gradients of rank of order one. Entries are then n^{-1} and alpha can be 1: another
dW, but the same dW h and the same largest rate.) At the readout V is fixed and the same bound,
|U V^T h| <= |h| = n^{1/2} RMS(h), still allows alpha = 1. Vectors are not matrices; Muon leaves
them to Adam.

**Gauge.** A shift a + theta, b - theta leaves n^{-a} W alone; the update n^{-a} dW stays if a + e
does. With e = c + gradient * g + weight * b, and g moving along with a, that is

    c - (1 + gradient - weight) theta

The factor is 2 for SGD, 1 for Adam and Muon, 0 for Adafactor (erratum S0.3; the paper prints 1 for
all).

**Alignment.** How strongly weights, updates and activations line up:

    RMS(W dh)  = n^omega RMS(W)  RMS(dh)      S0 (15)
    RMS(dW h)  = n^alpha RMS(dW) RMS(h)       S0 (16)
    RMS(dW dh) = n^u     RMS(dW) RMS(dh)      S0 (17)

A sum of n terms is n^{1/2} times one term when the terms are independent and n times one term when
they share a sign, hence 1/2 and 1. An embedding reads one-hot inputs, a sum of one term: it has no
alignment.

    full     alpha = u = 1, omega = 1/2: the assumption behind S0 Table 1
    no       everything 1/2
    worst    as full, and omega = 1 at the readout: the worst case, which muP assumes, and what
             training tokens really do

The readout's omega is .95-.98 from the first step on (erratum S0.5), because h'_{L+1} = W^T h'
aligns the next change of h_{L+1} with the rows of W.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, TypeAlias

from orderone.core.errors import one_of
from orderone.core.exact import HALF, ONE, ZERO, exact
from orderone.core.frozen import FrozenDict
from orderone.core.inputs import Exact, Name, UserInput
from orderone.core.roles import ROLES, Role

# --- size of an update ------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateLaw:
    """e = c + gradient * g + weight * b + (1/2 where the update is spectral)."""

    gradient: int = 0
    weight: int = 0
    spectral: bool = False

    @property
    def gauge_weight(self) -> int:
        """c falls by this many theta when a rises by theta."""
        return 1 + self.gradient - self.weight

    def offset(self, role: str, b: Fraction, g: Fraction) -> Fraction:
        """Return e - c."""
        spectral_norm = HALF if self.spectral and role != Role.VECTOR else ZERO
        return self.gradient * g + self.weight * b + spectral_norm

    def reach(self, role: str, alignment: Fraction) -> Fraction:
        """Return the alignment that an update can have: bounded where its spectral norm is."""
        if self.spectral and role == Role.HIDDEN:
            return min(alignment, HALF)
        return alignment


_SIGN = UpdateLaw()
OPTIMIZERS: dict[str, UpdateLaw] = {
    "sgd": UpdateLaw(gradient=1),
    "adam": _SIGN,
    "adamw": _SIGN,
    "sign": _SIGN,
    "adafactor": UpdateLaw(weight=1),
    "muon": UpdateLaw(spectral=True),
}


def update_law(optimizer: Name) -> UpdateLaw:
    """Return the law of an optimizer by its name."""
    return OPTIMIZERS[one_of(optimizer, OPTIMIZERS, "optimizer")]


# --- alignment --------------------------------------------------------------------------------

ALIGNED_ROLES = (Role.HIDDEN, Role.READOUT)
KINDS = ("omega", "alpha", "u")

PerRole: TypeAlias = Exact | Mapping[str, Exact]
PerRoleInput: TypeAlias = Annotated[PerRole | None, UserInput]


@dataclass(frozen=True, init=False)
class Alignment:
    """omega, alpha and u for `hidden` and `readout`.

    Each is a number for both roles, or a mapping. What is left out is as in `full`.
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
        raise ValueError(
            f"{name}: expected an alignment exponent between 0 and 1 (S0 (15)-(17)), got {exponent}"
        )
    return exponent


PRESETS: dict[str, Alignment] = {
    "full": Alignment("full"),
    "no": Alignment("no", omega=HALF, alpha=HALF, u=HALF),
    "worst": Alignment("worst", omega={Role.READOUT: ONE}),
}


def read_alignment(alignment: AlignmentInput) -> Alignment:
    """Return an `Alignment` from any of its forms.

    These are a preset by name, omega/alpha/u -> number or {role: number}, and
    role -> {omega/alpha/u: number}.
    """
    if isinstance(alignment, Alignment):
        return alignment
    if isinstance(alignment, str):
        name = {"none": "no"}.get(alignment.lower(), alignment)
        return PRESETS[one_of(name, PRESETS, "alignment")]
    if not isinstance(alignment, Mapping):
        raise ValueError(
            f"alignment: expected {', '.join(PRESETS)} or a mapping with {', '.join(KINDS)}; got"
            f" {alignment!r}"
        )
    by_kind = alignment
    if alignment and set(alignment) <= set(ROLES):
        by_kind = _transposed(alignment)
    exponents: dict[str, PerRole] = {}
    for kind, value in by_kind.items():
        exponents[one_of(kind, KINDS, "alignment exponent")] = value
    for kind, value in exponents.items():
        if value is None:
            exact(None, kind)  # raises: None stands for a default only in `Alignment` itself
    return Alignment("given", **exponents)


def _transposed(by_role: Mapping[str, PerRole]) -> dict[str, PerRole]:
    """Turn role -> {kind: number} into kind -> {role: number}."""
    by_kind: dict[str, dict[str, Exact]] = {}
    for role, row in by_role.items():
        if not isinstance(row, Mapping):
            raise ValueError(
                f"alignment[{role}]: expected a mapping with {', '.join(KINDS)}; got {row!r}"
            )
        for kind, value in row.items():
            by_kind.setdefault(kind, {})[role] = value
    return dict(by_kind)
