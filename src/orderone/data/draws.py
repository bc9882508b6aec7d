"""Counter-based random numbers: each is a hash of (seed, step, stream, index).

A number can be computed without drawing those before it.

    key     = mix(mix(mix(seed) + step) + stream)
    draw_i  = mix(key + (i + 1) g)
    g       = 2^64 / golden ratio

`mix` is the finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection of 64 bits; the draws
of one key are the outputs of that generator. The arithmetic uses whole numbers only, so that the
numbers are the same on every device, for one seed or for many.
"""

from collections.abc import Sequence
from math import pi, prod
from zlib import crc32

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ALL = (1 << 64) - 1
_FEW = (1 << 24) - 1


class Draws:
    """Independent random numbers for every seed.

    Each method returns a tensor (seeds, *shape). Streams with different names are independent.
    """

    keys: list[int]  # one for each seed
    device: torch.device | str | None

    def __init__(self, seeds: Sequence[int], step: int, device: torch.device | str | None = None):
        self.keys = [_mix(_mix(seed) + step) for seed in seeds]
        self.device = device

    def bits(self, stream: str, *shape: int) -> Tensor:
        """Draw whole numbers from -2^63 to 2^63 - 1."""
        places = torch.arange(prod(shape), device=self.device)
        return self._at(self._keys(stream)[:, None], places).view(-1, *shape)

    def uniform(self, stream: str, *shape: int) -> Tensor:
        """Draw multiples of 2^-24 in [0, 1), float32."""
        return (self.bits(stream, *shape) >> 40 & _FEW).float() * 2**-24

    def normal(self, stream: str, *shape: int) -> Tensor:
        """Draw standard normal numbers, float32."""
        return _normal(self.bits(stream, *shape))

    def normal_at(self, stream: str, member: Tensor, place: Tensor) -> Tensor:
        """Return `normal(stream, n)[member, place]`; both tensors have the same shape."""
        return _normal(self._at(self._keys(stream)[member], place))

    def below(self, limit: int | Tensor, stream: str, *shape: int) -> Tensor:
        """Draw whole numbers from 0 to limit - 1.

        With 53 random bits the bias is negligible for any limit below 2^40.
        """
        bits = self.bits(stream, *shape) >> 11 & (1 << 53) - 1
        return (bits.double() * 2**-53 * limit).long()

    def _keys(self, stream: str) -> Tensor:
        number = crc32(stream.encode())
        keys = [_signed(_mix(key + number)) for key in self.keys]
        return torch.tensor(keys, device=self.device)

    def _at(self, keys: Tensor, places: Tensor) -> Tensor:
        return _mixed(keys + (places + 1) * _signed(_GOLDEN))


def _normal(bits: Tensor) -> Tensor:
    """Return Box-Muller draws, sqrt(-2 log u) cos(2 pi v) with u in (0, 1], both from one draw."""
    u = 1 - (bits >> 40 & _FEW).float() * 2**-24
    v = (bits >> 16 & _FEW).float() * 2**-24
    return (-2 * u.log()).sqrt() * (2 * pi * v).cos()


def _mix(x: int) -> int:
    x &= _ALL
    x = (x ^ x >> 30) * _FIRST & _ALL
    x = (x ^ x >> 27) * _SECOND & _ALL
    return x ^ x >> 31


def _mixed(x: Tensor) -> Tensor:
    """Apply `_mix` to a tensor: products wrap around; `_shifted` drops the sign."""
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return x >> by & (1 << 64 - by) - 1


def _signed(x: int) -> int:
    if x >> 63:
        return x - (1 << 64)
    return x
