"""Why larger batches move outputs a little less, although the rule for the batch size is applied.

    python benchmarks/batch_signal.py     # half a minute on one core

One entry of a gradient has the mean g and the variance S / B over batches of B samples. An
optimizer that divides it by its size moves weights over D samples, with lr = B^1/2, by

    drift    D / B  B^1/2 g (g^2 + S / B)^-1/2          = D g (S + B g^2)^-1/2
    noise    (D / B)^1/2  B^1/2 (S / B)^1/2 (g^2 + S / B)^-1/2 = D^1/2 S^1/2 (S + B g^2)^-1/2

Both are constant while noise dominates, B g^2 << S, and fall like B^-1/2 where the signal does. The
exponent in between is -1/2 B g^2 / (S + B g^2). SGD does not divide: its drift D g is constant.

The prediction takes g and S of every entry from gradients of single samples, and the change of the
outputs from the Jacobian, at the first and at the last weights of a training: no number is fitted.
The measurement trains with three batch sizes on the same samples (Adam with beta1 = 0, whose
average of squares is corrected, and SGD) and fits the change of the outputs.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

SIZES = (32, 64, 128)
STEPS = 24  # of the largest batch
LR = {"adam": 3e-4, "sgd": 3e-3}
FRESH = 0.01  # 1 - beta2 of the smallest batch
TARGET = torch.randn(8, generator=torch.Generator().manual_seed(7))
NOISES = (24.0, 6.0, 3.0, 1.5)
SEEDS = range(100, 124)
PREDICTED_SEEDS = range(100, 108)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


def samples(number: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 8, generator=generator)
    y = (x @ TARGET).tanh() + noise * torch.randn(number, generator=generator)
    return x, y[:, None]


def slope(values: list[float]) -> float:
    """Return the exponent of the batch size."""
    x = torch.tensor(SIZES).log()
    x = x - x.mean()
    return float(x @ torch.tensor(values).log() / (x @ x))


# --- prediction -----------------------------------------------------------------------------------


def moments(model: nn.Module, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the mean of every entry of the gradient, and its variance over single samples."""
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(functional_call(model, weights, (x[None],)), y[None])

    x, y = samples(8192, 999 + seed, noise)
    found = vmap(grad(loss), (None, 0, 0))(weights, x, y)
    gradients = torch.cat([g.flatten(1) for g in found.values()], 1)
    mean = gradients.mean(0)
    variance = gradients.var(0)
    unbiased = (mean.square() - variance / len(x)).clamp(min=0)
    return mean.sign() * unbiased.sqrt(), variance


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def output(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, weights, (x[None],))[0, 0]

    found = vmap(jacrev(output), (None, 0))(weights, x)
    return torch.cat([j.flatten(1) for j in found.values()], 1)


def predicted(model: nn.Module, noise: float, seed: int) -> float:
    """Return the exponent of the change of the outputs for an optimizer that divides by sizes."""
    mean, variance = moments(model, noise, seed)
    j = jacobian(model, samples(SIZES[-1], 1000 * seed, noise)[0])
    tokens = STEPS * SIZES[-1]
    changes: list[float] = []
    for batch in SIZES:
        lr = LR["adam"] * (batch / SIZES[0]) ** 0.5
        size = (mean.square() + variance / batch).sqrt()
        steps = tokens / batch
        drift = j @ (steps * lr * mean / size)
        spread = j.square() @ (steps * lr**2 * variance / batch / size.square())
        changes.append(float((drift.square() + spread).mean().sqrt()))
    return slope(changes)


# --- measurement ----------------------------------------------------------------------------------


def trained(kind: str, batch: int, seed: int, noise: float) -> tuple[float, nn.Module]:
    """Return the RMS change of the outputs in one training, and the trained model."""
    ratio = batch / SIZES[0]
    model = network(seed)
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=LR[kind] * ratio)
    else:
        betas = (0.0, 1 - FRESH * ratio)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR[kind] * ratio**0.5, betas=betas)
    data = [samples(SIZES[-1], 1000 * seed + step, noise) for step in range(STEPS)]
    fixed = data[0][0]
    with torch.no_grad():
        before = model(fixed)
    for x, y in data:
        for part in zip(x.split(batch), y.split(batch), strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(part[0]), part[1]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(fixed) - before).square().mean().sqrt()), model


def measured(kind: str, noise: float, seed: int) -> float:
    return slope([trained(kind, batch, seed, noise)[0] for batch in SIZES])


def main() -> None:
    for noise in NOISES:
        first = [predicted(network(seed), noise, seed) for seed in PREDICTED_SEEDS]
        last: list[float] = []
        for seed in PREDICTED_SEEDS:
            last.append(predicted(trained("adam", SIZES[1], seed, noise)[1], noise, seed))
        range_text = f"{_mean(first):+.3f} to {_mean(last):+.3f}"
        found = [_with_error([measured(kind, noise, seed) for seed in SEEDS]) for kind in LR]
        print(
            f"noise {noise:4}: predicted {range_text}; Adam {found[0]}; SGD {found[1]}", flush=True
        )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _with_error(values: list[float]) -> str:
    error = float(torch.tensor(values).std()) / len(values) ** 0.5
    return f"{_mean(values):+.3f} +- {error:.3f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
