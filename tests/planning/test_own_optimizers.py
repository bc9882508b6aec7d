"""An optimizer class of the user is constructed, or refused; it is never replaced by the class of
torch with the same name."""

import copy

import pytest
import torch
from support.errors import refuses
from torch import nn
from torch.optim import Optimizer

import orderone as o1
from orderone.optimizers.lion import Lion


class Counted(torch.optim.AdamW):
    """AdamW whose steps are counted."""

    steps = 0

    def step(self, closure=None):  # type: ignore[override]
        type(self).steps += 1
        return super().step(closure)


class AdamW(Optimizer):
    """An optimizer of the user that has the name of torch's."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure=None):  # type: ignore[override]
        return None


class NoDecay(torch.optim.SGD):
    """An optimizer whose constructor takes only the learning rate."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)


class HalfRate(torch.optim.Adam):
    """An optimizer whose constructor changes the groups."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.param_groups[0]["lr"] /= 2


class OtherDefaults(torch.optim.AdamW):
    def __init__(self, params, lr=3e-4, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class Decoupled(torch.optim.Adam):
    """An Adam that decays as AdamW does."""

    def __init__(self, params, lr=1e-3, weight_decay=0.1):
        super().__init__(params, lr=lr, weight_decay=weight_decay, decoupled_weight_decay=True)


class Needs(torch.optim.SGD):
    def __init__(self, params, rho, lr=1e-3):
        super().__init__(params, lr=lr)
        self.rho = rho


def same_name() -> type[Optimizer]:
    """Return a subclass of torch's AdamW with the same name."""
    return type("AdamW", (torch.optim.AdamW,), {})


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def planned(optimizer, **options) -> o1.Plan:
    return o1.plan(mlp(32), base=mlp(8), optimizer=optimizer, lr=1e-2, weight_decay=0.1, **options)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (Counted, "adamw"),
        (same_name(), "adamw"),
        (type("Mine", (torch.optim.Adam,), {}), "adam"),
        (type("Mine", (torch.optim.SGD,), {}), "sgd"),
        (type("Mine", (torch.optim.Adafactor,), {}), "adafactor"),
        (type("Mine", (Lion,), {}), "lion"),
    ],
)
def test_a_subclass_is_constructed_with_the_groups_of_its_parent(given, name):
    ours, parents = planned(given), planned(name)
    made = ours.optimizer()
    assert type(made) is given
    assert ours.settings.optimizer == name
    assert [group["lr"] for group in made.param_groups] == [
        group["lr"] for group in parents.optimizer().param_groups
    ]
    assert given.__qualname__ in ours.headline
    ours.check(made)


def test_a_subclass_of_muon_takes_the_hidden_matrices():
    mine = type("Mine", (torch.optim.Muon,), {})
    parts = planned(mine).optimizer(momentum=0.9).parts  # type: ignore[attr-defined]
    assert {name: type(part) for name, part in parts.items()} == {
        "muon": mine,
        "adamw": torch.optim.AdamW,
    }
    assert parts["muon"].param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize(
    "given", [AdamW, torch.optim.Rprop, type("Lion", (Optimizer,), {}), nn.Linear, int]
)
def test_a_class_with_an_unknown_law_is_refused_by_name(given):
    with refuses("unknown-update-law", argument="optimizer") as caught:
        planned(given)
    assert given.__qualname__ in str(caught.value)
    assert f"register({given.__name__}" in str(caught.value)
    for call in (o1.sweep, o1.coord_check):
        options = (
            {"space": {"lr": [1e-3]}, "data": batch()} if call is o1.sweep else {"batches": batch()}
        )
        with refuses("unknown-update-law", argument="optimizer"):
            call(mlp, widths=[8, 16], steps=2, optimizer=given, **options)  # pyright: ignore[reportArgumentType]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(
        4, dtype=torch.long
    )


def test_classes_of_torch_are_found_by_the_class_itself():
    assert type(planned(torch.optim.AdamW).optimizer()) is torch.optim.AdamW
    assert planned(torch.optim.AdamW).settings == planned("adamw").settings


def test_a_constructor_gets_only_the_settings_that_it_takes():
    made = o1.plan(mlp(32), base=mlp(8), optimizer=NoDecay, lr=1e-2, weight_decay=0.0).optimizer()
    assert type(made) is NoDecay


def test_a_constructor_that_changes_the_groups_is_refused():
    with pytest.raises(o1.BrokenRatios):
        planned(HalfRate).optimizer()


def test_the_defaults_are_those_of_the_class():
    settings = o1.plan(mlp(32), base=mlp(8), optimizer=OtherDefaults).settings
    assert (settings.lr, settings.weight_decay, settings.eps) == (3e-4, 0.3, 1e-6)
    assert (
        o1.plan(
            mlp(32), base=mlp(8), optimizer=OtherDefaults, weight_decay=0.1
        ).settings.weight_decay
        == 0.1
    )


def test_a_class_with_the_weight_decay_of_another_law_is_refused():
    with refuses("other-weight-decay", argument="optimizer") as caught:
        planned(Decoupled).optimizer()
    assert "adamw" in str(caught.value)


def test_arguments_that_a_constructor_needs_can_be_passed():
    plan = o1.plan(mlp(32), base=mlp(8), optimizer=Needs, lr=1e-2, weight_decay=0.0)
    with pytest.raises(TypeError, match=r"plan\.optimizer\(name=value\)"):
        plan.optimizer()
    assert plan.optimizer(rho=0.5).rho == 0.5  # type: ignore[attr-defined]


def test_a_saved_plan_says_which_class_it_was_made_for(tmp_path):
    planned(Counted).save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json").attach(mlp(32))
    with refuses("class-not-saved") as caught:
        loaded.optimizer()
    assert "Counted" in str(caught.value)
    assert type(Counted(loaded.param_groups())) is Counted


def test_a_copied_or_attached_plan_has_the_class():
    plan = planned(Counted)
    assert type(plan.attach(copy.deepcopy(plan.bound())).optimizer()) is Counted


def test_a_coordinate_check_steps_with_the_class():
    Counted.steps = 0
    check = o1.coord_check(
        mlp, widths=[8, 16, 32], batches=batch(), steps=2, seeds=2, lr=1e-3, optimizer=Counted
    )
    assert (
        Counted.steps >= 3 * 2 * 2
    )  # widths, seeds, steps; some more on copies, to learn what it does
    assert "Counted" in str(check)


def test_a_check_judges_an_optimizer_of_a_known_name_by_its_steps():
    """A class called AdamW that follows the gradient is judged as SGD."""

    class Follows(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad)

    Follows.__name__ = "AdamW"

    def build(width: int):
        model = mlp(width)
        return model, Follows(model.parameters(), lr=1e-2)

    check = o1.coord_check(build, widths=[8, 16, 32], batches=batch(), steps=2, seeds=1)
    assert any("judged as sgd" in note for note in check.notes)
