"""CPU time of the convolutions of a stack: grouped, as vmap computes them, or one per member.

    OMP_NUM_THREADS=1 python benchmarks/stacked_convolutions.py

Forward and backward pass of a 3 x 3 convolution. `entries` are those of the input of one member.
The table explains `LARGE_INPUT` of `orderone.training.stacked.large_inputs`.
"""

import time
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from orderone.training.stacked.large_inputs import LARGE_INPUT

REPEATS = 5


class Case(NamedTuple):
    """Sizes of a convolution."""

    channels: int
    batch: int
    pixels: int
    members: int

    @property
    def entries(self) -> int:
        return self.batch * self.channels * self.pixels**2


def main() -> None:
    torch.set_num_threads(1)
    cases = [Case(*sizes) for sizes in product((3, 4, 8, 12, 16, 32), (2, 8, 32), (8, 16), (4, 16))]
    print(f"torch {torch.__version__}; separate convolutions from {LARGE_INPUT} entries on\n")
    print("| entries | channels | batch | pixels | members | grouped ms | separate ms | ratio |")
    print("| --- " * 8 + "|")
    for case in sorted(cases, key=lambda case: case.entries):
        together, separate = (1e3 * seconds for seconds in measured(case))
        cells = [case.entries, *case, f"{together:.2f}", f"{separate:.2f}"]
        print("| " + " | ".join(map(str, cells)) + f" | {together / separate:.2f} |", flush=True)


def measured(case: Case) -> tuple[float, float]:
    """Return the seconds of the grouped convolution, and of separate ones."""
    c, b, s, k = case
    weights = torch.randn(k, c, c, 3, 3, requires_grad=True)
    inputs = torch.randn(k, b, c, s, s, requires_grad=True)

    def grouped() -> Tensor:
        x = inputs.transpose(0, 1).reshape(b, k * c, s, s)
        out = functional.conv2d(x, weights.reshape(k * c, c, 3, 3), padding=1, groups=k)
        return out.reshape(b, k, c, s, s).transpose(0, 1)

    def separate() -> Tensor:
        rows = zip(inputs.unbind(), weights.unbind(), strict=True)
        return torch.stack([functional.conv2d(x, w, padding=1) for x, w in rows])

    def seconds(forward: Callable[[], Tensor]) -> float:
        times: list[float] = []
        for _ in range(REPEATS):
            begin = time.thread_time()
            torch.autograd.grad(forward().sum(), (weights, inputs))
            times.append(time.thread_time() - begin)
        return min(times)

    return seconds(grouped), seconds(separate)


if __name__ == "__main__":
    main()
