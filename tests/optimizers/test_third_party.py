"""Optimizers of other packages: registered, planned, trained, and checked for their law."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support.errors import refuses
from support.registered import forgotten
from torch import Tensor, nn
from torch.optim import Optimizer

import orderone as o1
from orderone.measure.check import Check

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages

WIDTHS = [32, 64, 128, 256]
STEPS = 6


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with forgotten():
        yield


@pytest.fixture(autouse=True)
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let heavyball and torchao step without torch.compile, which takes seconds."""
    with torch.compiler.set_stance("force_eager"):
        yield


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def batches() -> list[tuple[Tensor, Tensor]]:
    """Return another batch for every step, as in training."""
    generator = torch.Generator().manual_seed(0)
    found: list[tuple[Tensor, Tensor]] = []
    for _ in range(STEPS):
        inputs = torch.randn(64, 8, generator=generator)
        found.append((inputs, inputs[:, :3].argmax(dim=1)))
    return found


def imported(package: str, name: str) -> type[Optimizer]:
    found = pytest.importorskip(package)
    if package == "heavyball":
        found.utils.compile_mode = None
    return getattr(found, name)


def checked(kind: type[Optimizer], lr: float) -> Check:
    return o1.coord_check(
        mlp, widths=WIDTHS, batches=batches(), steps=STEPS, seeds=3, lr=lr, optimizer=kind
    )


CASES = [
    ("pytorch_optimizer", "AdEMAMix", "adam", "sgd"),
    ("pytorch_optimizer", "Lion", "sign", "sgd"),
    ("pytorch_optimizer", "Shampoo", "spectral", "adam"),
    ("pytorch_optimizer", "SOAP", "adam", "sgd"),
    ("heavyball", "AdamW", "adam", "sgd"),
    ("heavyball", "AdEMAMix", "adam", "sgd"),
    ("heavyball", "SOAP", "adam", "sgd"),
    ("heavyball", "Muon", "spectral", "adam"),
    ("schedulefree", "AdamWScheduleFree", "adam", "sgd"),
    ("torchao.optim", "AdamW8bit", "adam", "sgd"),
]


FAST = {"pytorch_optimizer.SOAP", "pytorch_optimizer.Lion", "heavyball.Muon"}  # of the checks


@pytest.mark.parametrize(("package", "name", "law", "wrong"), CASES)
def test_it_is_used(package, name, law, wrong):
    kind = imported(package, name)
    o1.optimizers.register(kind, law)
    torch.manual_seed(0)
    plan = o1.plan(mlp(64), base=mlp(32), optimizer=kind, lr=1e-3)
    trained = o1.train(plan, batches()[0], steps=3, device="cpu")
    parts = getattr(trained.optimizer, "parts", {"": trained.optimizer})
    assert kind in {type(part) for part in parts.values()}
    assert trained.losses[-1] < trained.losses[0]


def some_slow() -> list[Any]:
    """Return the cases; checks of all but a few are slow."""
    cases: list[Any] = []
    for case in CASES:
        fast = f"{case[0]}.{case[1]}" in FAST
        cases.append(pytest.param(*case, marks=[] if fast else [pytest.mark.slow]))
    return cases


@pytest.mark.parametrize(("package", "name", "law", "wrong"), some_slow())
def test_it_follows_its_law(package, name, law, wrong):
    kind = imported(package, name)
    o1.optimizers.register(kind, law)
    check = checked(kind, 1e-3)
    assert check.passed, str(check)


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name", "law", "wrong"), CASES)
def test_with_another_law_the_check_fails(package, name, law, wrong):
    kind = imported(package, name)
    o1.optimizers.register(kind, wrong)
    check = checked(kind, 1e-3)
    assert check.count("FAIL"), str(check)


@pytest.mark.parametrize(
    ("package", "name"), [("schedulefree", "AdamWScheduleFree"), ("heavyball", "SFAdamW")]
)
def test_schedule_free_is_evaluated_with_its_average(package, name):
    kind = imported(package, name)
    o1.optimizers.register(kind, "adam")
    with_betas = partial(kind, betas=(0.8, 0.9))  # pyright: ignore[reportCallIssue]
    plan = o1.plan(mlp(64), base=mlp(32), optimizer=with_betas, lr=1e-2)
    trained = o1.train(plan, batches()[0], steps=3, device="cpu")
    assert not any(group["train_mode"] for group in trained.optimizer.param_groups)
    assert {group["betas"] for group in trained.optimizer.param_groups} == {(0.8, 0.9)}


