"""Standard normal numbers in the namespace, on the device and of the dtype of an array, from seeds
that do not overlap.

Block k of seed s has a stream of its own, so that work can be cut into blocks without changing what
is drawn in each. Antithetic numbers come in pairs x, -x along the last axis: means of functions
that are nearly linear in them vary less.
"""

from typing import Any

import array_api_compat
import numpy as np

from orderone.core.inputs import Array


class Normals:
    def __init__(self, like: Array, seed: int, block: int = 0, antithetic: bool = False):
        self._xp = array_api_compat.array_namespace(like)
        self._antithetic = antithetic
        self._dtype = like.dtype
        self._device = array_api_compat.device(like)
        stream = np.random.SeedSequence(seed, spawn_key=(block,))
        if array_api_compat.is_torch_array(like):
            state = int(
                stream.generate_state(1, np.uint64)[0] >> np.uint64(1)
            )  # torch's seeds are signed
            self._torch: Any = self._xp.Generator(device=self._device).manual_seed(state)
        else:
            self._torch = None
            self._numpy = np.random.Generator(np.random.PCG64(stream))

    def __call__(self, *shape: int) -> Array:
        if self._antithetic:
            return self._pairs(*shape)
        return self._draw(*shape)

    def _pairs(self, *shape: int) -> Array:
        half = self._draw(*shape[:-1], (shape[-1] + 1) // 2)
        return self._xp.reshape(self._xp.stack([half, -half], axis=-1), (*shape[:-1], -1))[
            ..., : shape[-1]
        ]

    def _draw(self, *shape: int) -> Array:
        if self._torch is None:
            return self._numpy.standard_normal(shape, dtype=self._dtype)
        return self._xp.randn(shape, generator=self._torch, dtype=self._dtype, device=self._device)
