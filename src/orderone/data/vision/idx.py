"""The idx format of MNIST.

0 0 8    two zeros, 8 for bytes
axes     their number in one byte
sizes    of the axes, four bytes each, big-endian
bytes
"""

import gzip
import struct
from pathlib import Path

import torch
from torch import Tensor

from orderone.core.errors import InputError


def read_idx(path: Path) -> Tensor:
    """Return the bytes of a file in its shape; a .gz file is unpacked first."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        message = f"{path}: expected an idx file of bytes; it starts with {raw[:4].hex()!r}"
        raise InputError(message, "damaged-file")
    axes = raw[3]
    if len(raw) >= 4 + 4 * axes:
        sizes = struct.unpack_from(f">{axes}I", raw, 4)
    else:
        sizes = ()
    number = len(raw) - 4 - 4 * axes
    if not sizes or torch.Size(sizes).numel() != number:
        message = f"{path}: expected {sizes} bytes after the header, got {number}"
        raise InputError(message, "damaged-file")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=4 + 4 * axes).view(sizes)
