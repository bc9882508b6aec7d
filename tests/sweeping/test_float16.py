"""Float16: the loss is scaled as by torch.amp.GradScaler, alone and for every member of a stack."""

from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refuses
from support.sweep_subjects import batch, mlp
from torch import Tensor, nn

import orderone as o1
from orderone.training.loss_scale import START, LossScale

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]
OPTIMIZERS = ["adamw", "sgd", "adafactor", "nadam", "muon"]


def large_loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy times a factor with which gradients overflow at the first scales."""
    return 20 * nn.functional.cross_entropy(output, target)


def sweep(device="cpu", build=mlp, **changes):
    call = {
        "space": {"lr": [1e-3, 1e-2], "seed": range(2)},
        "widths": [16],
        "rule": "mup",
        "data": batch,
        "loss": large_loss,
        "steps": 12,
        "precision": "float16",
        "device": device,
    }
    return o1.sweep(build, **{**call, **changes})


def losses(result):
    return np.array([result.outcomes[key].losses for key in result.trials])


def skipped(result) -> list[Any]:
    return [result.outcomes[key].facts["skipped updates"] for key in result.trials]


def test_the_scale_changes_as_that_of_torch(monkeypatch):
    monkeypatch.setattr("orderone.training.loss_scale.INTERVAL", 20)
    ours = LossScale(torch.device("cpu"))
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    theirs = torch.amp.GradScaler("cpu", growth_interval=20)
    overflows = {0, 1, 5}
    for step in range(32):
        theirs.scale(parameter.sum()).backward()
        assert parameter.grad is not None
        if step in overflows:
            parameter.grad.mul_(torch.inf)
        mine = [parameter.grad.clone()]
        theirs.step(optimizer)
        theirs.update()
        finite = ours.unscale(mine)
        ours.update(finite)
        assert bool(finite) == (step not in overflows)
        if finite:
            assert torch.equal(mine[0], parameter.grad)
        optimizer.zero_grad()
        assert float(ours.scale) == theirs.get_scale()
    assert float(ours.scale) == START / 4
    assert float(ours.skipped) == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_training_equals_torch_with_a_grad_scaler(device, clip):
    def model():
        torch.manual_seed(0)
        return nn.Sequential(mlp(16), Temperature()).to(device)

    ours = model()
    trained = o1.train(
        ours,
        batch,
        8,
        optimizer=torch.optim.AdamW(ours.parameters(), lr=1e-2),
        loss=large_loss,
        clip=clip,
        precision="float16",
        device=device,
    )
    theirs = model()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device)
    for step in range(8):
        x, y = batch(step, 0)
        with torch.autocast(device, torch.float16):
            loss = large_loss(theirs(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert trained.losses[step] == float(loss.detach())
    assert scaler.get_scale() < START  # updates were left out
    for name, p in theirs.named_parameters():
        assert torch.equal(p, ours.get_parameter(name))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_members_skip_updates_as_in_stand_alone_runs(optimizer, device):
    together = sweep(device, optimizer=optimizer)
    alone = sweep(device, optimizer=optimizer, stacked=False)
    assert {together.outcomes[key].facts["engine"] for key in together.trials} == {"stacked"}
    assert not together.notes
    assert skipped(together) == skipped(alone)
    assert 0 < max(skipped(alone)) < 8
    np.testing.assert_allclose(losses(together), losses(alone), rtol=5e-3)


def test_members_skip_different_updates():
    """A member whose gradients are larger leaves out more updates than another."""

    def build(width, factor):
        return nn.Sequential(mlp(width), Times(factor))

    call = {"space": {"factor": [0.1, 10.0], "lr": [1e-3]}, "rule": "standard"}
    together = sweep(build=build, **call)
    alone = sweep(build=build, **call, stacked=False)
    counts = skipped(alone)
    assert counts[0] < counts[1] < 12
    assert skipped(together) == counts
    np.testing.assert_allclose(losses(together), losses(alone), rtol=5e-3)


class Temperature(nn.Module):
    """Multiply by a trained number, a parameter without axes."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return x * self.factor


class Times(nn.Module):
    """Multiply by a number that differs between members, so it is a buffer."""

    def __init__(self, factor):
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x):
        return x * self.factor


@pytest.mark.parametrize("name", ["saved", "saved.safetensors"])
def test_a_training_continues_with_its_scale(tmp_path, monkeypatch, name):
    def train(checkpoint=None):
        torch.manual_seed(0)
        model = mlp(16)
        return o1.train(
            model,
            batch,
            8,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
            loss=large_loss,
            precision="float16",
            device="cpu",
            report_every=1,
            checkpoint=checkpoint,
        )

    whole = train()
    asked = iter([False] * 4)
    with monkeypatch.context() as patch:
        patch.setattr("orderone.training.interrupts.pending", lambda: next(asked, True))
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / name)
    again = train(tmp_path / name)
    np.testing.assert_array_equal(whole.losses, again.losses)


def test_a_sweep_continues_with_its_scales(tmp_path, monkeypatch):
    whole = sweep(evaluate_every=1)
    asked = iter([False] * 10)
    with monkeypatch.context() as patch:
        patch.setattr("orderone.training.interrupts.pending", lambda: next(asked, True))
        with pytest.raises(KeyboardInterrupt):
            sweep(evaluate_every=1, store=tmp_path / "runs.db")
    again = sweep(evaluate_every=1, store=tmp_path / "runs.db")
    assert skipped(again) == skipped(whole)
    np.testing.assert_array_equal(losses(whole), losses(again))


def test_a_model_in_float16_is_refused():
    model = mlp(16).half()
    with refuses("float16-parameters", argument="precision"):
        o1.train(
            model,
            lambda step, seed: (batch(step, seed)[0].half(), batch(step, seed)[1]),
            2,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-2),
            precision="float16",
            device="cpu",
        )
