"""Order of the rows of a token kernel: by sequence, then by token.

G0 is (T, T) for one sequence, (S, T, S, T) for S sequences of T tokens, or (S T, S T) with
`tokens=T`. Inside the library, it is always an (S T, S T) matrix of doubles; results for the user
have the shape, library and precision of G0.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from orderone.core.arrays import as_numpy, like
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Array, ArrayLike, Count
from orderone.theory.kernels.validation import check_semidefinite, floating, square


@dataclass(frozen=True, eq=False)
class Tokens:
    """Sequences of a kernel, and the form in which the user passed it."""

    sequences: int
    length: int  # tokens of a sequence
    four: bool = False  # whether the user passed (S, T, S, T)
    template: tuple[Array, ModuleType] | None = None  # user's array and its namespace

    @property
    def points(self) -> int:
        return self.sequences * self.length

    @property
    def position(self) -> np.ndarray:
        """Return the position of each point in its sequence, (points,)."""
        return np.tile(np.arange(self.length), self.sequences)

    def of(self, sequence: int) -> slice:
        """Return the points of one sequence."""
        return slice(sequence * self.length, (sequence + 1) * self.length)

    def longer(self) -> "Tokens":
        """Return tokens with one more in each sequence."""
        return Tokens(self.sequences, self.length + 1, self.four, self.template)

    def in_user_shape(self, matrix: np.ndarray) -> Array:
        """Return (points, points) or (sequences, sequences) in the user's form of kernels."""
        if self.four and len(matrix) == self.points:
            matrix = matrix.reshape(self.sequences, self.length, self.sequences, self.length)
        if self.template is None:
            return matrix.copy()
        return like(matrix, *self.template)


def read(G0: ArrayLike, tokens: Count | None = None, name: str = "G0") -> tuple[np.ndarray, Tokens]:
    """Return the kernel as a matrix of doubles, and its tokens.

    Raise an InputError if it cannot be a covariance.
    """
    xp, values = floating(G0, name)
    matrix = square(values, name)
    check_semidefinite(matrix, name)
    length = _length(values, len(matrix), tokens, name)
    return as_numpy(matrix), Tokens(len(matrix) // length, length, values.ndim == 4, (values, xp))


def _length(values: Array, points: int, tokens: Count | None, name: str) -> int:
    known = values.shape[1] if values.ndim == 4 else None
    if tokens is None:
        length = known or points
    else:
        length = count(tokens, "tokens")
    if points % length or (known is not None and length != known):
        raise InputError(
            "tokens: expected the number of tokens of a sequence,"
            f" {known or f'a divisor of {points}'}, got {length}; or omit tokens and pass {name} as"
            " (sequences, tokens, sequences, tokens)",
            argument="tokens",
        )
    return length
