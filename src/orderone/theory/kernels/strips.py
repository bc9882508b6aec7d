"""The pairs of a symmetric matrix, each once, in strips of about equal size.

1 1 1 1 1 1
  1 1 1 1 1              rows from the diagonal to the right, fewer where they are long;
    2 2 2 2              what a strip has below the diagonal is found twice
      2 2 2
        3 3
          3
"""

from collections.abc import Iterator
from typing import NamedTuple

from orderone.core.inputs import Array


class Strip(NamedTuple):
    rows: slice
    columns: slice  # starts where the rows do

    def read(self, matrix: Array) -> Array:
        """(rows, columns) of a matrix over pairs of points."""
        return matrix[self.rows, self.columns]

    def write(self, matrix: Array, values: Array) -> None:
        """`values` into both triangles of `matrix`."""
        matrix[self.columns, self.rows] = values.T
        matrix[self.rows, self.columns] = values
        square = matrix[self.rows, self.rows]
        matrix[self.rows, self.rows] = (
            square + square.T
        ) / 2  # symmetric to the last bit, however they were found


def strips(points: int, pairs: int) -> Iterator[Strip]:
    """All pairs of `points` points, about `pairs` at a time."""
    first = 0
    while first < points:
        left = points - first
        rows = min(
            left, max(1, min(pairs // left, max(left // 4, 32)))
        )  # a flat strip has little below the diagonal
        yield Strip(slice(first, first + rows), slice(first, points))
        first += rows
