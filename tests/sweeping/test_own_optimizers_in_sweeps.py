"""Sweeps with custom optimizer classes, which are trained one after another."""

import copy
import importlib
import signal

import numpy as np
import pytest
import torch
from support.errors import refuses
from support.registered import forgotten
from support.sweep_subjects import batch, mlp

import orderone as o1
from orderone.optimizers import registry
from orderone.sweeping.member import optimizer_options
from orderone.sweeping.result import Interrupted
from orderone.sweeping.stacked import NotStackable, Stack


class Halved(torch.optim.AdamW):
    """AdamW with half the step size."""

    @torch.no_grad()
    def step(self, closure=None):
        tensors = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in tensors]
        super().step(closure)
        for p, old in zip(tensors, before, strict=True):
            p.lerp_(old, 0.5)


SETTINGS = {
    "space": {"lr": [1e-3, 1e-2]},
    "widths": [8, 16],
    "data": batch,
    "steps": 6,
    "device": "cpu",
    "progress": False,
}


def losses(sweep) -> np.ndarray:
    return np.array([outcome.losses for outcome in sweep.outcomes.values()])


def test_a_subclass_is_trained_with_its_own_updates():
    with_torch = o1.sweep(mlp, optimizer="adamw", **SETTINGS)
    with_ours = o1.sweep(mlp, optimizer=Halved, **SETTINGS)
    assert {outcome.facts["engine"] for outcome in with_ours.outcomes.values()} == {"alone"}
    assert any("Halved" in note for note in with_ours.notes)
    assert np.array_equal(losses(with_ours)[:, 0], losses(with_torch)[:, 0])
    assert not np.allclose(losses(with_ours)[:, 1:], losses(with_torch)[:, 1:], rtol=1e-6)
    model, base = mlp(16), mlp(8)
    plan = o1.plan(model, base=base, optimizer=Halved, lr=1e-2)
    assert type(plan.optimizer()) is Halved


def test_classes_are_compared_and_stored_separately(tmp_path):
    space = {"lr": [1e-3, 1e-2], "optimizer": ["adamw", Halved]}
    options = {**SETTINGS, "space": space, "store": tmp_path / "runs.db"}
    both = o1.sweep(mlp, **options)
    assert sorted(both.frame["optimizer"].unique()) == sorted(
        ["adamw", f"adamw ({Halved.__module__}.Halved)"]
    )
    assert o1.sweep(mlp, **options).ran == 0


def test_a_class_that_was_edited_is_trained_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {**SETTINGS, "store": tmp_path / "runs.db"}
    ran = []
    for name, body in (("one", "pass"), ("one", "pass"), ("two", "step_size = 2")):
        (tmp_path / f"mine_{name}.py").write_text(
            f"import torch\nclass Mine(torch.optim.AdamW):\n    {body}\n"
        )
        kind = importlib.import_module(f"mine_{name}").Mine
        kind.__module__ = "mine"
        ran.append(o1.sweep(mlp, optimizer=kind, **options).ran)
    assert ran == [4, 0, 4]


def test_the_target_is_for_the_class():
    space = {"lr": o1.log_grid(1e-4, 1.0, 9), "seed": range(2)}
    transfer = o1.sweep(
        mlp, **{**SETTINGS, "space": space, "optimizer": Halved, "steps": 12}
    ).transfer()
    settings = transfer.target(width=64)
    assert "optimizer=Halved" in settings.snippet
    with refuses("invalid-argument", argument="optimizer"):
        settings.plan(mlp(64), mlp(8))
    assert type(settings.plan(mlp(64), mlp(8), Halved).optimizer()) is Halved


def test_two_classes_of_one_name_in_one_sweep_are_refused():
    other = type("Halved", (torch.optim.AdamW,), {"__module__": Halved.__module__})
    with refuses("invalid-argument", argument="optimizer") as caught:
        o1.sweep(mlp, optimizer=[Halved, other], **SETTINGS)
    assert "Halved" in str(caught.value)


@pytest.mark.parametrize(
    "kind", [Halved, type("SGD", (torch.optim.SGD,), {"zero_grad": torch.optim.SGD.zero_grad})]
)
def test_a_stack_takes_no_class_that_overrides_methods(kind):
    models = [mlp(8) for _ in range(2)]
    with pytest.raises(NotStackable) as caught:
        Stack(models, [kind(model.parameters(), lr=1e-3) for model in models])
    assert caught.value.code == "optimizer-not-stackable"
    assert kind.__qualname__ in str(caught.value)