def test_normuon_gets_groups_with_a_flag_and_follows_the_law_of_muon():
    kind: Any = imported("pytorch_optimizer", "NorMuon")

    class HiddenNorMuon(kind):
        def __init__(self, params, lr=0.02, weight_decay=0.0):
            groups = [{**group, "use_muon": True} for group in params]
            super().__init__(groups, lr=lr, weight_decay=weight_decay)

    factor = o1.optimizers.muon_factor
    o1.optimizers.register(HiddenNorMuon, "normuon", rate_factor=factor, decoupled_decay=True)
    check = checked(HiddenNorMuon, 1e-3)
    assert check.passed, str(check)
    o1.optimizers.register(HiddenNorMuon, "adam", decoupled_decay=True, hidden_only=True)
    assert checked(HiddenNorMuon, 1e-3).count("FAIL")


def test_a_check_with_fresh_batches_refutes_the_low_rank_law_of_soap():
    kind = imported("pytorch_optimizer", "SOAP")
    o1.optimizers.register(kind, "soap")
    assert checked(kind, 1e-3).count("FAIL")


# --- SOAP: the law needs fresh batches ------------------------------------------------------------


def soap_update(kind: type[Optimizer], width: int, rank: int, fresh: bool) -> Tensor:
    """Return the last update of a matrix divided by lr, for gradients of this rank."""
    generator = torch.Generator().manual_seed(0)

    def gradient() -> Tensor:
        left = torch.randn(width, rank, generator=generator)
        return left @ torch.randn(rank, width, generator=generator) / width

    p = nn.Parameter(torch.zeros(width, width))
    optimizer = kind([p], lr=1.0, weight_decay=0.0)  # type: ignore[call-arg]
    always = gradient()
    before = p.detach().clone()
    for _ in range(8):
        p.grad = gradient() if fresh else always.clone()
        before = p.detach().clone()
        optimizer.step()
    return p.detach() - before


def rms_ratio(kind: type[Optimizer], rank: int, fresh: bool) -> float:
    """Return how the size of entries changes from width 16 to width 128."""
    small, large = (soap_update(kind, width, rank, fresh) for width in (16, 128))
    return float(large.square().mean().sqrt() / small.square().mean().sqrt())


@pytest.mark.parametrize("package", ["pytorch_optimizer", "heavyball"])
def test_updates_of_soap_are_those_of_adam_only_if_gradients_differ(package):
    kind = imported(package, "SOAP")
    assert rms_ratio(kind, 128, fresh=True) == pytest.approx(1.0, abs=0.15)
    # a gradient is diagonal in its own eigenbasis: few entries are not zero
    assert rms_ratio(kind, 4, fresh=False) < 0.5


# --- states that no checkpoint can hold -----------------------------------------------------------


def test_a_quantized_state_is_refused_by_name_after_the_first_step(tmp_path):
    kind = imported("torchao.optim", "AdamW8bit")
    o1.optimizers.register(kind, "adam")
    wide = 64  # smaller tensors are not quantized
    plan = o1.plan(mlp(wide), base=mlp(32), optimizer=kind, lr=1e-3)
    path = tmp_path / "run.safetensors"
    steps: list[int] = []

    def data(step: int, seed: int) -> tuple[Tensor, Tensor]:
        steps.append(step)
        return batches()[0]

    with refuses("invalid-argument", argument="checkpoint") as caught:
        o1.train(plan, data, steps=50, checkpoint=path, device="cpu")
    assert "OptimState8bit" in str(caught.value)
    assert max(steps) < 5
    assert not path.exists()


def test_a_quantized_optimizer_is_swept_one_after_another():
    kind = imported("torchao.optim", "AdamW8bit")
    o1.optimizers.register(kind, "adam")
    options: dict[str, Any] = {"widths": [32, 64], "steps": 4, "data": batches()[0]}
    found = o1.sweep(mlp, space={"lr": [1e-3, 1e-2]}, optimizer=kind, device="cpu", **options)
    assert any("one after another" in note and "AdamW8bit" in note for note in found.notes)
    exact = o1.sweep(mlp, space={"lr": [1e-3, 1e-2]}, optimizer="adamw", device="cpu", **options)
    assert list(found.frame["loss"]) == pytest.approx(list(exact.frame["loss"]), rel=0.02)
    assert list(found.frame["loss"]) != list(exact.frame["loss"])


def test_heavyball_counts_in_dictionaries_that_no_checkpoint_can_hold(tmp_path):
    kind = imported("heavyball", "AdamW")
    o1.optimizers.register(kind, "adam")
    plan = o1.plan(mlp(64), base=mlp(32), optimizer=kind, lr=1e-3)
    path = tmp_path / "run.safetensors"
    with refuses("invalid-argument", argument="checkpoint") as caught:
        o1.train(plan, batches()[0], steps=3, checkpoint=path, device="cpu")
    assert "heavyball.AdamW" in str(caught.value)
