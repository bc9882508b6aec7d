"""Optimizers for many members at once, those of `orderone.plan` and RMSprop: stacked tensors (K,
...), and settings with K entries.

An update changes one stacked parameter in place. It reads the gradient, a state of named tensors,
and coefficients, one for each member, of the shape (K, 1, ..., 1). These come from the settings
(learning rate, betas, ...) and the number of the step in double precision, since 1 - beta^t in
single would lose the first steps; and for all tensors at once, since a GPU would work it out anew
for every entry. Each is the law of `torch.optim`, up to rounding.
"""

import torch
from torch.optim import Optimizer

from orderone.optimizers.table import CLASSES
from orderone.training.stacked.updates.adafactor import Adafactor
from orderone.training.stacked.updates.adam import Adam, AdamW
from orderone.training.stacked.updates.base import Update
from orderone.training.stacked.updates.lion import Lion
from orderone.training.stacked.updates.muon import Muon
from orderone.training.stacked.updates.rmsprop import RMSprop
from orderone.training.stacked.updates.sgd import SGD

# By the class itself: a subclass, or another class of the same name, may make other updates.
UPDATES: dict[type[Optimizer], type[Update]] = {
    CLASSES["sgd"]: SGD,
    CLASSES["adam"]: Adam,
    CLASSES["adamw"]: AdamW,
    CLASSES["adafactor"]: Adafactor,
    CLASSES["muon"]: Muon,
    CLASSES["lion"]: Lion,
    torch.optim.RMSprop: RMSprop,
}

__all__ = ["UPDATES", "Adam", "Update"]
