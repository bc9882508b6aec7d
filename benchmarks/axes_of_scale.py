"""Figures of docs/axes.md: batch sizes with and without a rule, and conventions of weight decay.

    python benchmarks/axes_of_scale.py batch     # two minutes on one core
    python benchmarks/axes_of_scale.py start     # two minutes on one core
    python benchmarks/axes_of_scale.py decay     # one minute on one core

**batch.** The exponent of the change of a network's output with the batch size, over the same
samples: 0 if the batch size does not matter.

**start.** The same exponent for RMSprop as it is (its average of squares starts at zero), with an
average that is filled before the first step, and for Adam with beta1 = 0, which is RMSprop with a
corrected average. All train on the same samples with the same seeds; the table has the mean of the
seeds and its standard error, and the differences of single seeds from RMSprop as it is.

**decay.** A network of width 64 is tuned (learning rate and weight decay) on a small set of noisy
samples, where weight decay matters. Each convention carries the settings to width 512. Losses are
on held-out samples, the mean of four seeds and its standard error.
"""

import sys
from itertools import product

import torch
from torch import nn

import orderone as o1
from orderone.rules.axes import DECAY

# --- batch ----------------------------------------------------------------------------------------

TARGET = torch.randn(8, generator=torch.Generator().manual_seed(7))
# optimizer, learning rate, steps of the largest batch
RUNS = (("adamw", 1e-3, 24), ("sgd", 3e-3, 24), ("rmsprop", 3e-4, 24), ("muon", 1e-3, 150))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


def noisy_samples(step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(128, 8, generator=generator)
    y = (x @ TARGET).tanh() + 6 * torch.randn(128, generator=generator)
    return x, y[:, None]


def change_of_output(check: o1.measure.Check) -> str:
    for line in check.judgements:
        if line.quantity == "change" and line.module == "":
            return f"{line.exponent:+.2f} [{line.low:+.2f}, {line.high:+.2f}] {check.verdict}"
    raise AssertionError("no line about the output")


def batch() -> None:
    def unscaled(size: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    settings = {"batch_sizes": [32, 64, 128], "batches": noisy_samples, "seeds": 3}
    check = o1.coord_check(unscaled, steps=24, **settings)
    print(f"adamw    one rate, 24 steps: {change_of_output(check)}", flush=True)
    for optimizer, lr, steps in RUNS:
        check = o1.coord_check(network, optimizer=optimizer, lr=lr, steps=steps, **settings)
        print(f"{optimizer:8} sde, {steps} steps: {change_of_output(check)}", flush=True)


# --- start of RMSprop's average -------------------------------------------------------------------

BATCHES = (32, 64, 128)
START_SEEDS = 24
START_STEPS = 24  # of the largest batch
ALPHA = 0.99
MEMORIES = 3  # an average over this many times its memory is full


def change_after(kind: str, size: int, seed: int) -> float:
    """Return the RMS change of the output in one training with batches of `size`."""
    ratio = size / BATCHES[0]
    fresh = (1 - ALPHA) * ratio
    torch.manual_seed(seed)
    model = network()
    lr = 3e-4 * ratio**0.5  # the rule 'sde'
    if kind == "corrected":
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.0, 1 - fresh))
    else:
        optimizer = torch.optim.RMSprop(model.parameters(), lr=lr, alpha=1 - fresh)
    samples = [noisy_samples(1000 * seed + step, 0) for step in range(START_STEPS)]
    fixed = samples[0][0]
    with torch.no_grad():
        before = model(fixed)
    filling = round(MEMORIES / fresh) if kind == "filled" else 0
    for step in range(filling):
        x, y = noisy_samples(10**6 + 1000 * seed + step, 0)
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[:size]), y[:size]).backward()
        optimizer.step()
    optimizer.param_groups[0]["lr"] = lr
    for x, y in samples:
        for first in range(0, BATCHES[-1], size):
            optimizer.zero_grad()
            part = slice(first, first + size)
            nn.functional.mse_loss(model(x[part]), y[part]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(fixed) - before).square().mean().sqrt())


def start() -> None:
    x = torch.tensor(BATCHES).log()
    x = x - x.mean()
    slopes: dict[str, torch.Tensor] = {}
    for kind in ("as it is", "filled", "corrected"):
        found = []
        for seed in range(START_SEEDS):
            changes = torch.tensor([change_after(kind, size, seed) for size in BATCHES])
            found.append(float(x @ changes.log() / (x @ x)))
        slopes[kind] = torch.tensor(found)
        apart = slopes[kind] - slopes["as it is"]
        print(f"{kind:10} {_with_error(slopes[kind])}, difference {_with_error(apart)}", flush=True)


def _with_error(values: torch.Tensor) -> str:
    return f"{float(values.mean()):+.3f} +- {float(values.std()) / len(values) ** 0.5:.3f}"


# --- decay ----------------------------------------------------------------------------------------

BASE, WIDE = 64, 512
SEEDS = 4
RATES = (2e-3, 4e-3, 8e-3)
DECAYS = (0.0, 0.3, 1.0, 3.0)


def deep(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


def teacher_samples(number: int, seed: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(32, 4, generator=torch.Generator().manual_seed(1)) / 32**0.5
    x = torch.randn(number, 32, generator=generator)
    y = (2 * x @ teacher).tanh().sum(1, keepdim=True)
    return x, y + noise * torch.randn(number, 1, generator=generator)


def loss_of(width: int, lr: float, decay: float, convention: str, seed: int) -> float:
    """Return the loss on held-out samples after a training."""
    x, y = teacher_samples(1024, 10 + seed, noise=0.5)
    torch.manual_seed(seed)
    base = deep(BASE)
    model = deep(width)
    plan = o1.plan(model, base=base, lr=lr, weight_decay=decay, decay=convention)
    plan.apply()
    optimizer = plan.optimizer()
    steps = 400
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,), generator=order)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    x, y = teacher_samples(4096, 0, noise=0.0)
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(x), y))


def mean(width: int, lr: float, decay: float, convention: str, seeds: int) -> tuple[float, float]:
    losses = [loss_of(width, lr, decay, convention, seed) for seed in range(seeds)]
    spread = torch.tensor(losses)
    return float(spread.mean()), float(spread.std()) / seeds**0.5


def decay() -> None:
    grid = {}
    for lr, weight_decay in product(RATES, DECAYS):
        grid[lr, weight_decay] = mean(BASE, lr, weight_decay, "independent", SEEDS)
    lr, weight_decay = min(grid, key=lambda setting: grid[setting][0])
    loss, error = grid[lr, weight_decay]
    print(f"width {BASE}: best lr {lr}, weight decay {weight_decay}: {loss:.4f} +- {error:.4f}")
    for convention in DECAY:
        loss, error = mean(WIDE, lr, weight_decay, convention, SEEDS)
        print(f"width {WIDE}, {convention:14} {loss:.4f} +- {error:.4f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"batch": batch, "start": start, "decay": decay}[sys.argv[1]]()
