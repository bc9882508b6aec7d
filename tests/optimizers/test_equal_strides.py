"""torch's fused kernels ignore strides: sweeps of weights in any order are right all the same."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1
from orderone.optimizers.equal_strides import make_strides_equal
from orderone.planning.plan import fused_options
from orderone.training import interrupts
from orderone.training.source import Source

STEPS = 10


def batch(step: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.randn(6, 3, 8, 8, generator=generator)
    return x, (x[:, 0].mean((1, 2)) > 0).long()


def conv(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3),
        nn.ReLU(),
        nn.Conv2d(width, width, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * width, 2),
    )


def channels_last(width: int) -> nn.Module:
    return conv(width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def gapped(width: int) -> nn.Module:
    """Return a network whose first weight is a part of a larger tensor."""
    model = conv(width)
    first = model.get_submodule("0")
    weight = first.get_parameter("weight")
    larger = torch.cat([weight.detach(), weight.detach()], dim=1)
    vars(first)["_parameters"]["weight"] = nn.Parameter(larger[:, :3])
    return model


def replacing(width: int) -> nn.Module:
    """Return a network whose first weight gets other strides in every pass."""
    model = conv(width)

    def replace(module: nn.Module, args: object) -> None:
        weight = module.get_parameter("weight")
        weight.data = weight.detach().contiguous(memory_format=torch.channels_last)

    model.get_submodule("2").register_forward_pre_hook(replace)
    return model


def losses(build: Callable[[int], nn.Module], **options) -> dict[int, list[float]]:
    space = {"lr": [0.01], "seed": range(2)}
    given = {"widths": [4], "base": 4, "data": batch, "steps": STEPS, "device": "cpu", "name": "n"}
    found = o1.sweep(build, space, progress=False, **(given | options))
    return {found.trials[key].seed: o.losses.tolist() for key, o in found.outcomes.items()}


@pytest.fixture(scope="module")
def expected() -> dict[int, list[float]]:
    return losses(conv, stacked=False)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("build", [channels_last, gapped])
def test_strides_change_no_loss(build, stacked, expected):
    for seed, found in losses(build, stacked=stacked).items():
        np.testing.assert_allclose(found, expected[seed], rtol=1e-4)


def test_a_weight_that_is_replaced_during_training(expected):
    for seed, found in losses(replacing, stacked=False).items():
        np.testing.assert_allclose(found, expected[seed], rtol=1e-4)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_resumed_training_of_weights_in_another_order(tmp_path, monkeypatch, stacked, expected):
    options = {"store": tmp_path / "runs.db", "checkpoint_seconds": 0.0, "stacked": stacked}

    def interrupted(step: int, seed: int) -> tuple[Tensor, Tensor]:
        if step == STEPS - 3:
            monkeypatch.setattr(interrupts, "pending", lambda: True)
        return batch(step, seed)

    with pytest.raises(KeyboardInterrupt):
        losses(channels_last, **(options | {"data": interrupted}))
    monkeypatch.undo()
    for seed, found in losses(channels_last, **options).items():
        np.testing.assert_allclose(found, expected[seed], rtol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_of_the_user_after_a_resume(tmp_path, monkeypatch, fused):
    def train(data=batch, checkpoint=None) -> list[float]:
        torch.manual_seed(0)
        model = channels_last(4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        given = {"device": "cpu", "report_every": 1, "checkpoint_seconds": 0.0}
        source = {"optimizer": optimizer, "checkpoint": checkpoint}
        return o1.train(model, Source("images", data), STEPS, **given, **source).losses.tolist()

    def interrupted(step: int, seed: int) -> tuple[Tensor, Tensor]:
        if step == STEPS - 3:
            monkeypatch.setattr(interrupts, "pending", lambda: True)
        return batch(step, seed)

    path = tmp_path / "run.safetensors"
    whole = train()
    with pytest.raises(KeyboardInterrupt):
        train(interrupted, path)
    monkeypatch.undo()
    np.testing.assert_allclose(train(checkpoint=path), whole, rtol=1e-5)


def test_kernels_are_not_fused_for_parameters_with_gaps():
    assert fused_options(o1.plan(channels_last(8), base=channels_last(4), lr=0.01))
    assert not fused_options(o1.plan(gapped(8), base=gapped(4), lr=0.01))


def test_gradients_of_other_strides():
    weights = torch.randn(4, 6)
    gradient = torch.randn(6, 4).t()
    results: list[Tensor] = []
    for fused in (False, True):
        p = nn.Parameter(weights.clone())
        optimizer = torch.optim.AdamW([p], lr=0.1, fused=fused)
        for _ in range(3):
            p.grad = gradient.clone()
            make_strides_equal(optimizer)
            optimizer.step()
        results.append(p.detach())
    assert torch.allclose(*results, rtol=1e-5)


class Widening(nn.Module):
    """Model that makes a parameter longer in its third pass of training."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = conv(width)
        self.gain = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            if int(self.calls) == 3:
                self.gain.data = torch.ones(64)
                self.gain.grad = None
        return self.inner(x) * self.gain.mean()


def test_a_parameter_that_is_resized_during_training_is_refused():
    """The kernel would write behind the averages, which ends the process sooner or later."""
    torch.manual_seed(0)
    model = Widening(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    with refuses("invalid-argument", argument="optimizer") as caught:
        o1.train(model, Source("images", batch), STEPS, optimizer=optimizer, device="cpu")
    assert "exp_avg of a parameter has the shape (2,)" in str(caught.value)
    assert "(64,) now" in str(caught.value)
