"""Numbers and arrays of several libraries as arguments of one call."""

import numpy as np
import pytest
import torch
from support.errors import refuses

from orderone.core.arrays import together


def test_scalars_of_numpy_follow_the_tensors_beside_them():
    _, x, y = together(x=torch.ones(3), y=np.float64(0.1))
    assert y.dtype == x.dtype == torch.float32
    assert float(y) == pytest.approx(0.1)


def test_arrays_of_several_libraries_are_refused():
    with refuses("invalid-argument", argument="x"):
        together(x=torch.ones(3), y=np.ones(3))
