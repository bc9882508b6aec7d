"""Synthetic sweeps: bowls of loss over log2(lr) whose optimum moves by a known drift."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

Bowl = Callable[[np.ndarray], np.ndarray]

BOWLS: dict[str, Bowl] = {
    "parabola": lambda d: 0.05 * d**2,
    "steep far off": lambda d: 0.05 * (np.cosh(d) - 1),
    "steeper above": lambda d: 0.1 * (np.exp(0.9 * d) - 0.9 * d - 1),
    "diverges above": lambda d: np.where(d > 1, np.inf, 0.04 * d**2),
    "cliff": lambda d: np.where(d > 0.5, 3 + d, 0.04 * d**2),
}


def sweep(
    drift: float = 0.0,
    bowl: Bowl = BOWLS["parabola"],
    *,
    widths: Sequence[int] = (64, 128, 256, 512),
    rates: np.ndarray | None = None,
    seeds: int = 3,
    noise: float = 0.01,
    best: float = -8.0,
    rule: str = "mup",
    axis: str = "width",
    level: Callable[[int], float] | None = None,
    rng: np.random.Generator | None = None,
) -> pd.DataFrame:
    """Return a frame of losses.

    `noise` is added to every training; every seed of a size also has a common random offset, twice
    as large. `level` is the loss at the best rate by width; by default 0.1 less per doubling.
    """
    rng = rng or np.random.default_rng(0)
    x = np.arange(-14.0, -2.0) if rates is None else rates
    rows = []
    for width in widths:
        doublings = np.log2(width / widths[0])
        for seed in range(seeds):
            best_loss = 2 - 0.1 * doublings if level is None else level(width)
            offset = best_loss + 2 * noise * rng.standard_normal()
            losses = (
                offset + bowl(x - best - drift * doublings) + noise * rng.standard_normal(len(x))
            )
            rows += [(rule, width, 2.0**a, seed, loss) for a, loss in zip(x, losses, strict=True)]
    return pd.DataFrame(rows, columns=["rule", axis, "lr", "seed", "loss"])


def power_curves(
    sizes: int = 3,
    seeds: int = 3,
    *,
    bend: float = 0.0,
    steps: int = 200,
    noise: float = 0.02,
    rng: np.random.Generator | None = None,
) -> dict[int, list[np.ndarray]]:
    """Return loss curves by size that are proportional to one another, if `bend` is 0.

    Otherwise their power of the time grows by `bend` with every doubling of the size.
    """
    rng = rng or np.random.default_rng(0)
    time = np.arange(1, steps + 1) / steps
    curves: dict[int, list[np.ndarray]] = {}
    for k in range(sizes):
        size = 64 * 2**k
        shape = 3 * size**-0.2 * time ** (-0.3 - bend * k)
        curves[size] = []
        for _ in range(seeds):
            factor = 1 + 0.01 * rng.standard_normal()
            curves[size].append(shape * factor * (1 + noise * rng.standard_normal(steps)))
    return curves
