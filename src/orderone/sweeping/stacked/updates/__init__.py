"""The optimizers of `orderone.plan` for many members at once: stacked tensors (K, ...), and settings with K entries.

An update changes one stacked parameter in place. It reads the gradient, a state of named tensors, and settings `h` that are
broadcast along the members: h["lr"] has the shape (K, 1, ..., 1), and h["t"] is the number of the step, from 1. Settings
are double: 1 - beta^t in single precision would lose the first steps. Each is the law of `torch.optim`, up to rounding.
"""

from orderone.sweeping.stacked.updates.adafactor import Adafactor
from orderone.sweeping.stacked.updates.adam import Adam, AdamW
from orderone.sweeping.stacked.updates.base import Update
from orderone.sweeping.stacked.updates.lion import Lion
from orderone.sweeping.stacked.updates.muon import Muon
from orderone.sweeping.stacked.updates.sgd import SGD

UPDATES: dict[str, type[Update]] = {u.__name__: u for u in (SGD, Adam, AdamW, Adafactor, Muon, Lion)}

__all__ = ["UPDATES", "Adam", "AdamW", "Update"]
