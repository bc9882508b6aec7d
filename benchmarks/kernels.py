"""NNGP and NTK of a deep network, compared with neural-tangents' `stax.repeat` under jit: time,
accuracy and memory.

    python benchmarks/kernels.py [the Python that has neural-tangents] [repetitions]

`make bench-peers` installs the peer. Both run on one core, in turns; the peer runs in a separate
process and is compiled before. Times are medians of CPU seconds. Inputs are Gaussian, so that no
two have the same length. Both times include the kernel of the inputs and both final matrices. The
error is that of the diagonal of the NTK, compared with double precision.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import numpy as np
from peers.memory import Mark

from orderone.theory import kernels

PEER = Path(__file__).parent / "peers" / "neural_tangents_kernels.py"
DEPTH, POINTS, FEATURES = 50, 512, 64
CASES = [(name, w, b) for name in ("relu", "erf") for w, b in ((2.0, 0.0), (1.7, 0.1))]


def network(activation: str, weight_var: float, bias_var: float) -> kernels.Sequential:
    dense = kernels.Dense(weight_var, bias_var)
    return kernels.Sequential(
        kernels.repeat(kernels.Sequential(dense, kernels.Activation(activation)), DEPTH), dense
    )


def ours(net: kernels.Sequential, X: np.ndarray) -> tuple[float, np.ndarray]:
    """Return CPU seconds and the diagonal of the NTK."""
    start = time.process_time()
    k = net(kernels.inputs(X))
    _, ntk = k.nngp, k.ntk
    return time.process_time() - start, ntk.diagonal()


class Peer:
    """neural-tangents in a separate process, or nothing if it is not installed."""

    def __init__(self, python: str | None, dtype: str):
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = (
            None
            if python is None
            else subprocess.Popen(
                [python, str(PEER), dtype],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=quiet,
            )
        )

    def run(self, *case: object) -> tuple[float, list[float]]:
        if not self.process:
            return float("nan"), []
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(case), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(
                f"the peer stopped; run it alone: echo '{json.dumps(case)}' | python {PEER} float64"
            )
        took, diagonal = json.loads(answer)
        return took, diagonal

    def close(self) -> None:
        if self.process and self.process.stdin:
            self.process.stdin.close()
            self.process.wait()


def compare(case: tuple[str, float, float], dtype: str, peer: Peer, repetitions: int) -> None:
    net, X = network(*case), np.random.default_rng(0).normal(size=(POINTS, FEATURES)).astype(dtype)
    exact = ours(net, X.astype(float))[1]
    diagonals = [ours(net, X)[1], peer.run(*case, DEPTH, POINTS, FEATURES)[1]]
    times = [
        (ours(net, X)[0], peer.run(*case, DEPTH, POINTS, FEATURES)[0]) for _ in range(repetitions)
    ]
    mine, theirs = (1e3 * statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(other / one for one, other in times)
    errors = [f"{np.max(np.abs(np.array(d) / exact - 1)):.0e}" if len(d) else "" for d in diagonals]
    errors[0] = errors[0] if dtype == "float32" else "(taken as exact)"
    name = f"{case[0]}, weight_var {case[1]}, bias_var {case[2]}"
    print(
        f"| {name} | {dtype} | {mine:.0f} | {theirs:.0f} | {ratio:.2f} | {errors[0]} |"
        f" {errors[1]} |",
        flush=True,
    )


def memory(points: int, dtype: str) -> None:
    """Print the memory growth of this process after its imports."""
    X, net = (
        np.random.default_rng(0).normal(size=(points, FEATURES)).astype(dtype),
        network("relu", 1.7, 0.1),
    )
    mark = Mark()
    ours(net, X)
    grown = mark.growth()
    print(
        f"| {points} | {dtype} | {grown:.0f} |"
        f" {points**2 * np.dtype(dtype).itemsize / 2**20:.0f} |",
        flush=True,
    )


def main(python: str | None = None, repetitions: str = "15") -> None:
    print(f"{DEPTH} layers, {POINTS} inputs\n")
    print(
        "| network | precision | orderone, ms | neural-tangents, ms | ratio | error of our NTK"
        " diagonal | error of theirs |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for dtype in ("float32", "float64"):
        peer = Peer(python, dtype)
        for case in CASES:
            compare(case, dtype, peer, int(repetitions))
        peer.close()
    print(
        "\n| inputs | precision | memory growth, MiB | one matrix, MiB |\n| --- | --- | --- |"
        " --- |",
        flush=True,
    )
    for points, dtype in ((512, "float64"), (4096, "float32")):
        subprocess.run([sys.executable, __file__, "--memory", str(points), dtype], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        memory(int(sys.argv[2]), sys.argv[3])
    else:
        main(*sys.argv[1:])
