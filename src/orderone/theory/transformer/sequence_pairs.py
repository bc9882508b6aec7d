"""Pairs of sequences of a problem, and sums over both triangles of their averages."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from orderone.theory.transformer.moments import FORWARD, Averages
from orderone.theory.transformer.problem import Problem


class SequencePair(NamedTuple):
    """Two sequences, their views, and the kernels between their keys."""

    a: int
    b: int
    rows: slice
    columns: slice
    F: np.ndarray  # kernel of the values
    along: Mapping[str, np.ndarray]  # tangent kernels of the values
    of_keys: Mapping[str, np.ndarray]  # the same of the keys, with their kernel as FORWARD


def sequence_pairs(problem: Problem) -> Iterator[SequencePair]:
    """Yield every pair of sequences once, with kernels in single precision."""
    keys = problem.keys
    within = problem.views.within
    for a in range(keys.sequences):
        for b in range(a, keys.sequences):
            part = np.s_[keys.of(a), keys.of(b)]
            F = problem.values[part].astype(np.float32)
            of_keys = {FORWARD: F}
            if problem.values is not problem.F:
                of_keys = {FORWARD: problem.F[part].astype(np.float32)}
            along = {}
            for name, (theta, of_values) in problem.along.items():
                along[name] = of_values[part].astype(np.float32)
                same = theta is of_values
                of_keys[name] = along[name] if same else theta[part].astype(np.float32)
            yield SequencePair(a, b, within(a), within(b), F, along, of_keys)


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
