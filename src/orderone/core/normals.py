"""Standard normal numbers in the namespace, on the device and of the dtype of an array, from seeds that do not overlap.

Block k of seed s has a stream of its own, so that work can be cut into blocks without changing what is drawn in each.
"""

from typing import Any

import array_api_compat
import numpy as np

from orderone.core.given import Array


class Normals:
    def __init__(self, like: Array, seed: int, block: int = 0):
        self._xp = array_api_compat.array_namespace(like)
        self._dtype, self._device = like.dtype, array_api_compat.device(like)
        stream = np.random.SeedSequence(seed, spawn_key=(block,))
        if array_api_compat.is_torch_array(like):
            state = int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1))  # torch's seeds are signed
            self._torch: Any = self._xp.Generator(device=self._device).manual_seed(state)
        else:
            self._torch, self._numpy = None, np.random.Generator(np.random.PCG64(stream))

    def __call__(self, *shape: int) -> Array:
        if self._torch is None:
            return self._numpy.standard_normal(shape, dtype=self._dtype)
        return self._xp.randn(shape, generator=self._torch, dtype=self._dtype, device=self._device)
