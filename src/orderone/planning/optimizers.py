"""From factors to the groups of torch.optim: learning rate, weight decay and eps of every tensor, equal ones merged."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from orderone.core.errors import one_of
from orderone.planning.growth import Tensor
from orderone.rules.factors import Factors, decay_factor

if TYPE_CHECKING:
    from orderone.planning.plan import Row

Eps = float | tuple[float | None, float] | None


@dataclass(frozen=True)
class Algorithm:
    """An optimizer of torch: its update law in theory, and the defaults of its constructor."""

    name: str
    law: str
    lr: float
    weight_decay: float
    eps: Eps = None


ALGORITHMS = {
    a.name: a
    for a in (
        Algorithm("sgd", "sgd", 1e-3, 0.0),
        Algorithm("adam", "adam", 1e-3, 0.0, 1e-8),
        Algorithm("adamw", "adamw", 1e-3, 1e-2, 1e-8),
        Algorithm("adafactor", "adafactor", 1e-2, 0.0, (None, 1e-3)),
        Algorithm("muon", "muon", 1e-3, 0.1, 1e-7),
        Algorithm("lion", "sign", 1e-4, 0.0),
    )
}
REST = "adamw"  # what takes the tensors that Muon leaves


def algorithm(name: object) -> Algorithm:
    """By its name, or by the class of torch.optim."""
    name = name.__name__ if isinstance(name, type) else name
    return ALGORITHMS[one_of({"sign": "lion"}.get(str(name).lower(), name), ALGORITHMS, "optimizer")]


def optimizer_class(name: str) -> type[Optimizer]:
    if name == "lion":
        from orderone.planning.lion import Lion

        return Lion
    found = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adafactor": "Adafactor", "muon": "Muon"}[name]
    if not hasattr(torch.optim, found):
        raise ValueError(f"optimizer: torch {torch.__version__} has no {found}; it came with torch 2.9")
    return getattr(torch.optim, found)


def weight_decay(base: float, f: Factors, a: Algorithm, convention: str) -> float:
    return base * decay_factor(f, a.name, convention)


def eps(a: Algorithm, base: Eps, f: Factors, t: Tensor) -> Eps:
    """Adam's eps is compared with entries of the gradient, Muon's with its norm. Adafactor's are a floor for gradients and
    one for the size of the weights."""
    if base is None:
        return None
    if isinstance(base, tuple):
        floor, size = base
        if floor is None and f.gradient != 1:
            floor = torch.finfo(t.item.tensor.dtype).eps  # what torch puts in the place of None
        return (None if floor is None else floor * f.gradient, size * f.std)
    if a.name == "muon":
        return base * f.gradient * math.sqrt(math.prod(t.item.shape) / math.prod(t.base_shape))
    return base * f.gradient


def torch_muon_adjustment(shape: tuple[int, ...]) -> float:
    """What torch.optim.Muon multiplies its learning rate with by itself: sqrt(max(1, rows / columns))."""
    rows, columns = shape
    return max(1.0, rows / columns) ** 0.5


def groups(rows: "tuple[Row, ...]", tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Tensors with equal settings share a group, which keeps their names for logging."""
    merged: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        key = (row.optimizer, row.lr, row.weight_decay, row.eps)
        group = merged.setdefault(key, {"params": [], "names": [], "roles": {}, **_settings(row)})
        group["params"].append(tensors[row.name])
        group["names"].append(row.name)
        group["roles"][row.role] = None
    for group in merged.values():
        group["name"] = "+".join(group.pop("roles"))
    return list(merged.values())


def _settings(row: "Row") -> dict[str, Any]:
    settings: dict[str, Any] = {"lr": row.lr, "weight_decay": row.weight_decay}
    if row.eps is not None:
        settings["eps"] = row.eps
    return settings
