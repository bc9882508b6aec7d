"""Update laws: how the size of one training step depends on gradient, weights and width.

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

**Spectral laws.** A matrix optimizer is described by the spectral norm of its update,

    |dW| = C n^{-c} |W'|^gradient fan_out^x fan_in^y

with x = y = 0 and gradient = 0 for Muon; `matrix_laws` derives the numbers of Shampoo, SOAP and
Dion. Gradients of one sample have rank one, so |W'| = n^{-g} sqrt(rows * columns) = n^{k - g}.
Here k = 1 for hidden matrices, and 1/2 for embedding and readout, of which only one dimension
grows. The dimensions contribute n^d: d = x + y for hidden matrices, x for the embedding, y for the
readout. The rest is as for Muon: entries are n^{-1/2} times the spectral norm if the update has
full rank, and dW h, which limits the rate, is the same for any rank. Hence

    e = c + 1/2 + gradient (g - k) - d

Two known laws are special cases for aligned updates: SGD (gradient = 1), and Adam (x = y = 1/2,
because a sign matrix of rank one has the norm sqrt(rows * columns)).

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from orderone.core.errors import InputError, switch
from orderone.core.exact import HALF, ONE, ZERO, exact
from orderone.core.inputs import UserInput
from orderone.core.roles import Role


@dataclass(frozen=True)
class UpdateLaw:
    """How the size of an update depends on the gradient, the weights and the width.

    The update of a tensor is dW = Theta(n^{-e}) with

        e = c + gradient * g + weight * b

    where n^{-c} is the learning rate, n^{-g} the size of the gradient's entries and n^{-b} the
    size of the weights at initialization. If the law is spectral, it is about norms instead of
    entries: the spectral norm of the update of a matrix is

        lr * |gradient|^gradient * fan_out^(power `fan_out`) * fan_in^(power `fan_in`)

    Attributes:
        gradient: Power of the gradient's size that an update follows, a whole number or a fraction:
            if all gradients are multiplied by k, updates are multiplied by k^gradient. It is 0 if
            entries are normalized (Adam, Lion), and 1 for SGD.
        weight: Power of the size of the weights that an update follows: 1 if steps are relative to
            the norm of the weights (Adafactor, LAMB), otherwise 0.
        spectral: Whether the law is about the spectral norm of updates: their singular values are
            those of the gradient to the power `gradient`, and all of one size if it is 0 (Muon).
        fan_out: Power of the fan-out in the spectral norm of an update; only for spectral laws.
        fan_in: Power of the fan-in in the spectral norm of an update; only for spectral laws.
    """

    gradient: Annotated[Fraction | int, UserInput] = 0
    weight: Annotated[Fraction | int, UserInput] = 0
    spectral: Annotated[bool, UserInput] = False
    fan_out: Annotated[Fraction | int, UserInput] = 0
    fan_in: Annotated[Fraction | int, UserInput] = 0

    def __post_init__(self) -> None:
        for name in ("gradient", "weight", "fan_out", "fan_in"):
            object.__setattr__(self, name, exact(getattr(self, name), name))
        object.__setattr__(self, "spectral", switch(self.spectral, "spectral"))
        for name in ("fan_out", "fan_in"):
            if getattr(self, name) and not self.spectral:
                raise InputError(
                    f"{name}: only spectral laws depend on the dimensions, and this law is not"
                    " spectral; pass spectral=True, or leave it out",
                    argument=name,
                )

    @property
    def gauge_weight(self) -> Fraction | int:
        """Return k: c becomes c - k theta when a becomes a + theta."""
        return 1 + self.gradient - self.weight

    def offset(self, role: str, b: Fraction, g: Fraction) -> Fraction:
        """Return e - c."""
        entries = self.gradient * g + self.weight * b
        if not self.spectral or role == Role.VECTOR:
            return entries
        dimensions = ZERO
        if role != Role.READOUT:
            dimensions += self.fan_out
        if role != Role.EMBEDDING:
            dimensions += self.fan_in
        gradient_norm = ONE if role == Role.HIDDEN else HALF  # over the size of its entries
        return entries + HALF - self.gradient * gradient_norm - dimensions

    def reach(self, role: str, alignment: Fraction) -> Fraction:
        """Return the largest alignment of an update, bounded by 1/2 if it is spectral."""
        if self.spectral and role == Role.HIDDEN:
            return min(alignment, HALF)
        return alignment
