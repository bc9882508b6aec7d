"""Random combinations of axes, optimizers and conventions against formulas written by hand.

The formulas are those of a residual network in folded form: an input layer, branches of one matrix
each, a readout. With r the growth of the width, l that of the depth:

    Adam    lr 1, 1/(r l), 1/r for input layer, branch, readout; SGD  r, 1/l, 1/r
    init    1, r^-1/2 l^-alpha, 1/r
"""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import orderone as o1

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
COUPLED = ("adam", "rmsprop")  # the penalty is added to the gradient
ROLES = {"first.weight": "embedding", "first.bias": "vector", "branches.0.weight": "hidden"}
ROLES |= {"last.weight": "readout"}


class Residual(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.first = nn.Linear(8, width)
        branches = [nn.Linear(width, width, bias=False) for _ in range(layers)]
        self.branches = nn.ModuleList(branches)
        self.last = nn.Linear(width, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for branch in self.branches:
            x = x + branch(torch.tanh(x))
        return self.last(x)


@dataclass(frozen=True)
class Case:
    optimizer: str
    width: float
    layers: float
    depth: str | None
    batch: float
    tokens: float
    horizon: str | None
    decay: str

    @property
    def is_known(self) -> bool:
        """Whether there is a rule: the others are refused, which other tests show."""
        if self.horizon == "sde" and self.batch / self.tokens >= 10:
            return False  # the memory of averages would be shorter than one step
        if self.optimizer == "sgd":
            return self.horizon != "power" and self.decay != "sqrt"
        if self.decay == "sqrt":
            return self.optimizer == "adamw"
        return not (self.decay == "timescale" and self.optimizer in COUPLED)

    @property
    def alpha(self) -> float:
        return {"sqrt": 0.5, "completep": 1.0, None: 0.0}[self.depth]

    @property
    def horizons(self) -> tuple[float, float, float, tuple[float, float]]:
        """Factors of lr, weight decay, eps and 1 - beta."""
        batch, tokens = self.batch, self.tokens
        kappa = batch / tokens
        root = 1.0 if self.optimizer in COUPLED else batch**0.5
        if self.horizon == "sde" and self.optimizer == "sgd":
            return kappa, 1.0, 1.0, (1.0, 1.0)
        if self.horizon == "sde":
            averages = 1.0 if self.optimizer == "lion" else kappa
            return kappa**0.5, root * tokens**-0.5, kappa**-0.5, (averages, averages)
        if self.horizon == "power":
            squares = 1.0 if self.optimizer == "lion" else batch
            lr = batch**0.5 * tokens**-0.32
            return lr, root * tokens**-0.68, batch**-0.5, (1.0, squares)
        return 1.0, 1.0, 1.0, (1.0, 1.0)

    def expected(self, role: str) -> dict[str, float]:
        r = self.width
        rates = {"embedding": 1.0, "vector": 1.0, "hidden": 1 / r, "readout": 1 / r}
        if self.optimizer == "sgd":
            rates = {"embedding": r, "vector": r, "hidden": 1.0, "readout": 1 / r}
        sizes = {"embedding": 1.0, "vector": 1.0, "hidden": r**-0.5, "readout": 1 / r}
        lr, std = rates[role], sizes[role]
        if role == "hidden":
            lr /= self.layers
            std *= self.layers**-self.alpha
        gradient = 1.0 if role == "readout" else 1 / r
        more_lr, more_decay, more_eps, _ = self.horizons
        slower = {"inverse-width": 1 / r, "sqrt": r**-0.5 if role == "hidden" else 1.0}
        decay = slower.get(self.decay, 1.0) / lr
        if self.optimizer in COUPLED:
            decay = slower.get(self.decay, 1.0) * gradient / std
        if self.decay == "proportional":  # of the branch with its multiplier, not of the folded one
            power = 2 if self.optimizer in (*COUPLED, "sgd") else 1
            decay = self.layers ** (self.alpha * power) if role == "hidden" else 1.0
        if self.decay == "timescale":
            decay = self.batch / self.tokens / (lr * more_lr)
            more_decay = 1.0
        return {
            "lr": lr * more_lr,
            "weight_decay": decay * more_decay,
            "eps": gradient * more_eps,
            "std": std,
        }


def cases(number: int) -> list[Case]:
    draw = random.Random(7)
    decays = ("independent", "proportional", "timescale", "sqrt", "inverse-width")
    found: list[Case] = []
    while len(found) < number:
        depth = draw.choice([None, "sqrt", "completep"])
        case = Case(
            optimizer=draw.choice(["adamw", "adamw", "sgd", "lion", "adam", "rmsprop"]),
            width=draw.choice([2.0, 4.0, 8.0]),
            layers=1.0 if depth is None else draw.choice([1.0, 2.0, 4.0]),
            depth=depth,
            batch=draw.choice([0.5, 1.0, 2.0, 8.0]),
            tokens=draw.choice([0.25, 1.0, 4.0, 25.0]),
            horizon=draw.choice(["sde", "power", None]),
            decay=draw.choice(decays),
        )
        if case.is_known:
            found.append(case)
    return found


@pytest.mark.parametrize("case", cases(72), ids=str)
def test_factors_of_all_axes_together(case):
    plan = o1.plan(
        Residual(int(16 * case.width), int(2 * case.layers)),
        base=Residual(16, 2),
        lr=1e-2,
        weight_decay=0.1,
        optimizer=case.optimizer,
        batch=(64, 64 * case.batch),
        tokens=(1e6, 1e6 * case.tokens),
        horizon=case.horizon,
        decay=case.decay,
        depth=case.depth,
        inputs=X,
    )
    base = o1.plan(
        Residual(16, 2), base=Residual(16, 2), lr=1e-2, weight_decay=0.1, optimizer=case.optimizer
    )
    for name, role in ROLES.items():
        row = plan[name]
        expected = case.expected(role)
        assert row.lr == pytest.approx(1e-2 * expected["lr"], rel=1e-9)
        assert row.weight_decay == pytest.approx(0.1 * expected["weight_decay"], rel=1e-9)
        assert row.factors.std == pytest.approx(expected["std"], rel=1e-9)
        eps = base[name].eps
        if isinstance(eps, float) and isinstance(row.eps, float):
            assert row.eps == pytest.approx(eps * expected["eps"], rel=1e-9)
        if case.optimizer in ("adamw", "adam"):
            found = row.betas or (0.9, 0.999)
            for beta, start, factor in zip(found, (0.9, 0.999), case.horizons[3], strict=True):
                assert 1 - beta == pytest.approx(min(1.0, (1 - start) * factor), rel=1e-9)
