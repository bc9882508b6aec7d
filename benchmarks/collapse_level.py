"""How often `collapse` says "parts" for loss curves that coincide by construction.

    python benchmarks/collapse_level.py

The nominal rate is 5 %. Synthetic curves have noise of steps and slow noise of seeds, which differs
between the largest and the smallest size by a factor. Trained curves are those of a gated network
with muP, 30 seeds of four widths; for "one mean curve", every width gets the mean curve of all
widths and keeps its noise. Three seeds of each size are drawn 2000 times. A few minutes, one core.
"""

import warnings

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.sweeping.collapse import PARTS, Collapse, collapse

WIDTHS, SEEDS, STEPS, DRAWS = (16, 32, 64, 128), 30, 120, 2000


class Gated(nn.Module):
    """A residual block with a gated MLP."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        z = self.norm(x)
        return self.head(x + self.down(functional.silu(self.gate(z)) * self.up(z)))


def trained(width: int, seed: int, data_seed: int) -> np.ndarray:
    """Return the training losses of one network."""
    torch.manual_seed(seed)
    model = Gated(width)
    plan = o1.plan(model, base=Gated(WIDTHS[0]), lr=2**-7, weight_decay=0.0)
    plan.apply()
    optimizer = plan.optimizer()
    losses: list[float] = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * data_seed + step)
        x = torch.randn(64, 8, generator=generator)
        y = x.prod(1, keepdim=True).tanh() + x[:, :1]
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def verdict(curves: np.ndarray) -> Collapse:
    """Compare curves: sizes, seeds, steps."""
    runs = {size: list(several) for size, several in zip(WIDTHS, curves, strict=True)}
    return collapse("mup", runs, axis="width", lr=1.0, offset=0.0, confidence=0.95)


def synthetic(rng: np.random.Generator, factor: float) -> np.ndarray:
    """Return curves of one shape, the noise of the last size `factor` times that of the first."""
    time = np.arange(1, STEPS + 1) / STEPS
    waves = np.cos(np.pi * np.arange(4)[:, None] * time)
    sizes = len(WIDTHS)
    level = 3 * 2 ** (-0.2 * np.arange(sizes))[:, None, None]
    scale = factor ** (np.arange(sizes) / (sizes - 1))[:, None, None]
    slow = 0.02 * rng.standard_normal((sizes, 3, 4)) @ waves
    fast = 0.03 * rng.standard_normal((sizes, 3, STEPS))
    return level * time**-0.3 * (1 + scale * (slow + fast))


def one_mean(curves: np.ndarray) -> np.ndarray:
    """Return curves with the noise of every width, relative to its mean, around one mean curve."""
    return curves / curves.mean(1, keepdims=True) * curves.mean((0, 1))


def drawn(rng: np.random.Generator, curves: np.ndarray, same: bool) -> np.ndarray:
    """Return three seeds of every width: the same ones, or different ones."""
    order = rng.permutation(SEEDS)
    picks = [order[:3] if same else order[3 * k : 3 * k + 3] for k in range(len(WIDTHS))]
    return np.stack([several[pick] for several, pick in zip(curves, picks, strict=True)])


def main() -> None:
    """Print rates of the verdict "parts"."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    for factor in (1.0, 0.5, 0.25):
        found = [verdict(synthetic(rng, factor)).verdict == PARTS for _ in range(DRAWS)]
        print(f"synthetic, noise of the largest size x{factor:g}: {np.mean(found):.1%}", flush=True)
    for shared in (False, True):
        curves = np.array(
            [[trained(n, s, 0 if shared else s) for s in range(SEEDS)] for n in WIDTHS]
        )
        title = "all seeds on the same data" if shared else "each seed with its data"
        noise = curves.std(1, ddof=1).mean(1) / curves.mean((1, 2))
        print(f"trained, {title}: relative noise by width", noise.round(2))
        for same in (True, False):
            null = one_mean(curves)
            false = [verdict(drawn(rng, null, same)).verdict == PARTS for _ in range(DRAWS)]
            real = [verdict(drawn(rng, curves, same)).verdict == PARTS for _ in range(DRAWS)]
            which = "the same seeds" if same else "different seeds"
            print(f"  {which}: one mean curve {np.mean(false):.1%}, as trained {np.mean(real):.1%}")
        print(f"  all {SEEDS} seeds, as trained:", verdict(curves), flush=True)


if __name__ == "__main__":
    main()
