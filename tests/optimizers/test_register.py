"""A registered optimizer class is used as it is in plan, check, sweep and train."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from support.errors import refuses
from support.registered import forgotten
from torch import Tensor, nn
from torch.optim import Optimizer

import orderone as o1
from orderone.core.errors import code_of
from orderone.optimizers import UpdateLaw, register, registry
from orderone.optimizers.sgd import SGDUpdate
from orderone.optimizers.table import algorithm, stacked_update
from orderone.training.loop import TrainingLoop


class Simple(Optimizer):
    """An optimizer whose update is one function of the gradient."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def direction(self, gradient: Tensor, p: Tensor) -> Tensor:
        raise NotImplementedError

    def decayed(self, gradient: Tensor, p: Tensor, group: dict[str, Any]) -> Tensor:
        p.mul_(1 - group["lr"] * group["weight_decay"])
        return gradient

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for p in group["params"]:
                if p.grad is not None:
                    gradient = self.decayed(p.grad, p, group)
                    p.sub_(group["lr"] * self.direction(gradient, p))


class Signs(Simple):
    def direction(self, gradient, p):
        return gradient.sign()


class PenalizedSigns(Signs):
    """Signs of the gradient with the penalty of the weights added."""

    def decayed(self, gradient, p, group):
        return gradient + group["weight_decay"] * p


class Root(Simple):
    """Signed square roots: updates follow the root of the gradient's size."""

    def direction(self, gradient, p):
        return gradient.sign() * gradient.abs().sqrt()


class Plain(Simple):
    def direction(self, gradient, p):
        return gradient


class Orthogonal(Simple):
    """U V^T of the gradient, times the root of the number of columns."""

    def direction(self, gradient, p):
        u, _, v = torch.linalg.svd(gradient, full_matrices=False)
        return gradient.shape[1] ** 0.5 * (u @ v)


class NeedsClosure(Plain):
    def step(self, closure):  # type: ignore[override]
        closure()


class NoRate(Optimizer):
    def __init__(self, params):
        super().__init__(params, {})


class MyAdam(torch.optim.AdamW):
    """Other defaults, the same update."""

    def __init__(self, params, lr=3e-4, betas=(0.8, 0.9), weight_decay=0.3):
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay)


