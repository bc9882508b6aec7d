"""NNGP of 20,000 inputs, 20,000 x 20,000, strip by strip into an array: time and working memory.

    python benchmarks/large_kernel.py [inputs]

Working memory is the highest memory beyond that of the process before the call, which contains the
result: it is allocated and touched before. The goal is at most 1 GB.
"""

import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import numpy as np
from peers.memory import Mark

from orderone.theory import kernels

FEATURES, DEPTH = 64, 3


def main(count: int) -> None:
    dense = kernels.Dense(2.0, 0.1)
    block = kernels.Sequential(dense, kernels.Activation("relu"))
    net = kernels.Sequential(kernels.repeat(block, DEPTH), dense)
    X = np.random.default_rng(0).standard_normal((count, FEATURES)).astype("float32")
    kernels.write(net, X[:8], nngp=np.empty((8, 8), "float32"))  # imports and tables
    result = np.full((count, count), np.nan, "float32")
    mark = Mark()
    start = time.process_time()
    kernels.write(net, X, nngp=result)
    seconds = time.process_time() - start
    grown = mark.growth()
    rows = np.array([0, count // 3, count - 1])
    exact = net(kernels.inputs(X[rows].astype("float64"))).nngp
    error = np.abs(result[np.ix_(rows, rows)] / exact - 1).max()
    print("| kernel | CPU seconds | MiB beside the result | relative error |")
    print("| --- | --- | --- | --- |")
    print(f"| ReLU, {count} x {count}, depth {DEPTH} | {seconds:.1f} | {grown:.0f} | {error:.0e} |")


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:] if each.isdigit()]
    main(numbers[0] if numbers else 20_000)
