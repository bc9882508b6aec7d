"""Model with small tensors of any names."""

from collections.abc import Iterable

import torch
from torch import nn


class Named(nn.Module):
    """Tensors of two numbers with these names; parts between dots are modules."""

    def __init__(self, names: Iterable[str]):
        super().__init__()
        for name in names:
            *parents, last = name.split(".")
            here: nn.Module = self
            for parent in parents:
                if not hasattr(here, parent):
                    here.add_module(parent, nn.Module())
                here = here.get_submodule(parent)
            here.register_parameter(last, nn.Parameter(torch.zeros(2)))