class Hooked(MyAdam):
    """A step hook that scales gradients; the class overrides only `__init__`."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.register_step_pre_hook(lambda *_: None)


class Halved(torch.optim.SGD):
    """Half of the step that SGD makes."""

    def step(self, closure=None):  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] /= 2
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 2


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with forgotten():
        yield


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 4, generator=generator), torch.arange(16) % 3


def planned(optimizer: Any, **options: Any) -> o1.Plan:
    return o1.plan(mlp(32), base=mlp(8), optimizer=optimizer, **{"lr": 1e-2, **options})


def rates(plan: o1.Plan) -> list[float]:
    return [row.lr for row in plan.rows]


def checked(optimizer: Any, lr: float, build: Callable[[int], nn.Module] = mlp):
    return o1.coord_check(
        build, widths=[32, 64, 128, 256], batches=batch(), steps=3, seeds=2, lr=lr,
        optimizer=optimizer,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "law", "known"),
    [
        (Signs, "adam", "adamw"),
        (Signs, "sign", "lion"),
        (Signs, UpdateLaw(), "adamw"),
        (Plain, "sgd", "sgd"),
        (Plain, "adafactor", "adafactor"),
    ],
)
def test_a_law_gives_the_learning_rates_of_a_known_optimizer(kind, law, known):
    register(kind, law)
    plan = planned(kind)
    assert rates(plan) == rates(planned(known))
    made = plan.optimizer()
    assert type(made) is kind
    plan.check(made)
    assert kind.__name__ in plan.headline


def test_a_spectral_law_is_for_hidden_matrices():
    register(Orthogonal, "spectral", rate_factor=lambda shape: shape[1] ** 0.5)
    parts = planned(Orthogonal).optimizer().parts  # type: ignore[attr-defined]
    assert {type(part) for part in parts.values()} == {Orthogonal, torch.optim.AdamW}
    (group,) = parts[algorithm(Orthogonal).name].param_groups
    assert [tuple(p.shape) for p in group["params"]] == [(32, 32)]
    assert group["lr"] == pytest.approx(1e-2 / 2)  # the step multiplies by sqrt(32), not sqrt(8)


def test_a_law_of_ones_own_is_solved():
    """Updates of n^-c RMS(W')^(1/2): a hidden gradient of muP is n^-1, so that c is 1/2 there."""
    register(Root, UpdateLaw(gradient=Fraction(1, 2)))
    plan = planned(Root)
    between = zip(rates(plan), rates(planned("sgd")), rates(planned("adamw")), strict=True)
    for rate, follows, normalized in between:
        assert rate == pytest.approx((follows * normalized) ** 0.5)


@pytest.mark.parametrize(
    ("kind", "law", "wrong", "lr"),
    [
        (Signs, "adam", "sgd", 1e-3),
        (Plain, "sgd", "adam", 3e-2),
        (Root, UpdateLaw(gradient=Fraction(1, 2)), "adam", 1e-3),
    ],
)
def test_a_check_passes_with_the_right_law_and_fails_with_a_wrong_one(kind, law, wrong, lr):
    register(kind, law)
    right = checked(kind, lr)
    assert kind.__name__ in str(right)
    assert right.passed, str(right)
    register(kind, wrong)  # the later registration counts
    assert not checked(kind, lr).passed


def test_a_check_passes_with_a_spectral_law():
    register(Orthogonal, "spectral", rate_factor=lambda shape: shape[1] ** 0.5)
    check = checked(Orthogonal, 1e-3)
    assert check.passed, str(check)


@pytest.mark.parametrize(("kind", "decoupled"), [(Signs, True), (PenalizedSigns, False)])
def test_steps_tell_how_weight_decay_enters(kind, decoupled):
    register(kind, "adam")
    assert algorithm(kind).decouples_decay is decoupled
    known = "adamw" if decoupled else "adam"
    ours = [row.weight_decay for row in planned(kind, weight_decay=0.1).rows]
    assert ours == [row.weight_decay for row in planned(known, weight_decay=0.1).rows]
    register(kind, "adam", decoupled_decay=not decoupled)  # the user's word counts
    assert algorithm(kind).decouples_decay is not decoupled


class RandomSigns(Signs):
    """Signs with noise, as an optimizer that draws a random subspace (Dion)."""

    def direction(self, gradient, p):
        return gradient.sign() * torch.rand_like(p)


def test_optimizers_that_draw_random_numbers_are_told_apart_too():
    state = torch.get_rng_state()
    assert registry.decouples_decay(RandomSigns) is True
    assert torch.equal(torch.get_rng_state(), state)


def test_weight_decay_that_the_class_lacks_is_refused():
    class Bare(Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

    register(Bare, "sgd")
    with refuses("invalid-argument", argument="weight_decay"):
        planned(Bare, weight_decay=0.1)
    with refuses("invalid-argument", argument="lr"):
        planned(Bare, lr=None)
    assert type(planned(Bare).optimizer()) is Bare


def test_a_subclass_inherits_the_law_and_may_replace_it():
    register(Signs, "adam")
    assert rates(planned(PenalizedSigns)) == rates(planned("adam"))
    assert type(planned(PenalizedSigns).optimizer()) is PenalizedSigns
    register(MyAdam, "sgd")
    assert rates(planned(MyAdam)) == rates(planned("sgd"))


@pytest.mark.parametrize(
    ("thing", "code"),
    [
        (NeedsClosure, "needs-closure"),
        (torch.optim.LBFGS, "needs-closure"),
        (NoRate, "invalid-argument"),
        (int, "wrong-type"),
        ("adam", "wrong-type"),
    ],
)
def test_classes_that_cannot_follow_a_plan_are_refused(thing, code):
    with refuses(code, argument="optimizer"):
        register(thing, "sgd")


def test_wrong_laws_are_refused():
    with refuses("unknown-name", argument="law"):
        register(Signs, "adamish")
    with refuses("invalid-argument", argument="gradient"):
        UpdateLaw(gradient="much")  # type: ignore[arg-type]


def test_training_resumes_with_counters_in_groups(tmp_path, monkeypatch):
    register(Signs, "sign")

    def plan() -> o1.Plan:
        torch.manual_seed(0)
        return planned(Signs, lr=1e-3)

    options: dict[str, Any] = {"report_every": 1, "checkpoint_seconds": 0.0}
    whole = o1.train(plan(), batch(), steps=6, **options)
    path = tmp_path / "run.safetensors"
    kill_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        o1.train(plan(), batch(), steps=6, checkpoint=path, **options)
    monkeypatch.undo()
    resumed = o1.train(plan(), batch(), steps=6, checkpoint=path, **options)
    assert list(resumed.losses) == list(whole.losses)
    assert resumed.optimizer.param_groups[0]["steps"] == 6


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the update after this one be killed."""
    update = TrainingLoop.update

    def killed(loop: TrainingLoop) -> None:
        if loop.done == step:
            raise KeyboardInterrupt
        update(loop)

    monkeypatch.setattr(TrainingLoop, "update", killed)


def test_a_killed_trial_of_a_user_class_continues(tmp_path, monkeypatch):
    register(Signs, "sign")
    store = {"store": tmp_path / "runs.db"}
    whole = sweep(Signs)
    kill_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        sweep(Signs, checkpoint_seconds=0.0, **store)
    monkeypatch.undo()
    done: list[int] = []
    update = TrainingLoop.update

    def counted(loop: TrainingLoop) -> None:
        done.append(loop.done)
        update(loop)

    monkeypatch.setattr(TrainingLoop, "update", counted)
    resumed = sweep(Signs, **store)
    assert done[:2] == [2, 3]  # the update before the last checkpoint is repeated and compared
    assert list(resumed.frame["loss"]) == list(whole.frame["loss"])


def test_state_that_no_file_can_hold_is_named(tmp_path):
    class Remembers(Signs):
        def __init__(self, params, **options):
            super().__init__(params, **options)
            self.seen: list[float] = []

    register(Remembers, "sign")
    with refuses("invalid-argument", argument="checkpoint") as caught:
        o1.train(planned(Remembers), batch(), steps=2, checkpoint=tmp_path / "a.safetensors")
    assert "seen" in str(caught.value)


class Annealed(Orthogonal):
    """Steps of 1/t: the number of steps is an attribute of the instance."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.number = 0
        self.power = -1

    def direction(self, gradient, p):
        return super().direction(gradient, p) * self.number**self.power

    def step(self, closure=None):  # type: ignore[override]
        self.number += 1
        super().step(closure)


@pytest.mark.parametrize("hidden_only", [True, False])
def test_training_resumes_with_counters_in_attributes(tmp_path, monkeypatch, hidden_only):
    register(Annealed, "spectral" if hidden_only else "adam")

    def build(width: int) -> nn.Module:
        sizes = [(4, width), (width, width), (width, 3)]  # without vectors, which have no U V^T
        return nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))

    def plan() -> o1.Plan:
        torch.manual_seed(0)
        return o1.plan(build(32), base=build(8), optimizer=Annealed, lr=1e-2)

    options: dict[str, Any] = {"report_every": 1, "checkpoint_seconds": 0.0}
    whole = o1.train(plan(), batch(), steps=6, **options)
    path = tmp_path / "run.safetensors"
    kill_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        o1.train(plan(), batch(), steps=6, checkpoint=path, **options)
    monkeypatch.undo()
    resumed = o1.train(plan(), batch(), steps=6, checkpoint=path, **options)
    assert list(resumed.losses) == list(whole.losses)


