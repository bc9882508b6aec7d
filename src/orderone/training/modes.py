"""Training and evaluation modes of modules, which a user may have set one by one."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and give each module its mode back afterwards.

    A batch norm that the user has frozen by `eval()` stays frozen. Modes are set by `train` and
    `eval` where that suffices: some modules do more there, such as merging adapters into weights.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, mode in modes:  # parents come before their children
            if module.training != mode:
                module.train(mode)
