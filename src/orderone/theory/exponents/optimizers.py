"""What one step does to a weight: dW_l = Theta(n^{-e_l}).

    SGD         e = c + g        dW = C n^{-c} W',  RMS(W') = n^{-g}          S0 (12)
    Adam, sign  e = c            dW = C n^{-c} sign(W')                       S0 (12)
    Adafactor   e = c + b        dW = C n^{-c} RMS(W) sign(W')                S0 (12)
    Muon        e = c + 1/2      dW = C n^{-c} U V^T,  W' = U S V^T           derived below

Erratum S0.4: wherever the paper's conditions (14), (19)-(22) write c, they mean e.

**Muon.** Take gradients of full rank, as batches larger than the width give them. U V^T has
spectral norm 1 and Frobenius norm sqrt(min(rows, columns)). Its entries are then of size sqrt(min /
(rows * columns)), which is n^{-1/2} for n x n (hidden), n x V (embedding) and V x n (readout)
alike: e = c + 1/2. The spectral norm also bounds the alignment of a hidden update. |U V^T h| <= |h|
says n^alpha n^{-1/2} RMS(h) <= RMS(h), so alpha, u <= 1/2 whatever the data do. Hence a_h + c_h >=
0: a hidden rate that does not depend on width in SP and muP. (A batch of order one gives hidden
gradients of rank of order one. Entries are then n^{-1} and alpha can be 1: another dW, but the same
dW h and the same largest rate.) At the readout V is fixed and the same bound, |U V^T h| <= |h| =
n^{1/2} RMS(h), still allows alpha = 1. Vectors are not matrices; Muon leaves them to Adam.

**Gauge.** A shift a + theta, b - theta leaves n^{-a} W alone; the update n^{-a} dW stays if a + e
does. With e = c + gradient * g + weight * b, and g moving along with a, that is c - (1 + gradient -
weight) theta: 2 for SGD, 1 for Adam and Muon, 0 for Adafactor (erratum S0.3; the paper prints 1 for
all).
"""

from dataclasses import dataclass
from fractions import Fraction

from orderone.core.errors import one_of
from orderone.core.exact import HALF, ZERO
from orderone.core.inputs import Name


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
        """e - c."""
        norm = HALF if self.spectral and role != "vector" else ZERO
        return self.gradient * g + self.weight * b + norm

    def reach(self, role: str, alignment: Fraction) -> Fraction:
        """The alignment an update can have: bounded where its spectral norm is."""
        if self.spectral and role == "hidden":
            return min(alignment, HALF)
        return alignment


_SIGN = UpdateLaw()
OPTIMIZERS = {
    "sgd": UpdateLaw(gradient=1),
    "adam": _SIGN,
    "adamw": _SIGN,
    "sign": _SIGN,
    "adafactor": UpdateLaw(weight=1),
    "muon": UpdateLaw(spectral=True),
}


def update_law(optimizer: Name) -> UpdateLaw:
    return OPTIMIZERS[one_of(optimizer, OPTIMIZERS, "optimizer")]
