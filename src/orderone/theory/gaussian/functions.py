"""Functions of one variable, on numpy arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Values: TypeAlias = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Square:
    """Function f^2, compared by value, so that caches recognise it."""

    f: Values
    even: bool  # whether f^2 is known to be an even function

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.f(x) ** 2
