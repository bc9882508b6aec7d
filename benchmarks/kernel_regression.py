"""Regression with the kernel of a wide ReLU network on many inputs: time, memory and accuracy.

    python benchmarks/kernel_regression.py [inputs] [folder]

The kernel, (inputs, inputs) in single precision, is written to a file in the folder, by strips
(14.4 GB for 60,000 inputs, removed afterwards). Conjugate gradients read its upper triangle in
strips. The pages of the file should fit into memory: otherwise every step reads it from the disk.
Memory is that of the process without the pages of the file. The accuracy is compared with that of
the function that made the targets, and, for 2,000 of the inputs, with a Cholesky factor.
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

FEATURES, NOISE, TEST, SMALL = 8, 0.1, 500, 2000


def network() -> kernels.Sequential:
    dense = kernels.Dense(2.0, 0.1)
    return kernels.Sequential(dense, kernels.Activation("relu"), kernels.Dense(1.0))


def data(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, noisy targets, and targets without noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((count, FEATURES)).astype("float32")
    clean = np.sin(X[:, 0]) * X[:, 1] + np.abs(X[:, 2])
    return X, (clean + NOISE * rng.standard_normal(count)).astype("float32"), clean


def anonymous() -> float:
    """Return the memory of this process in MiB, without the pages of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status: expected a line RssAnon, got none; use Linux")


def solve(count: int, folder: str) -> None:
    X, y, clean = data(count + TEST)
    net = network()
    path = Path(folder) / "kernel.npy"
    before = anonymous()
    peak = before
    start = time.process_time()
    matrix = kernels.write(net, X[:count], nngp=path).nngp
    assert matrix is not None
    wrote = time.process_time() - start

    def tile(rows: slice, columns: slice) -> np.ndarray:
        nonlocal peak
        peak = max(peak, anonymous())
        return matrix[rows, columns]

    start = time.process_time()
    wall = time.perf_counter()
    found = KernelRegression(Tiles(count, tile), y[:count], NOISE**2, tolerance=1e-3)
    seconds = time.process_time() - start
    wall = time.perf_counter() - wall
    cross = net(kernels.inputs(np.concatenate([X[count:], X[:SMALL]]))).nngp[:TEST, TEST:]
    small = net(kernels.inputs(X[:SMALL].astype("float64"))).nngp
    by_factor = KernelRegression(small, y[:SMALL].astype("float64"), NOISE**2, method="cholesky")
    by_steps = KernelRegression(small, y[:SMALL].astype("float64"), NOISE**2, method="cg")
    same = (by_factor.coefficients - by_steps.coefficients).norm() / by_factor.coefficients.norm()
    of_small = by_factor.predict(cross.astype("float64")).numpy().ravel()
    test = np.concatenate(
        [_cross(net, X[count:], X[i : i + SMALL]) for i in range(0, count, SMALL)], 1
    )
    of_all = found.predict(torch.as_tensor(test)).numpy().ravel()
    errors = [float(np.sqrt(np.mean((p - clean[count:]) ** 2))) for p in (of_all, of_small)]
    print("| inputs | kernel, CPU s | solving, CPU s | wall s | steps | MiB | test error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(
        f"| {count} | {wrote:.0f} | {seconds:.0f} | {wall:.0f} | {found.steps} |"
        f" {peak - before:.0f} | {errors[0]:.4f} |"
    )
    print(f"with {SMALL} inputs: test error {errors[1]:.4f}; cg and cholesky differ by {same:.0e}")


def _cross(net: kernels.Sequential, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return net(kernels.inputs(np.concatenate([new, old]))).nngp[: len(new), len(new) :]


def main(count: int, folder: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        solve(count, temporary)


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:] if each.isdigit()]
    folders = [each for each in sys.argv[1:] if not each.isdigit()]
    main(numbers[0] if numbers else 60_000, folders[0] if folders else None)
