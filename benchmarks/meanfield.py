"""A phase diagram of tanh, 50 x 50, compared with iterated kernels of neural-tangents, and with
scipy's quad and dblquad.

    python benchmarks/meanfield.py [the Python that has neural-tangents] [repetitions]

`make bench-peers` installs the peer. One core, medians of CPU seconds, orderone and the peer in
turns. orderone computes q*, c*, chi_1, chi_2, xi_1, xi_2: "cold" without cached moments of the
activation, "warm" with them. The peer computes q*, c* and chi_1 after LAYERS layers, and is
compiled before. scipy solves a few points one by one, and its time is scaled up.

Errors are those of c* and of chi_1 and chi_2, over points of the diagram and points 1e-3 from the
critical line, compared with trapezoidal sums in the plane, which converge exponentially: the
residual of the equation for c*, divided by its slope.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import numpy as np
from scipy import integrate, optimize

from orderone.theory import MeanField, critical_weight_var, phase_diagram
from orderone.theory.activations import numeric
from orderone.theory.meanfield import lengths

PEER = Path(__file__).parent / "peers" / "neural_tangents_phases.py"
WEIGHTS, BIASES = np.linspace(0.5, 4, 50), np.linspace(0.005, 0.3, 50)
LAYERS = 100
POINT_BY_POINT = [(1.0, 0.1), (2.0, 0.05), (3.5, 0.2)]


def ours() -> None:
    diagram = phase_diagram("tanh", WEIGHTS, BIASES)
    for quantity in diagram:
        diagram[quantity]


def cold() -> None:
    lengths._moments.cache_clear()
    numeric._smooth_order.cache_clear()
    ours()


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def scipy_point(weight_var: float, bias_var: float) -> tuple[float, float, float]:
    """Compute q*, c* and chi_1 directly from their definitions."""

    def density(*z: float) -> float:
        return float(np.exp(-sum(x * x for x in z) / 2) / np.sqrt(2 * np.pi) ** len(z))

    def line(f: Callable[[float], float], q: float) -> float:
        return integrate.quad(lambda z: f(np.sqrt(q) * z) * density(z), -9, 9)[0]

    def plane(q: float, c: float) -> float:
        root = np.sqrt(max(1 - c * c, 0))

        def f(v, u):
            return (
                np.tanh(np.sqrt(q) * u) * np.tanh(np.sqrt(q) * (c * u + root * v)) * density(u, v)
            )

        return integrate.dblquad(f, -9, 9, -9, 9, epsabs=1e-9, epsrel=1e-9)[0]

    q = _root(lambda q: weight_var * line(lambda x: np.tanh(x) ** 2, q) + bias_var - q, 1e-6, 10)
    chi1 = weight_var * line(lambda x: np.cosh(x) ** -4, q)
    if chi1 <= 1:
        return q, 1.0, chi1
    c = _root(lambda c: (weight_var * plane(q, c) + bias_var) / q - c, 0, 1 - 1e-4)
    return q, c, chi1


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    return optimize.root_scalar(f, bracket=(low, high), xtol=1e-10).root


def errors() -> tuple[float, float]:
    """Return the errors of c*, and of chi_1 and chi_2."""
    near = [(critical_weight_var("tanh", b) + d, b) for b in BIASES[::7] for d in (-1e-3, 1e-3)]
    inside = [(w, b) for w in WEIGHTS[::9] for b in BIASES[::13]]
    z = np.arange(-9, 9.001, 0.075)
    weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * 0.075
    return tuple(
        np.max([_error(MeanField("tanh", w, b), z, weight) for w, b in near + inside], axis=0)
    )


def _error(network: MeanField, z: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    g, q, w = network.gap_star, network.q_star, network.weight_var
    x, y = (
        np.sqrt(q) * (np.sqrt(1 - g / 2) * z[:, None] + s * np.sqrt(g / 2) * z) for s in (1, -1)
    )
    mapped = w / q * (weight @ ((np.tanh(x) - np.tanh(y)) ** 2 / 2) @ weight)
    chi1, chi2 = (
        w * (np.cosh(np.sqrt(q) * z) ** -4 @ weight),
        w * (weight @ (np.cosh(x) * np.cosh(y)) ** -2.0 @ weight),
    )
    return abs(mapped - g) / abs(1 - chi2), max(abs(chi1 - network.chi1), abs(chi2 - network.chi2))


class Peer:
    """neural-tangents in a separate process."""

    def __init__(self, python: str):
        self.process = subprocess.Popen(
            [python, str(PEER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self) -> tuple[float, np.ndarray]:
        """Return CPU seconds and chi_1."""
        assert self.process.stdin
        assert self.process.stdout
        print(
            json.dumps([WEIGHTS.tolist(), BIASES.tolist(), LAYERS]),
            file=self.process.stdin,
            flush=True,
        )
        took, _, _, chi1 = json.loads(self.process.stdout.readline())
        return took, np.array(chi1)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def main(python: str | None = None, repetitions: str = "5") -> None:
    peer, rows = Peer(python) if python else None, []
    ours()
    for _ in range(int(repetitions)):
        rows.append((timed(cold), timed(ours), peer.run()[0] if peer else float("nan")))
    start, warm, theirs = (statistics.median(column) for column in zip(*rows, strict=True))
    by_hand = timed(lambda: [scipy_point(*point) for point in POINT_BY_POINT]) / len(POINT_BY_POINT)
    by_hand *= len(WEIGHTS) * len(BIASES)
    c_error, chi_error = errors()
    print(
        "| tanh, 50 x 50 | seconds | ratio to cold | error of c* | error of chi |\n| --- | --- |"
        " --- | --- | --- |"
    )
    print(f"| orderone, cold | {start:.3f} | 1 | {c_error:.0e} | {chi_error:.0e} |")
    print(f"| orderone, warm | {warm:.3f} | {warm / start:.2f} | | |")
    if peer:
        wrong = np.max(np.abs(peer.run()[1] / phase_diagram("tanh", WEIGHTS, BIASES)["chi1"] - 1))
        print(
            f"| neural-tangents, {LAYERS} layers | {theirs:.2f} | {theirs / start:.0f} | |"
            f" {wrong:.0e} of chi_1 |"
        )
        peer.close()
    print(f"| scipy, point by point | {by_hand:.0f} | {by_hand / start:.0f} | | |")


if __name__ == "__main__":
    main(*sys.argv[1:])
