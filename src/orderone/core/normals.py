"""Standard normal random numbers, from seeds whose streams do not overlap.

Each block of a seed has a separate stream, so work can be cut into blocks without changing the
numbers of each block. Antithetic numbers come in pairs x, -x along the last axis: the mean of a
function that is nearly linear in them varies less.
"""

import array_api_compat
import numpy as np

from orderone.core.inputs import Array


class Normals:
    """Draw arrays of a given shape in the library, dtype and device of the array `like`."""

    def __init__(self, like: Array, seed: int, block: int = 0, antithetic: bool = False) -> None:
        self._xp = array_api_compat.array_namespace(like)
        self._antithetic = antithetic
        self._dtype = like.dtype
        self._device = array_api_compat.device(like)
        stream = np.random.SeedSequence(seed, spawn_key=(block,))
        if array_api_compat.is_torch_array(like):
            # Seeds of torch are signed: drop one bit.
            state = int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1))
            self._torch = self._xp.Generator(device=self._device).manual_seed(state)
        else:
            self._torch = None
            self._numpy = np.random.Generator(np.random.PCG64(stream))

    def __call__(self, *shape: int) -> Array:
        """Return the next numbers of the stream, as an array of this shape."""
        if not self._antithetic:
            return self._draw(*shape)
        *leading, count = shape
        half = self._draw(*leading, (count + 1) // 2)
        pairs = self._xp.stack([half, -half], axis=-1)
        return self._xp.reshape(pairs, (*leading, -1))[..., :count]

    def _draw(self, *shape: int) -> Array:
        if self._torch is None:
            return self._numpy.standard_normal(shape, dtype=self._dtype)
        return self._xp.randn(shape, generator=self._torch, dtype=self._dtype, device=self._device)
