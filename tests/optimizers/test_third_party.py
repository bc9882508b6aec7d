"""Optimizers of other packages: registered, planned, trained, and checked for their law."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import orderone as o1


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 4, generator=generator), torch.arange(64) % 3


CASES = [
    ("pytorch_optimizer", "AdEMAMix", "adam", {}),
    ("pytorch_optimizer", "Lion", "sign", {}),
    ("pytorch_optimizer", "Shampoo", "spectral", {}),
    # on few examples, gradients have low rank, and SOAP makes updates like those of Muon
    ("pytorch_optimizer", "SOAP", "spectral", {"hidden_only": False}),
    ("schedulefree", "AdamWScheduleFree", "adam", {}),
]


@pytest.mark.parametrize(("package", "name", "law", "options"), CASES)
@pytest.mark.filterwarnings("ignore")  # of the packages
def test_it_is_used_and_follows_its_law(package, name, law, options):
    kind = getattr(pytest.importorskip(package), name)
    o1.optimizers.register(kind, law, **options)
    plan = o1.plan(mlp(64), base=mlp(32), optimizer=kind, lr=1e-3)
    trained = o1.train(plan, batch(), steps=3, device="cpu")
    parts = getattr(trained.optimizer, "parts", {"": trained.optimizer})
    assert kind in {type(part) for part in parts.values()}
    assert trained.losses[-1] < trained.losses[0]
    check = o1.coord_check(
        mlp, widths=[32, 64, 128], batches=batch(), steps=4, seeds=2, lr=1e-3, optimizer=kind
    )
    assert check.passed, str(check)


@pytest.mark.filterwarnings("ignore")
def test_schedule_free_is_evaluated_with_its_average():
    kind = pytest.importorskip("schedulefree").AdamWScheduleFree
    o1.optimizers.register(kind, "adam")
    plan = o1.plan(mlp(64), base=mlp(32), optimizer=partial(kind, betas=(0.8, 0.9)), lr=1e-2)
    trained = o1.train(plan, batch(), steps=3, device="cpu")
    assert not any(group["train_mode"] for group in trained.optimizer.param_groups)
    assert {group["betas"] for group in trained.optimizer.param_groups} == {(0.8, 0.9)}
