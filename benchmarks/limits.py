"""The cost of sampling without weights and of SDE steps, and the validity of covariances.

    python benchmarks/limits.py            the tables below, a few minutes on one core
    python benchmarks/limits.py soak       a million random starts of the covariance SDE
    python benchmarks/limits.py cuda       2^16 networks of width and depth 1024 on the GPU

Ratios are those of medians of interleaved runs in this process, in CPU time. The peer of the
sampler is the network with weights, batched in single precision; only some of its layers and
networks are timed, and the time is scaled up. The peer of the SDE is torchsde, if it is installed,
with its fastest Brownian motion; its default takes a second.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import orderone as o1
from orderone.measure import fit_exponent
from orderone.theory import CovarianceSDE, UnshapedCorrelationSDE

V0 = np.array([[1.0, 0.3], [0.3, 1.0]])


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the CPU time of this process, which has one thread; other work hardly affects it."""
    start = clock()
    work()
    return clock() - start


def interleaved(times: int, **work: Callable[[], object]) -> dict[str, float]:
    runs = [{name: seconds(f) for name, f in work.items()} for _ in range(times)]
    return {name: statistics.median(run[name] for run in runs) for name in work}


def explicit(width: int, layers: int, batch: int) -> None:
    """Run layers of `batch` ReLU networks with weights on two inputs."""
    W, h = torch.empty(batch, width, width), torch.randn(batch, width, 2)
    for _ in range(layers):
        h = (W.normal_() @ h).relu_() * (2 / width) ** 0.5


def sampler(width: int = 150, samples: int = 8192) -> None:
    """Time equal parts of both in turn; print the time of the whole."""
    batch, layers, some = 64, 50, 1024
    found = interleaved(
        7,
        weights=lambda: explicit(width, layers, batch),
        without=lambda: o1.sample_network("relu", V0, width, width, some),
    )
    weights = found["weights"] * samples / batch * width / layers
    without = found["without"] * samples / some
    print(
        "| networks, n = d = 150, 2^13 samples, two inputs | seconds | ratio |\n| --- | --- | --- |"
    )
    print(
        f"| with weights | {weights:.1f} | 1 |\n| without weights | {without:.2f} |"
        f" {weights / without:.0f} |\n"
    )


def growth_with_width() -> None:
    widths = (128, 256, 512, 1024, 2048)
    runs = [
        [seconds(lambda n=n: o1.sample_network("relu", V0, n, 20, 4096)) for n in widths]
        for _ in range(3)
    ]
    best = np.median(runs, axis=0)
    print("| width | " + " | ".join(map(str, widths)) + " |\n| --- |" + " --- |" * len(widths))
    print("| seconds, 20 layers, 2^12 networks | " + " | ".join(f"{t:.2f}" for t in best) + " |")
    print(f"\ncost ~ n^{fit_exponent(widths, best, correction=False)}\n")


