"""The same seed gives the same numbers, whichever generator a model draws from."""

import random

import numpy as np
import pytest
import torch
from support.sweep_subjects import batch
from torch import Tensor, nn

import orderone as o1
from orderone.seeding import seeded

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]


def normal_of_numpy(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.standard_normal(shape)).float()


def normal_of_python(*shape: int) -> Tensor:
    values = [random.gauss(0, 1) for _ in range(int(np.prod(shape)))]
    return torch.tensor(values).view(shape)


def normal_on_the_gpu(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda" if torch.cuda.is_available() else "cpu")


def mlp_from(normal):
    """Return a function of the width that draws all weights with `normal`."""

    def build(width: int) -> nn.Module:
        model = nn.Sequential(
            nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(normal(*p.shape) / width**0.5)
        return model

    return build


def losses(build, device: str, stacked: bool) -> np.ndarray:
    result = o1.sweep(
        build,
        space={"lr": [1e-3, 1e-2], "seed": range(2)},
        widths=[8, 16],
        data=batch,
        steps=6,
        precision="float64",
        device=device,
        stacked="auto" if stacked else False,
        progress=False,
    )
    return np.array([outcome.losses for outcome in result.outcomes.values()])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normal", [normal_of_numpy, normal_of_python, normal_on_the_gpu])
def test_a_sweep_that_is_run_again_has_the_same_losses(normal, device):
    build = mlp_from(normal)
    first = losses(build, device, stacked=False)
    assert np.array_equal(losses(build, device, stacked=False), first)
    stacked = losses(build, device, stacked=True)
    assert np.array_equal(losses(build, device, stacked=True), stacked)
    assert np.allclose(stacked, first, rtol=1e-9, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_hugging_face_models_that_are_built_on_the_device(device):
    from transformers import GPT2Config, GPT2LMHeadModel

    def build(width: int) -> nn.Module:
        sizes = {"vocab_size": 32, "n_positions": 8, "n_embd": width, "n_layer": 2, "n_head": 2}
        off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        with torch.device(device):
            return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=1, **sizes, **off))

    def tokens(step: int, seed: int) -> dict[str, Tensor]:
        ids = torch.randint(32, (4, 8), generator=torch.Generator().manual_seed(1000 * seed + step))
        return {"input_ids": ids, "labels": ids}

    found = []
    for stacked in (False, False, "auto", "auto"):
        result = o1.sweep(
            build,
            {"lr": [1e-3, 1e-2]},
            widths=[16, 32],
            data=tokens,
            steps=12,
            precision="float64",
            device=device,
            stacked=stacked,
            progress=False,
        )
        found.append(np.array([outcome.losses for outcome in result.outcomes.values()]))
    # to rounding: on a GPU the gradient of an embedding is summed in any order
    for other in found[1:]:
        assert np.allclose(other, found[0], rtol=1e-9, atol=0)


@pytest.mark.parametrize("normal", [normal_of_numpy, normal_of_python, normal_on_the_gpu])
def test_a_coordinate_check_that_is_run_again_has_the_same_numbers(normal):
    settings = {"widths": [8, 16, 32], "batches": batch(0, 0), "steps": 2, "seeds": 2, "lr": 1e-3}
    one, other = (o1.coord_check(mlp_from(normal), **settings) for _ in range(2))
    assert one.frame.equals(other.frame)


class Noisy(nn.Module):
    """Model that draws a random number in every pass, with numpy or with `random`."""

    def __init__(self, width: int, draw):
        super().__init__()
        self.inner, self.outer, self.draw = nn.Linear(4, width), nn.Linear(width, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x).relu()) * (1 + 0.1 * self.draw())


@pytest.mark.parametrize("draw", [np.random.standard_normal, lambda: random.gauss(0, 1)])
def test_noise_in_the_forward_pass_does_not_depend_on_the_caller(draw):
    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        found.append(losses(lambda width: Noisy(width, draw), "cpu", stacked=False))
    assert np.array_equal(*found)


def test_the_generators_of_the_caller_are_not_changed():
    def draws() -> tuple[
        float, float
    ]:  # not `random`: beartype, which checks types in tests, draws from it
        return float(np.random.standard_normal()), float(torch.randn(()))

    with seeded(5):
        wanted = draws()
        with seeded(7):
            inner = draws()
    with seeded(5):
        with seeded(7):
            assert draws() == inner
        assert draws() == wanted


def test_seeds_may_be_larger_than_numpys():
    with seeded(2**40 + 1):
        one = np.random.standard_normal()
    with seeded(2**40 + 1):
        assert np.random.standard_normal() == one


class Drawn(nn.Module):
    """Model with a number that is drawn when it is built, and that its plan sees."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.last = nn.Linear(width, 3)
        self.scale = 1 + float(torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.scale * self.first(x)))


def test_a_plan_does_not_depend_on_which_trial_comes_first():
    def losses(seeds):
        space = {"lr": [0.01], "seed": seeds}
        settings = {"widths": [8], "base": 4, "data": batch, "steps": 3, "device": "cpu"}
        sweep = o1.sweep(Drawn, space, progress=False, stacked=False, **settings)
        return {key: outcome.losses.tolist() for key, outcome in sweep.outcomes.items()}

    together = losses([0, 1])
    assert together == losses([0]) | losses([1])