def test_a_check_copies_attributes_of_an_optimizer():
    """The copy that measures weight decay makes the steps of the original."""
    register(Annealed, "spectral")
    check = o1.coord_check(
        mlp, widths=[8, 16, 32], batches=batch(), steps=2, seeds=1, lr=1e-3, weight_decay=0.1,
        optimizer=Annealed,
    )  # fmt: skip
    assert "decay-not-measured" not in map(code_of, check.notes)


def sweep(optimizer: Any, **options: Any) -> o1.Sweep:
    return o1.sweep(
        mlp, space={"lr": [1e-3, 1e-2]}, widths=[8, 16], steps=4, data=batch(),
        optimizer=optimizer, **options,
    )  # fmt: skip


def engines(result: o1.Sweep) -> set[object]:
    return {outcome.facts["engine"] for outcome in result.outcomes.values()}


def test_a_sweep_trains_one_after_another_and_says_why():
    register(Plain, "sgd")
    ours = sweep(Plain)
    assert any("one after another" in note and "Plain" in note for note in ours.notes)
    theirs = sweep("sgd", stacked=False)
    assert list(ours.frame["loss"]) == pytest.approx(list(theirs.frame["loss"]), rel=1e-6)


def test_a_registered_stacked_form_is_used():
    class Stacked(SGDUpdate):
        numbers = ("lr", "weight_decay")
        shared = ()

        def state(self, p):
            return {}

        def coefficients(self, h):
            return {"lr": h["lr"]}

        def __call__(self, p, g, state, c):
            p.sub_(c["lr"] * g)

    register(Plain, "sgd", stacked=Stacked)
    ours = sweep(Plain)
    assert engines(ours) == {"stacked"}
    theirs = sweep(Plain, stacked=False)
    assert list(ours.frame["loss"]) == pytest.approx(list(theirs.frame["loss"]), rel=1e-5)