def scalar_sde() -> None:
    """Time Eq. (4.8) of S3 ("Differential Equation Scaling Limits ..."), 2^13 paths, 100 steps."""
    work = {"orderone": lambda: UnshapedCorrelationSDE().sample(0.3)}
    try:
        import torchsde  # type: ignore[import-not-found]
    except ImportError:
        print("torchsde is not installed: no ratio for the scalar SDE\n")
    else:

        class Unshaped(torch.nn.Module):
            noise_type, sde_type = "diagonal", "ito"

            def f(self, t: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
                return -2 * (1 - (1 - 2**0.5 / (3 * np.pi) * torch.exp(r / 2)) / (t + 1e-2))

            def g(self, t: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
                return torch.full_like(r, 8**0.5)

        def peer() -> object:
            noise = torchsde.BrownianInterval(0.0, 1.0, size=(8192, 1), dt=1e-2)
            return torchsde.sdeint(Unshaped(), start, times, dt=1e-2, method="euler", bm=noise)

        start, times = torch.full((8192, 1), np.log(0.7)), torch.tensor([0.0, 1.0])
        with torch.no_grad():
            found = interleaved(15, **work, torchsde=peer)
        print("| scalar SDE, 2^13 paths x 100 steps | ms | ratio |\n| --- | --- | --- |")
        for name, t in found.items():
            print(f"| {name} | {1e3 * t:.1f} | {found['torchsde'] / t:.1f} |")
        print()


def eight_inputs() -> None:
    X = np.random.default_rng(0).standard_normal((8, 16))
    V, sde = X @ X.T / 16, CovarianceSDE()
    found = interleaved(
        2,
        double=lambda: sde.sample(V, dt=1 / 200),
        single=lambda: sde.sample(V.astype(np.float32), dt=1 / 200),
    )
    print("| covariance SDE, 8 inputs, 2^13 paths x 200 steps | seconds |\n| --- | --- |")
    print(f"| float64 | {found['double']:.2f} |\n| float32 | {found['single']:.2f} |\n")


def starts(rng: np.random.Generator, m: int, number: int) -> np.ndarray:
    """Draw covariances of every rank and of very different scales, some with equal inputs."""
    X = rng.standard_normal((number, m, m)) * 10 ** rng.uniform(-3, 3, (number, m, 1))
    X *= np.arange(m) < rng.integers(1, m + 1, (number, 1, 1))  # rank
    near = rng.random((number, 1, 1)) < 0.3
    X[:, -1:] = np.where(
        near, X[:, :1] * (1 + 10 ** rng.uniform(-16, -3, (number, 1, 1))), X[:, -1:]
    )
    return X @ np.swapaxes(X, 1, 2) / m


def soak(number: int = 10**6, block: int = 20_000) -> None:
    rng, done, invalid, lowest, largest = np.random.default_rng(0), 0, 0, 0.0, 0.0
    while done < number:
        m = int(rng.integers(1, 6))
        sde = CovarianceSDE(c_plus=rng.uniform(-3, 3), c_minus=rng.uniform(-3, 3))
        V = sde.sample(starts(rng, m, block), rng.uniform(0.1, 5), dt=0.1, seed=done)
        size = np.maximum(np.einsum("pii->pi", V).max(1), 1e-300)
        smallest = np.linalg.eigvalsh(V / size[:, None, None])[:, 0]
        norm = np.sqrt(np.einsum("pii->pi", V))
        scale = norm[:, :, None] * norm[:, None, :]
        rho = np.abs(V / np.where(scale > 0, scale, 1))
        wrong = (
            ~np.isfinite(V).all(axis=(1, 2))
            | (smallest < -1e-10)
            | (rho > 1 + 1e-12).any(axis=(1, 2))
        )
        invalid, lowest, largest = (
            invalid + int(wrong.sum()),
            min(lowest, smallest.min()),
            max(largest, rho.max()),
        )
        done += block
    print(
        f"{done} starts: {invalid} invalid; least eigenvalue / largest variance {lowest:.1e};"
        f" largest rho {largest!r}"
    )


def cuda(width: int = 1024, samples: int = 2**16) -> None:
    V = torch.tensor(V0, device="cuda")
    o1.sample_network("relu", V, width, 4, samples)  # the first call loads kernels
    for kind in ("relu", "shaped-relu", "resnet"):
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = o1.sample_network(kind, V, width, width, samples)
        torch.cuda.synchronize()
        took, memory = time.perf_counter() - start, torch.cuda.max_memory_allocated() / 2**30
        rho = found[:, 0, 1] / (found[:, 0, 0] * found[:, 1, 1]).sqrt()
        median = float(rho.median())
        print(
            f"{kind}: {samples} networks, n = d = {width}: {took:.2f} s, {memory:.1f} GiB; median"
            f" rho {median:.6f}"
        )

    def work():
        return (
            CovarianceSDE().sample(V, paths=2**20, dt=1e-2),
            torch.cuda.synchronize(),
        )

    run = seconds(work, time.perf_counter)
    print(f"covariance SDE, 2^20 paths x 100 steps: {run:.2f} s")


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or ["tables"]
    if "tables" in wanted:
        for table in (sampler, growth_with_width, scalar_sde, eight_inputs):
            table()
    if "soak" in wanted:
        soak()
    if "cuda" in wanted:
        cuda()
