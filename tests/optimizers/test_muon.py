"""Muon: conventions of its learning rate, and stacks of experts."""

import json
import math
from functools import partial
from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1
from orderone.core.errors import InputError
from orderone.optimizers import MUON_CONVENTIONS, Muon, convert_muon_lr, muon_factor

SHAPES = [(64, 64), (256, 64), (64, 256), (8, 32, 64)]
ALIASES = {
    "moonshot": "match_rms_adamw",
    "rms_norm": "match_rms_adamw",
    "shape_scaling": "original",
    "spectral_norm": "spectral",
    "unit_rms_norm": "spectral",
}


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, width),
        nn.ReLU(),
        nn.Linear(width, 3 * width),
        nn.ReLU(),
        nn.Linear(3 * width, width),
        nn.ReLU(),
        nn.Linear(width, 3),
    )


class Experts(nn.Module):
    """Experts in two tensors of three dimensions."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) * (2 * width) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(torch.bmm(x.expand(len(self.up), *x.shape), self.up))
        return torch.bmm(hidden, self.down)


class Routed(nn.Module):
    def __init__(self, width: int, count: int):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = Experts(width, count)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(dim=-1)
        return torch.einsum("be,ebw->bw", weights, self.experts(x))


class Mixture(nn.Module):
    def __init__(self, width: int, count: int = 4):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.moe = Routed(width, count)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        h = h + self.moe(h)
        return self.head(h + self.mix(h.unsqueeze(-1)).squeeze(-1))


def in_convention(kind: type[torch.optim.Muon], convention: str) -> Any:
    return partial(kind, adjust_lr_fn=convention)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(dim=1)


# --- conventions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_factors_are_those_of_the_sources(shape):
    out, into = shape[-2:]
    assert muon_factor(shape) == math.sqrt(max(1, out / into))
    assert muon_factor(shape, "match_rms_adamw") == 0.2 * math.sqrt(max(out, into))
    assert muon_factor(shape, "spectral") == math.sqrt(out / into)
    assert muon_factor(shape, "none") == 1
    for alias, name in ALIASES.items():
        assert muon_factor(shape, alias) == muon_factor(shape, name)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", MUON_CONVENTIONS)
def test_a_converted_rate_takes_the_same_steps(shape, source):
    """Real steps: the weights are the same after training in either convention."""
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def trained(convention: str, lr: float) -> Tensor:
        p = nn.Parameter(start.clone())
        optimizer = Muon([p], lr=lr, weight_decay=0.0, adjust_lr_fn=convention)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            p.grad = torch.randn(shape, generator=generator)
            optimizer.step()
        return p.detach()

    for target in MUON_CONVENTIONS:
        converted = convert_muon_lr(0.02, shape, source, target)
        assert torch.allclose(trained(source, 0.02), trained(target, converted), atol=1e-6)
        assert convert_muon_lr(converted, shape, target, source) == pytest.approx(0.02)


@pytest.mark.parametrize("shape", [(128, 128), (256, 64), (64, 256)])
@pytest.mark.parametrize("source", MUON_CONVENTIONS)
def test_the_rate_of_adamw_has_steps_of_the_same_size(shape, source):
    """RMS of a real step of Muon, whose Newton-Schulz iterations give singular values near 1."""
    p = nn.Parameter(torch.zeros(shape))
    p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    Muon([p], lr=0.02, weight_decay=0.0, adjust_lr_fn=source).step()
    rms = float(p.detach().square().mean().sqrt())
    assert 0.2 * convert_muon_lr(0.02, shape, source, "adamw") == pytest.approx(rms, rel=0.2)
    signs = convert_muon_lr(0.02, shape, source, "adamw", adamw_rms=1)
    assert signs == pytest.approx(rms, rel=0.2)
    back = convert_muon_lr(signs, shape, "adamw", source, adamw_rms=1)
    assert back == pytest.approx(0.02)


def test_bad_conventions():
    with refuses("unknown-name", argument="convention"):
        muon_factor((4, 4), "keller")
    with refuses("unknown-name", argument="target"):
        convert_muon_lr(0.1, (4, 4), "original", "sgd")
    with refuses("invalid-argument", argument="shape"):
        convert_muon_lr(0.1, (4,), "original", "spectral")
    with refuses("invalid-argument", argument="lr"):
        convert_muon_lr(-0.1, (4, 4), "original", "spectral")
    with refuses("unknown-name", argument="adjust_lr_fn"):
        Muon([nn.Parameter(torch.zeros(4, 4))], adjust_lr_fn="keller")
    with refuses("invalid-argument", argument="params"):
        Muon([nn.Parameter(torch.zeros(4))])


# --- the class ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("convention", [None, "original", "match_rms_adamw"])
def test_it_steps_like_torch_and_each_matrix_of_a_stack_like_one_alone(convention, nesterov):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 24, 40, generator=generator)
    stack = nn.Parameter(start.clone())
    alone = [nn.Parameter(matrix.clone()) for matrix in start]
    options: dict[str, Any] = {"lr": 0.02, "adjust_lr_fn": convention, "nesterov": nesterov}
    ours = Muon([stack], **options)
    torchs = torch.optim.Muon(alone, **options)
    for _ in range(4):
        stack.grad = torch.randn(start.shape, generator=generator)
        for matrix, gradient in zip(alone, stack.grad, strict=True):
            matrix.grad = gradient.clone()
        ours.step()
        torchs.step()
    # both round to bfloat16 inside, with sums in another order
    size = muon_factor(start.shape, convention) * 0.02
    assert torch.allclose(stack.detach(), torch.stack([p.detach() for p in alone]), atol=size / 50)


def test_the_state_of_torchs_class_is_loaded():
    p = nn.Parameter(torch.randn(8, 8))
    p.grad = torch.randn(8, 8)
    torchs = torch.optim.Muon([p], lr=0.1)
    torchs.step()
    ours = Muon([p], lr=0.1)
    ours.load_state_dict(torchs.state_dict())
    assert torch.equal(ours.state[p]["momentum_buffer"], torchs.state[p]["momentum_buffer"])
    ours.step()


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "convention"),
    [
        ("muon:spectral", "spectral"),
        ("Muon:moonshot", "match_rms_adamw"),
        ("muon:original", "original"),
    ],
)
def test_a_convention_by_name(text, convention):
    model = mlp(64)
    base = mlp(16)
    named = o1.plan(model, base=base, optimizer=text, lr=1e-2)
    made = in_convention(torch.optim.Muon, convention)
    assert named.rows == o1.plan(model, base=base, optimizer=made, lr=1e-2).rows
    named.apply()
    groups = named.optimizer().param_groups
    assert {group["adjust_lr_fn"] for group in groups if "ns_steps" in group} == {convention}


@pytest.mark.parametrize("text", ["muon:fast", "adamw:spectral", "muon:"])
def test_other_names_of_conventions_are_refused(text):
    with refuses("unknown-name", argument="optimizer"):
        o1.plan(mlp(32), base=mlp(16), optimizer=text)


@pytest.mark.parametrize("kind", [torch.optim.Muon, Muon])
def test_plans_in_all_conventions_take_the_same_steps(kind):
    """The same steps at the base mean the same steps at the target, whose matrices are larger."""
    reference = o1.plan(mlp(128), base=mlp(32), optimizer="muon", lr={"muon": 0.02, "adamw": 1e-3})
    shape = reference["2.weight"].base_shape
    assert shape is not None
    for convention in (*MUON_CONVENTIONS, *ALIASES):
        lr = convert_muon_lr(0.02, shape, "original", convention)
        optimizer = in_convention(kind, convention)
        plan = o1.plan(mlp(128), base=mlp(32), optimizer=optimizer, lr={"muon": lr, "adamw": 1e-3})
        plan.apply()
        row = plan["2.weight"]
        assert row.default_lr == pytest.approx(reference["2.weight"].lr)
        made: Any = plan.optimizer()
        group = made.parts["muon"].param_groups[0]
        assert muon_factor(row.shape, group["adjust_lr_fn"]) == muon_factor(row.shape, convention)
        assert plan["0.weight"].convention is None
        plan.check(made)


def test_the_convention_is_saved_with_the_plan(tmp_path):
    optimizer = in_convention(torch.optim.Muon, "match_rms_adamw")
    plan = o1.plan(mlp(64), base=mlp(32), optimizer=optimizer, lr=0.02)
    plan.save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json")
    groups = loaded.param_groups(mlp(64))
    hidden = [group for group in groups if group["name"] == "hidden"]
    assert [group["adjust_lr_fn"] for group in hidden] == ["match_rms_adamw"]
    exported = json.loads(str(plan.export("json")))["groups"]
    conventions = {group["optimizer"]: group.get("adjust_lr_fn") for group in exported}
    assert conventions == {"muon": "match_rms_adamw", "adamw": None}


def test_another_convention_than_the_plans_is_refused():
    plan = o1.plan(mlp(64), base=mlp(32), optimizer="muon", lr=0.02)
    plan.apply()
    with refuses("invalid-argument", argument="adjust_lr_fn"):
        plan.optimizer(adjust_lr_fn="match_rms_adamw")
    optimizer: Any = plan.optimizer()
    optimizer.parts["muon"].param_groups[0]["adjust_lr_fn"] = "match_rms_adamw"
    with refuses("invalid-argument", argument="adjust_lr_fn"):
        plan.check(optimizer)


def test_absolute_rates_are_for_the_convention_of_the_step():
    """(d_o / d_i)^1/2 in total, whatever part of it the step applies."""
    steps = []
    for convention in MUON_CONVENTIONS:
        optimizer = in_convention(Muon, convention)
        plan = o1.plan(mlp(64), base="absolute", rule="mup", optimizer=optimizer, lr=0.02)
        row = plan["2.weight"]
        steps.append(row.lr * muon_factor(row.shape, convention))
    assert steps == pytest.approx([0.02 * 3**0.5] * 4)


@pytest.mark.slow
@pytest.mark.parametrize("convention", MUON_CONVENTIONS)
def test_a_check_passes_in_every_convention(convention):
    check = o1.coord_check(
        mlp, widths=[32, 64, 128, 256], batches=batch(), steps=3, seeds=2, lr=0.02,
        optimizer=in_convention(Muon, convention),
    )  # fmt: skip
    assert check.passed, str(check)


# --- stacks of experts ----------------------------------------------------------------------------


def planned(width: int, base: int = 16, **options: Any) -> o1.Plan:
    torch.manual_seed(0)
    lr = {"muon": 0.02, "adamw": 3e-3}
    return o1.plan(
        Mixture(width), base=Mixture(base), optimizer="muon", lr=lr, inputs=batch()[0], **options
    )


def test_muon_takes_experts_and_leaves_convolutions():
    plan = planned(32)
    taken = {row.name for row in plan.rows if row.optimizer == "muon"}
    assert taken == {"moe.experts.up", "moe.experts.down"}
    for name in taken:  # both dimensions grow alike: the rate of each expert stays
        assert plan[name].lr == pytest.approx(0.02)
    plan.apply()
    made: Any = plan.optimizer()
    assert type(made.parts["muon"]) is Muon
    with refuses("unknown-name", argument="lr"):  # no tensor is left for Muon
        planned(32, overrides={"moe.experts.*": "readout"})


def test_more_experts_do_not_change_the_rate_of_one():
    torch.manual_seed(0)
    plan = o1.plan(
        Mixture(16, 8), base=Mixture(16, 4), optimizer="muon", lr=0.02, inputs=batch()[0]
    )
    assert plan["moe.experts.up"].lr == pytest.approx(0.02)
    assert plan["moe.experts.down"].lr == pytest.approx(0.02)


def test_experts_are_trained_and_every_one_is_orthogonalized():
    plan = planned(16)
    before = plan.bound().state_dict()["moe.experts.up"].clone()
    trained = o1.train(plan, batch(), steps=1, device="cpu")
    step = trained.model.state_dict()["moe.experts.up"] - before * (1 - 0.02 * 0.1)
    singular = torch.linalg.svdvals(step) / 0.02
    assert singular.shape == (4, 16)
    assert float(singular.max()) < 1.3
    assert float(singular.median()) > 0.3
    assert o1.train(planned(16), batch(), steps=20, device="cpu").losses[-1] < trained.losses[0]


@pytest.mark.slow
def test_a_check_of_experts_passes():
    generator = torch.Generator().manual_seed(0)
    batches: list[tuple[Tensor, Tensor]] = []
    for _ in range(4):
        inputs = torch.randn(32, 8, generator=generator)
        batches.append((inputs, inputs[:, :3].argmax(dim=1)))
    check = o1.coord_check(
        Mixture, widths=[16, 32, 64, 128], batches=batches, steps=4, seeds=3,
        lr={"muon": 0.02, "adamw": 3e-3}, optimizer="muon",
    )  # fmt: skip
    assert check.passed, str(check)


def test_a_sweep_stacks_experts():
    options: dict[str, Any] = {
        "widths": [8, 16],
        "steps": 4,
        "data": batch(),
        "optimizer": "muon",
        "device": "cpu",
    }
    space = {"lr.muon": [0.01, 0.03], "lr.adamw": [1e-3]}
    stacked = o1.sweep(Mixture, space=space, stacked=True, **options)
    alone = o1.sweep(Mixture, space=space, stacked=False, **options)
    assert list(stacked.frame["loss"]) == pytest.approx(list(alone.frame["loss"]), rel=1e-2)


def test_a_sweep_stacks_a_convention():
    optimizer = in_convention(torch.optim.Muon, "spectral")
    options: dict[str, Any] = {"widths": [16, 32], "steps": 4, "data": batch(), "device": "cpu"}
    space = {"lr": [1e-2, 1e-1]}
    stacked = o1.sweep(mlp, space=space, stacked=True, optimizer=optimizer, **options)
    alone = o1.sweep(mlp, space=space, stacked=False, optimizer=optimizer, **options)
    named = o1.sweep(mlp, space=space, stacked=True, optimizer="muon:spectral", **options)
    assert list(stacked.frame["loss"]) == list(named.frame["loss"])
    plain = o1.sweep(mlp, space=space, stacked=True, optimizer="muon", **options)
    assert list(stacked.frame["loss"]) == pytest.approx(list(alone.frame["loss"]), rel=1e-2)
    assert list(stacked.frame["loss"]) != pytest.approx(list(plain.frame["loss"]), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"params": None}, "params"),
        ({"params": (1, 2)}, "params"),
        ({"params": []}, "params"),
        ({"lr": -1.0}, "lr"),
        ({"momentum": "much"}, "momentum"),
        ({"ns_coefficients": (1.0, 2.0)}, "ns_coefficients"),
        ({"ns_steps": 0}, "ns_steps"),
        ({"nesterov": "yes"}, "nesterov"),
    ],
)
def test_bad_settings_are_named(options, argument):
    with pytest.raises(InputError) as caught:
        Muon(**{"params": [nn.Parameter(torch.ones(2, 2))], **options})
    assert caught.value.argument == argument
