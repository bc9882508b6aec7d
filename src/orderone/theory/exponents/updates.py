"""One training step: the size of weight updates, and their alignment with activations.

**Size.** The update is dW_l = Theta(n^{-e_l}), with

    SGD         e = c + g        dW = C n^{-c} W',  RMS(W') = n^{-g}          S0 (12)
    Adam, sign  e = c            dW = C n^{-c} sign(W')                       S0 (12)
    Adafactor   e = c + b        dW = C n^{-c} RMS(W) sign(W')                S0 (12)
    Muon        e = c + 1/2      dW = C n^{-c} U V^T,  W' = U S V^T           derived below

Erratum S0.4: c in the paper's conditions (14), (19)-(22) means e.

**Muon.** Assume gradients of full rank, as for batches larger than the width. U V^T has
spectral norm 1 and Frobenius norm sqrt(min(rows, columns)). Its entries are then of size
sqrt(min / (rows * columns)), which is n^{-1/2} for n x n (hidden), n x V (embedding) and V x n
(readout) alike: e = c + 1/2. The spectral norm also bounds the alignment of a hidden update.
|U V^T h| <= |h| means n^alpha n^{-1/2} RMS(h) <= RMS(h), so alpha, u <= 1/2 for any data.
Hence a_h + c_h >= 0: a hidden rate that does not depend on width in SP and muP. (A batch of order
one gives hidden gradients of rank of order one. Entries are then n^{-1} and alpha can be 1: another
dW, but the same dW h and the same largest rate.) At the readout V is fixed and the same bound,
|U V^T h| <= |h| = n^{1/2} RMS(h), still allows alpha = 1. Vectors are not matrices; Adam updates
them.

**Gauge.** A shift a + theta, b - theta does not change n^{-a} W; the update n^{-a} dW is unchanged
if a + e is. With e = c + gradient * g + weight * b, where g changes with a, the new c is

    c - (1 + gradient - weight) theta

The factor is 2 for SGD, 1 for Adam and Muon, 0 for Adafactor (erratum S0.3; the paper prints 1 for
all).

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
from orderone.core.exact import HALF, ONE, ZERO, exact
from orderone.core.frozen import FrozenDict
from orderone.core.inputs import Exact, UserInput
from orderone.core.roles import ROLES, Role

# --- size of an update ------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateLaw:
    """How the size of an update depends on the gradient, the weights and the width.

    The update of a tensor is dW = Theta(n^{-e}) with

        e = c + gradient * g + weight * b + (1/2 if spectral, for matrices)

    where n^{-c} is the learning rate, n^{-g} the size of the gradient's entries and n^{-b} the
    size of the weights at initialization.

    Attributes:
        gradient: Power of the gradient's size that an update follows, a whole number or a fraction:
            if all gradients are multiplied by k, updates are multiplied by k^gradient. It is 0 if
            entries are normalized (Adam, Lion), and 1 for SGD.
        weight: Power of the size of the weights that an update follows: 1 if steps are relative to
            the norm of the weights (Adafactor, LAMB), otherwise 0.
        spectral: Whether updates are orthogonalized, so that all their singular values have the
            same size (Muon). Entries of a full-rank update are then smaller by n^{-1/2}.
    """

    gradient: Annotated[Fraction | int, UserInput] = 0
    weight: Annotated[Fraction | int, UserInput] = 0
    spectral: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradient", exact(self.gradient, "gradient"))
        object.__setattr__(self, "weight", exact(self.weight, "weight"))

    @property
    def gauge_weight(self) -> Fraction | int:
        """Return k: c becomes c - k theta when a becomes a + theta."""
        return 1 + self.gradient - self.weight

    def offset(self, role: str, b: Fraction, g: Fraction) -> Fraction:
        """Return e - c."""
        spectral_norm = HALF if self.spectral and role != Role.VECTOR else ZERO
        return self.gradient * g + self.weight * b + spectral_norm

    def reach(self, role: str, alignment: Fraction) -> Fraction:
        """Return the largest alignment of an update, bounded by 1/2 if it is spectral."""
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


# the name of an optimizer, or a law that no known optimizer has
LawInput: TypeAlias = Annotated[str | UpdateLaw, UserInput]


def update_law(optimizer: LawInput) -> UpdateLaw:
    """Return the update law of the optimizer with this name; a law is returned as it is."""
    if isinstance(optimizer, UpdateLaw):
        return optimizer
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
