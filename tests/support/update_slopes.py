"""Sizes of real updates of a hidden matrix at several widths, and the sizes that a law predicts.

The network is a ReLU network in double precision. Rates are tiny, so that weights stay as they were
initialized; updates are divided by the rate. Repeated data is one example, whose gradient has rank
one at every step. Fresh data is another batch for every step, with more examples in all steps
together than the width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from orderone.theory.exponents import UpdateLaw

LR = 1e-6
FEATURES, CLASSES = 16, 4


@dataclass(frozen=True)
class Slopes:
    """Exponents of the width: entries and spectral norm of an update, and norm of the gradient."""

    entries: float
    norm: float
    effect: float  # |dW h| / |h|
    gradient: float


@dataclass(frozen=True)
class Setting:
    """Network and data of one measurement."""

    widths: Sequence[int] = (32, 64, 128)
    steps: int = 6
    repeated: bool = True
    readout: float = 1.0  # initial size of the readout: width^-readout
    tall: int = 1  # rows over columns of the hidden matrix
    dtype: torch.dtype = torch.float64
    lr: float = LR


def slopes(make: Callable[..., Optimizer], setting: Setting) -> Slopes:
    """Return the exponents of the last update of the hidden matrix, fitted over the widths."""
    sizes = [_sizes(make, setting, width) for width in setting.widths]
    logs = np.log(np.array(sizes))
    fitted = np.polyfit(np.log(setting.widths), logs, 1)[0]
    return Slopes(*(float(slope) for slope in fitted))


def predicted_norm(law: UpdateLaw, gradient: float) -> float:
    """Return the exponent of the spectral norm of an update, for that of the gradient.

    A law of entries is taken at full alignment: the norm is the width times the size of entries.
    """
    if law.spectral:
        return float(law.gradient) * gradient + float(law.fan_out) + float(law.fan_in)
    return 1 + float(law.gradient) * (gradient - 1)


def _sizes(make: Callable[..., Optimizer], setting: Setting, width: int) -> list[float]:
    model, hidden = _network(setting, width)
    weight: Any = hidden.weight
    optimizer: Any = make([weight], setting.lr)
    generator = torch.Generator().manual_seed(1)
    examples = 1 if setting.repeated else max(8, 2 * width // setting.steps)
    inputs, target = _batch(examples, setting, generator)
    before = weight.detach().clone()
    gradient = before
    for _ in range(setting.steps):
        if not setting.repeated:
            inputs, target = _batch(examples, setting, generator)
        if hasattr(optimizer, "train"):  # schedule-free
            optimizer.train()
        model.zero_grad()
        functional.cross_entropy(model(inputs), target).backward()
        before = weight.detach().clone()
        gradient = weight.grad.clone()
        optimizer.step()
    update = (weight.detach() - before) / setting.lr
    with torch.no_grad():
        h = model[:4](inputs)
    effect = float((h @ update.T).norm() / h.norm())
    entries = float(update.square().mean().sqrt())
    return [entries, _norm(update), effect, _norm(gradient)]


def _network(setting: Setting, width: int) -> tuple[nn.Sequential, nn.Linear]:
    torch.manual_seed(0)
    inner = setting.tall * width
    sizes = [(FEATURES, width), (width, width), (width, inner), (inner, CLASSES)]
    layers: list[nn.Module] = []
    for into, out in sizes:
        layer = nn.Linear(into, out, bias=False, dtype=setting.dtype)
        nn.init.normal_(layer.weight, std=math.sqrt(2 / into))
        layers += [layer, nn.ReLU()]
    readout: Any = layers[-2]
    nn.init.normal_(readout.weight, std=width**-setting.readout)
    hidden: Any = layers[4]
    return nn.Sequential(*layers[:-1]), hidden


def _batch(examples: int, setting: Setting, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(examples, FEATURES, generator=generator).to(setting.dtype)
    return inputs, inputs[:, :CLASSES].argmax(dim=1)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))
