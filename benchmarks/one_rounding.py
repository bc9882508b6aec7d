"""Effect of one rounding on a loss after ten steps, by learning rate:

    python benchmarks/one_rounding.py

A GPT of width 64 (four layers, 16 x 128 tokens, AdamW, bfloat16 autocast) is trained on a CPU as it
is, with every weight changed by one unit in the last place of float32, and in float32 throughout.
The learning rates are those of `benchmarks/stacked.py`. No other program for the same network, such
as a compiled stack, can be expected to agree better than the first two.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.nn import GPT

RATES = [1e-4 * 2**k for k in range(8)]
STEPS = 10


def main() -> None:
    torch.manual_seed(0)
    model = GPT(vocab=256, length=128, width=64, heads=2, depth=4)
    tokens = torch.randint(256, (16, 129), generator=torch.Generator().manual_seed(0))
    print("| learning rate | loss | one rounding of the weights | float32 |")
    print("| --- | --- | --- | --- |")
    for rate in RATES:
        loss = trained(model, tokens, rate)
        rounded = abs(trained(nudged(model), tokens, rate) - loss) / loss
        exact = abs(trained(model, tokens, rate, half=False) - loss) / loss
        print(f"| {rate:.1e} | {loss:.3f} | {rounded:.0e} | {exact:.0e} |", flush=True)


def nudged(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            signs = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
            p.mul_(1 + signs * torch.finfo(p.dtype).eps)
    return model


def trained(model: nn.Module, tokens: Tensor, rate: float, half: bool = True) -> float:
    """Return the loss of the last step."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    loss = torch.zeros(())
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(tokens[:, :-1]).flatten(0, -2)
            loss = functional.cross_entropy(logits, tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    main()
