"""Pairs of sequences of a problem, and sums over both triangles of their averages."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from orderone.theory.transformer.moments import Averages
from orderone.theory.transformer.problem import Problem


class SequencePair(NamedTuple):
    """Two sequences, their views, and the kernels between their keys."""

    a: int
    b: int
    rows: slice
    columns: slice
    F: np.ndarray
    along: Mapping[str, np.ndarray]


def sequence_pairs(problem: Problem) -> Iterator[SequencePair]:
    """Yield every pair of sequences once, with kernels in single precision."""
    keys = problem.keys
    within = problem.views.within
    for a in range(keys.sequences):
        for b in range(a, keys.sequences):
            part = np.s_[keys.of(a), keys.of(b)]
            along = {name: M[part].astype(np.float32) for name, M in problem.along.items()}
            F = problem.F[part].astype(np.float32)
            yield SequencePair(a, b, within(a), within(b), F, along)


def add(
    result: Averages,
    place: tuple[slice, int],
    rows: slice,
    columns: slice,
    parts: Averages,
    share: float,
) -> None:
    """Add `parts` to both triangles; a pair of a sequence with itself is symmetric."""
    for key, block in parts.items():
        target = result[key][place]
        mirror = share * block.swapaxes(1, 2)
        if rows == columns:
            target[:, rows, columns] += (share * block + mirror) / 2
        else:
            target[:, rows, columns] += share * block
            target[:, columns, rows] += mirror