def test_a_subclass_is_stacked_only_if_its_update_is_that_of_its_parent():
    assert stacked_update(MyAdam) is stacked_update(torch.optim.AdamW)
    assert stacked_update(Halved) is None
    assert engines(sweep(MyAdam)) == {"stacked"}
    halved = sweep(Halved)
    assert engines(halved) == {"alone"}
    assert any("Halved" in note for note in halved.notes)
    assert engines(sweep(Hooked)) == {"alone"}


def test_defaults_that_a_signature_hides_are_used():
    class Hidden(torch.optim.AdamW):
        def __init__(self, params, lr=1e-3):
            super().__init__(params, lr=lr, weight_decay=0.3)

    assert algorithm(Hidden).weight_decay == 0.3


def test_partial_passes_options_to_the_class():
    made = planned(partial(torch.optim.AdamW, betas=(0.7, 0.8), weight_decay=0.2))
    assert made.settings.weight_decay == 0.2
    optimizer = made.optimizer()
    assert type(optimizer) is torch.optim.AdamW
    assert {group["betas"] for group in optimizer.param_groups} == {(0.7, 0.8)}
    ours = sweep(partial(torch.optim.AdamW, betas=(0.0, 0.0)))
    assert engines(ours) == {"stacked"}
    assert list(ours.frame["loss"]) != list(sweep("adamw").frame["loss"])


class Started(torch.optim.Adagrad):
    def __init__(self, params, lr=1e-2):
        super().__init__(params, lr=lr, initial_accumulator_value=0.1)


def test_adagrad_must_start_at_zero():
    """The sum of squares begins at a value that does not scale with the width."""
    with refuses("invalid-argument", argument="initial_accumulator_value"):
        planned(partial(torch.optim.Adagrad, initial_accumulator_value=0.1))
    plan = planned("adagrad")
    with refuses("invalid-argument", argument="initial_accumulator_value"):
        plan.optimizer(initial_accumulator_value=0.1)
    with refuses("invalid-argument", argument="initial_accumulator_value"):
        plan.check(torch.optim.Adagrad(plan.param_groups(), initial_accumulator_value=0.1))
    with refuses("invalid-argument", argument="initial_accumulator_value"):
        planned(Started).optimizer()
    plan.optimizer(initial_accumulator_value=0.0)


@pytest.mark.parametrize(
    ("kind", "known"), [(torch.optim.NAdam, "adamw"), (torch.optim.Adam, "adamw")]
)
def test_an_option_that_decouples_weight_decay_is_planned(kind, known):
    decoupled = planned(partial(kind, decoupled_weight_decay=True), weight_decay=0.1)
    expected = planned(known, weight_decay=0.1)
    assert [row.weight_decay for row in decoupled.rows] == [
        row.weight_decay for row in expected.rows
    ]
    assert all(group["decoupled_weight_decay"] for group in decoupled.optimizer().param_groups)
    with refuses("other-weight-decay", argument="optimizer"):
        planned(kind, weight_decay=0.1).optimizer(decoupled_weight_decay=True)


def test_a_saved_plan_finds_a_registered_class(tmp_path):
    register(Signs, "sign")
    planned(Signs).save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json").attach(mlp(32))
    assert type(loaded.optimizer()) is Signs
    registry._BY_NAME.clear()
    str(loaded)
    with refuses("unknown-update-law", argument="optimizer") as caught:
        loaded.optimizer()
    assert "Signs" in str(caught.value)


def test_an_optimizer_that_build_returns_is_judged_by_its_registered_law():
    register(Plain, "sgd")

    def build(width: int):
        model = mlp(width)
        return model, Plain(model.parameters(), lr=1e-2)

    check = o1.coord_check(build, widths=[8, 16, 32], batches=batch(), steps=2, seeds=1)
    assert not any("judged as" in note for note in check.notes)
    assert algorithm(build(8)[1]).law == "sgd"
