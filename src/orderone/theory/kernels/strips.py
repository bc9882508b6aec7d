"""Strips of about equal size that cover the pairs of a symmetric matrix once.

1 1 1 1 1 1
  1 1 1 1 1          rows from the diagonal to the right, fewer where they are long;
    2 2 2 2          entries of a strip below the diagonal are computed twice
      2 2 2
        3 3
          3
"""

from collections.abc import Iterator
from typing import NamedTuple

from orderone.core.inputs import Array


class Strip(NamedTuple):
    """Rows of a symmetric matrix, from the diagonal to the right."""

    rows: slice
    columns: slice  # starts where the rows do

    def read(self, matrix: Array) -> Array:
        """Return the strip of a matrix over pairs of points, (rows, columns)."""
        return matrix[self.rows, self.columns]

    def write(self, matrix: Array, values: Array) -> None:
        """Write `values` into both triangles of `matrix`."""
        matrix[self.columns, self.rows] = values.T
        matrix[self.rows, self.columns] = values
        square = matrix[self.rows, self.rows]
        # Make it symmetric to the last bit: both halves were computed separately.
        matrix[self.rows, self.rows] = (square + square.T) / 2


def strips(points: int, pairs: int) -> Iterator[Strip]:
    """Yield strips that cover all pairs of `points` points, about `pairs` pairs at a time."""
    first = 0
    while first < points:
        left = points - first
        flat = max(left // 4, 32)  # a flat strip has little below the diagonal
        rows = min(left, max(1, min(pairs // left, flat)))
        yield Strip(slice(first, first + rows), slice(first, points))
        first += rows
