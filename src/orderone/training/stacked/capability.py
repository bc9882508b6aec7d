"""Whether this version of torch can train models in one program."""

from functools import cache

import torch
from torch import nn

from orderone.core.torch_version import install_command, tested_range
from orderone.training.stacked.stack import Stack

ROUNDING = 1e-5  # of losses in single precision


@cache
def stacking_failure() -> str | None:
    """Train two tiny networks both ways; return what is wrong, or None if their losses agree."""
    try:
        with torch.random.fork_rng(devices=[]):
            deviation = _deviation()
    except Exception as error:  # a version of torch may fail in any way
        reason = str(error).partition("\n")[0]
        failure = f"{type(error).__name__}: {reason}"
    else:
        if deviation <= ROUNDING:
            return None
        failure = f"losses differ by {deviation:.1g} from those of stand-alone runs"
    return (
        f"torch {torch.__version__} cannot train models in one program ({failure}). Tested"
        f" versions are {tested_range()}; install one of them: {install_command()}"
    )


def _deviation() -> float:
    """Return the largest difference of losses after one step, stacked and alone."""
    torch.manual_seed(0)
    models = [_network(), _network()]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in models]
    inputs = torch.randn(2, 4, 3)
    targets = torch.randn(2, 4, 2)
    stack = Stack(models, optimizers, loss=nn.functional.mse_loss)
    stacked = [stack.step((inputs, targets)) for _ in range(2)]
    largest = 0.0
    for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        for losses in stacked:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs[k]), targets[k])
            loss.backward()
            optimizer.step()
            largest = max(largest, abs(losses[k].item() - loss.item()))
    return largest


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