class OtherBetas(torch.optim.AdamW):
    def __init__(self, params, lr=1e-3, betas=(0.8, 0.9), **options):
        super().__init__(params, lr=lr, betas=betas, **options)


class Counter(torch.optim.SGD):
    """Optimizer with a counter in its groups."""

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                p.sub_(group["lr"] / group["count"] * p.grad)


class ThreeBetas(torch.optim.Optimizer):
    """Signs of gradients, with settings of other lengths than those of Adam."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95, 0.99), eps=(1e-8, 1e-6, 1e-4)):
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())


def test_three_betas_are_no_failure_of_the_stack():
    with forgotten():
        o1.optimizers.register(ThreeBetas, "sign")
        (note,) = o1.sweep(mlp, optimizer=ThreeBetas, **SETTINGS).notes
    assert "[optimizer-not-stackable]" in note
    assert "ThreeBetas has no stacked form" in note


def test_betas_that_a_trial_does_not_set_have_the_default_of_the_class():
    settings = {"beta1": 0.7}
    assert optimizer_options("adamw", settings, OtherBetas)["betas"] == (0.7, 0.9)
    assert optimizer_options("adamw", settings, Halved)["betas"] == (0.7, 0.999)
    assert optimizer_options("lion", settings)["betas"] == (0.7, 0.99)


def test_an_interrupted_trial_of_a_custom_optimizer_continues(tmp_path):
    interrupted = []

    def data(step: int, seed: int):
        if step == 4 and not interrupted:
            interrupted.append(True)
            signal.raise_signal(signal.SIGINT)
        return batch(step, seed)

    options = {**SETTINGS, "optimizer": Counter, "checkpoint_seconds": 0.0, "name": "the same data"}
    with pytest.raises(Interrupted):
        o1.sweep(mlp, **{**options, "data": data, "store": tmp_path / "runs.db"})
    resumed = o1.sweep(mlp, **{**options, "data": data, "store": tmp_path / "runs.db"})
    assert np.array_equal(losses(resumed), losses(o1.sweep(mlp, **{**options, "data": data})))


def test_training_uses_the_class(tmp_path):
    def train(optimizer) -> np.ndarray:
        torch.manual_seed(0)
        model = mlp(16)
        plan = o1.plan(model, base=copy.deepcopy(model), optimizer=optimizer, lr=1e-2)
        return o1.train(plan, batch, 5, device="cpu").losses

    assert not np.allclose(train(Halved)[1:], train("adamw")[1:], rtol=1e-6)


# --- other processes ------------------------------------------------------------------------------


class Signs(torch.optim.Optimizer):
    """Signs of the gradient; its step multiplies lr by a number for the shape."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.shape[0] ** 0.5 * p.grad.sign())


@pytest.fixture
def signs():
    with forgotten():
        o1.optimizers.register(Signs, "sign", rate_factor=lambda shape: shape[0] ** 0.5)
        yield Signs


def test_a_job_brings_what_was_registered(signs):
    pickle = pytest.importorskip("cloudpickle")
    job = o1.sweep(mlp, optimizer=signs, **SETTINGS).job
    sent = pickle.dumps(job)
    registry._REGISTERED.clear()
    registry._BY_NAME.clear()
    with refuses("unknown-update-law", argument="optimizer"):
        o1.plan(mlp(16), base=mlp(8), optimizer=signs)
    pickle.loads(sent)
    plan = o1.plan(mlp(16), base=mlp(8), optimizer=signs, lr=1e-2)
    assert plan["2.weight"].lr == pytest.approx(1e-2 / 2 / 2**0.5)  # muP, and the factor of shapes


@pytest.mark.slow
def test_workers_train_with_a_registered_class(signs):
    pytest.importorskip("cloudpickle")
    here = o1.sweep(mlp, optimizer=signs, **SETTINGS)
    there = o1.sweep(mlp, optimizer=signs, executor="processes", workers=1, **SETTINGS)
    assert not [outcome.error for outcome in there.outcomes.values() if outcome.error]
    assert np.array_equal(losses(here), losses(there))
