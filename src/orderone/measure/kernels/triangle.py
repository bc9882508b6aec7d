"""The upper triangle of a kernel, in strips: in memory, in a file, or computed when it is needed.

A strip has rows from the diagonal to the right. A product with vectors reads each strip once, for
itself and for its transpose, the part below. Computed tiles may be kept: the first pass writes the
strips one after another into a file, of 2 n^2 bytes in single precision, and later ones read it in
the same order.
"""

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.core.inputs import UserInput
from orderone.measure.kernels.matrices import Tiles

KernelInput: TypeAlias = Annotated[Tensor | np.ndarray | Tiles, UserInput]
STRIP_NUMBERS = 2**19  # of a strip, which is read twice: small enough for the cache
GPU_STRIP_NUMBERS = 2**24  # the same on a GPU, which needs larger blocks


class UpperTriangle:
    """Parts of a symmetric matrix, from its upper triangle."""

    def __init__(self, kernel: KernelInput) -> None:
        self.size: int = kernel.size if isinstance(kernel, Tiles) else kernel.shape[0]
        self._kernel = kernel
        self._file: Path | None = None
        self._written = False
        on_gpu = self.part(slice(0, 1), slice(0, 1)).is_cuda
        self._strip = GPU_STRIP_NUMBERS if on_gpu else STRIP_NUMBERS
        if isinstance(kernel, Tiles) and kernel.keep is not None:
            self._file = Path(kernel.keep)
            if self._file.exists():
                raise InputError(
                    f"kernel: the file {self._file} exists; choose a new one for keep, or delete"
                    " it",
                    argument="kernel",
                )

    def part(self, rows: slice, columns: slice) -> Tensor:
        """Return a part on or above the diagonal, as a floating tensor."""
        if isinstance(self._kernel, Tiles):
            part = self._kernel.tile(rows, columns)
        else:
            part = self._kernel[rows, columns]
        if isinstance(part, np.ndarray):
            if min(part.strides, default=0) < 0:  # torch has no negative strides
                part = np.ascontiguousarray(part)
            part = torch.as_tensor(part)
        if not part.is_floating_point():
            part = part.double()
        return part

    def row(self, index: int) -> Tensor:
        """Return a row of the matrix."""
        this = slice(index, index + 1)
        left = self.part(slice(0, index), this)[:, 0]
        right = self.part(this, slice(index, self.size))[0]
        return torch.cat([left, right])

    def diagonal(self) -> Tensor:
        """Return the diagonal in double precision."""
        parts: list[Tensor] = []
        for first in range(0, self.size, 256):
            some = slice(first, min(self.size, first + 256))
            parts.append(self.part(some, some).diagonal().double())
        return torch.cat(parts)

    def times(self, vectors: Tensor) -> Tensor:
        """Return the product of the matrix with vectors, (size, vectors)."""
        product = torch.zeros_like(vectors)
        for rows, strip in self._strips():
            strip = strip.to(vectors)
            count = rows.stop - rows.start
            square = strip[:, :count].triu()
            right = strip[:, count:]
            product[rows] += square @ vectors[rows] + square.triu(1).T @ vectors[rows]
            product[rows] += right @ vectors[rows.stop :]
            product[rows.stop :] += right.T @ vectors[rows]
        return product

    def _strips(self) -> Iterator[tuple[slice, Tensor]]:
        if self._file is None:
            yield from self._computed()
        elif self._written:
            yield from self._read(self._file)
        else:
            yield from self._write(self._file)

    def _rows(self) -> Iterator[slice]:
        """Yield the rows of strips of about equal size."""
        first = 0
        while first < self.size:
            step = max(1, self._strip // (self.size - first))
            yield slice(first, min(self.size, first + step))
            first += step

    def _computed(self) -> Iterator[tuple[slice, Tensor]]:
        for rows in self._rows():
            yield rows, self.part(rows, slice(rows.start, self.size))

    def _write(self, path: Path) -> Iterator[tuple[slice, Tensor]]:
        with path.open("wb") as file:
            for rows, strip in self._computed():
                strip.contiguous().cpu().numpy().tofile(file)
                yield rows, strip
        self._written = True

    def _read(self, path: Path) -> Iterator[tuple[slice, Tensor]]:
        like = self.part(slice(0, 1), slice(0, 1)).cpu().numpy()
        largest = max(self._strip, self.size)
        buffer = np.empty(largest, like.dtype)
        with path.open("rb", buffering=0) as file:
            for rows in self._rows():
                shape = (rows.stop - rows.start, self.size - rows.start)
                strip = buffer[: shape[0] * shape[1]]
                _fill(file, strip.data.cast("B"))
                yield rows, torch.from_numpy(strip).reshape(shape)


def _fill(file: FileIO, part: memoryview) -> None:
    """Read until `part` is full."""
    done = 0
    while done < len(part):
        count = file.readinto(part[done:])
        if not count:
            raise InputError(
                "kernel: the file that was passed as keep= is shorter than the kernel; do not"
                " change it while it is in use",
                argument="kernel",
            )
        done += count
