"""Regression with the kernel of a wide ReLU network on many inputs: time, memory and accuracy.

    python benchmarks/kernel_regression.py [inputs ...] [folder]

The kernel is computed in tiles, in single precision. With a folder, the upper triangle is kept
there in a file (7.2 GB for 60,000 inputs, removed afterwards); without, every step computes it.
Memory is the peak of the process beside what it was before. Sizes after the first one show the
growth: the work is that of inputs^2 pairs per step, and inputs rank^2 for the preconditioner.
The accuracy is compared with that of the function that made the targets, and, for 2,000 of the
inputs, with a Cholesky factor.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import numpy as np
import torch

from orderone.measure.kernels import KernelRegression, Tiles
from orderone.theory import kernels

FEATURES, NOISE, TEST, SMALL, RANK = 8, 0.1, 500, 2000, 1024
NET = kernels.Sequential(kernels.Dense(2.0, 0.1), kernels.Activation("relu"), kernels.Dense(1.0))


def data(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, noisy targets, and targets without noise; the last ones are for tests."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count + TEST, FEATURES)).astype("float32")
    clean = np.sin(X[:, 0]) * X[:, 1] + np.abs(X[:, 2])
    noise = NOISE * rng.standard_normal(count + TEST)
    return X, (clean + noise).astype("float32"), clean


def peak_memory() -> float:
    """Return the largest memory of this process so far, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status: expected a line VmHWM, got none; use Linux")


def solve(count: int, folder: str | None) -> None:
    """Print a row of the table."""
    X, y, clean = data(count)
    tile = kernels.tiles(NET, X)
    before = peak_memory()
    wall = time.perf_counter()
    start = time.process_time()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        keep = None if folder is None else Path(temporary) / "kernel"
        tiles = Tiles(count, tile, keep)
        found = KernelRegression(tiles, y[:count], NOISE**2, rank=RANK, tolerance=1e-3)
        seconds = time.process_time() - start
        wall = time.perf_counter() - wall
    memory = peak_memory() - before
    cross = tile(slice(count, count + TEST), slice(0, count))
    mean = found.predict(torch.as_tensor(cross)).numpy().ravel()
    error = float(np.sqrt(np.mean((mean - clean[count:]) ** 2)))
    print(
        f"| {count} | {seconds:.1f} | {wall:.0f} | {found.steps} | {memory:.0f} | {error:.4f} |",
        flush=True,
    )


def compare_with_cholesky() -> None:
    X, y, _ = data(SMALL)
    kernel = NET(kernels.inputs(X[:SMALL].astype("float64"))).nngp
    targets = y[:SMALL].astype("float64")
    by_factor = KernelRegression(kernel, targets, NOISE**2, method="cholesky").coefficients
    by_steps = KernelRegression(kernel, targets, NOISE**2, method="cg").coefficients
    same = float((by_factor - by_steps).norm() / by_factor.norm())
    print(f"with {SMALL} inputs, cg and cholesky differ by {same:.0e}")


def main(counts: list[int], folder: str | None) -> None:
    print("| inputs | CPU s | wall s | steps | MiB | test error |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count in counts:
        solve(count, folder)
    compare_with_cholesky()


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:] if each.isdigit()]
    folders = [each for each in sys.argv[1:] if not each.isdigit()]
    main(numbers or [8000, 16_000, 60_000], folders[0] if folders else None)
