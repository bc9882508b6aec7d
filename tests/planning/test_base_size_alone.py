"""Roles at base size alone: equal sizes by accident change no role without a word.

Settings by role, starts and the choice of tensors for Muon need a role where nothing grows. Sizes
that are equal by accident change none of them; or the plan refuses, and names the tensor.
"""

# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

from collections.abc import Mapping

import pytest
import torch
from support.accidents import ACCIDENTS, ARCHITECTURES, Chain, Sizes
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.planning.build import family

BY_ROLE = {"embedding": 0.5, "hidden": 0.25, "readout": 0.125}  # sizes that tell roles apart
GENERIC = Sizes()


def plan_of(name: str, sizes: Sizes, factor: int = 1, **options: object) -> o1.Plan:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    return o1.plan(
        architecture.build(sizes.times(factor)).double(),
        base=architecture.build(sizes).double(),
        lr=1e-2,
        inputs=architecture.batch(sizes),
        **options,
    )


def roles_of(plan: o1.Plan) -> dict[str, str]:
    """Return the roles that the keys of `BY_ROLE` found."""
    by_size = {size: role for role, size in BY_ROLE.items()}
    return {row.name: by_size[row.base_std] for row in plan.rows if row.draw is not None}


def outputs_like_a_width(name: str, sizes: Sizes) -> bool:
    """Return whether a readout has as many outputs as an inner matrix."""
    if name == "tied":
        return False
    outputs = sizes.features if name == "denoiser" else sizes.classes
    return outputs in (sizes.width, sizes.inner)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_an_accident_changes_no_role(name, accident):
    sizes = ACCIDENTS[accident]
    by_role = dict(BY_ROLE)
    if name == "tied":  # its readout is the embedding
        del by_role["readout"]
    expected = roles_of(plan_of(name, GENERIC, factor=2, init=by_role))
    readouts = {f"{module}.weight" for module in ARCHITECTURES[name].readouts}
    assert readouts <= {name for name, role in expected.items() if role == "readout"}
    if outputs_like_a_width(name, sizes):
        with refuses("ambiguous-role", argument="init") as caught:
            plan_of(name, sizes, init=by_role)
        assert any(readout in str(caught.value) for readout in readouts)
        overrides = dict.fromkeys(readouts, "readout")
        assert roles_of(plan_of(name, sizes, init=by_role, overrides=overrides)) == expected
    else:
        assert roles_of(plan_of(name, sizes, init=by_role)) == expected
    # where the widths of model and base differ, they decide, and nothing is refused
    assert roles_of(plan_of(name, sizes, factor=2, init=by_role)) == expected


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "tied"])
@pytest.mark.parametrize("accident", ["classes = small inner", "classes = width"])
def test_the_start_with_a_zero_readout_is_the_hand_written_one(name, accident):
    sizes = ACCIDENTS[accident]
    readouts = [f"{module}.weight" for module in ARCHITECTURES[name].readouts]
    if outputs_like_a_width(name, sizes):
        with refuses("ambiguous-role", argument="init"):
            plan_of(name, sizes, init="zero-readout")
    plan = plan_of(name, sizes, init="zero-readout", overrides=dict.fromkeys(readouts, "readout"))
    torch.manual_seed(1)
    ours = plan.apply()
    theirs = by_hand(name, sizes)
    for key, value in theirs.items():
        assert torch.equal(ours.get_parameter(key), value), key


def by_hand(name: str, sizes: Sizes) -> Mapping[str, torch.Tensor]:
    """Return the parameters of a start that is written without the library."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = architecture.build(sizes).double()
    tables = {f"{key}.weight" for key, m in model.named_modules() if isinstance(m, nn.Embedding)}
    readouts = {f"{module}.weight" for module in architecture.readouts}
    torch.manual_seed(1)
    for key, value in model.named_parameters():
        if value.dim() == 1:
            continue
        with torch.no_grad():
            if key in readouts:
                value.zero_()
            elif key in tables:
                value.normal_()
            elif key in ("up", "down"):  # experts: each matrix is summed over its second axis
                value.normal_(std=value.shape[1] ** -0.5)
            else:
                value.normal_(std=value[0].numel() ** -0.5)
    return dict(model.named_parameters())


@pytest.mark.parametrize("name", ["chain", "early head", "language model", "two heads"])
def test_a_readout_that_is_called_a_head_is_one(name):
    sizes = Sizes(classes=16)
    architecture = ARCHITECTURES[name]

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = architecture.build(sizes)
            self.head = self.body.write
            self.body.write = nn.Identity()

        def forward(self, x):
            output = self.body(x)
            if isinstance(output, tuple):
                return self.head(output[0]), output[1]
            return self.head(output)

    batch = architecture.batch(sizes)
    plan = o1.plan(Named().double(), base=Named().double(), inputs=batch, init="zero-readout")
    assert plan["head.weight"].base_std == 0


@pytest.mark.parametrize("name", ["chain", "early head", "two heads"])
def test_the_widths_of_a_sweep_decide_at_its_smallest_one(name):
    architecture = ARCHITECTURES[name]
    sizes = Sizes(classes=16)
    small = architecture.build(sizes).double()
    large = architecture.build(sizes.times(2)).double()
    plans = family(large, small, lr=1e-2, inputs=architecture.batch(sizes), init="zero-readout")
    at_base = plans.plan(architecture.build(sizes).double())
    assert at_base["write.weight"].base_std == 0


@pytest.mark.parametrize("name", ["chain", "early head", "policy and value", "recurrent"])
def test_muon_takes_no_readout_by_accident(name):
    for accident in ("classes = 2 widths", "classes = features", "features = width"):
        plan = plan_of(name, ACCIDENTS[accident], optimizer="muon")
        assert plan["write.weight"].optimizer == "adamw", accident
        if name != "recurrent":
            assert plan["read.weight"].optimizer == "adamw", accident
    sizes = ACCIDENTS["classes = width"]
    with refuses("ambiguous-role", argument="overrides"):
        plan_of(name, sizes, optimizer="muon")
    chosen = plan_of(name, sizes, optimizer="muon", overrides={"write.weight": "readout"})
    assert chosen["write.weight"].optimizer == "adamw"
    hidden = plan_of(name, sizes, optimizer="muon", overrides={"write.weight": "hidden"})
    assert hidden["write.weight"].optimizer == "muon"


def test_an_encoder_may_have_a_width_as_output():
    """One size cannot tell it from a classifier; two can."""

    class Encoder(Chain):
        def __init__(self, sizes):
            super().__init__(sizes)
            self.write = nn.Linear(sizes.width, sizes.width)

    batch = GENERIC.values
    with refuses("ambiguous-role", argument="init"):
        o1.plan(
            Encoder(GENERIC).double(),
            base=Encoder(GENERIC).double(),
            inputs=batch,
            init="zero-readout",
        )
    plan = o1.plan(
        Encoder(GENERIC.times(2)).double(),
        base=Encoder(GENERIC).double(),
        inputs=batch,
        init="zero-readout",
    )
    assert plan["write.weight"].base_std not in (None, 0)
    same_at_both = o1.plan(
        Encoder(GENERIC).double(), base=Encoder(GENERIC).double(), inputs=batch, init="fan-in"
    )
    assert same_at_both["write.weight"].base_std == 0.25


def test_roles_without_a_forward_pass_are_named_as_guessed():
    build = ARCHITECTURES["early head"].build
    for options in (
        {"init": "zero-readout"},
        {"optimizer": "muon"},
        {"lr": {"default": 1, "hidden": 2}},
    ):
        plan = o1.plan(build(GENERIC), base=build(GENERIC), **options)
        assert any("[guessed-roles]" in note for note in plan.notes), options
        larger = o1.plan(build(GENERIC.times(2)), base=build(GENERIC), rule="mup", lr=1e-2)
        assert not any("[guessed-roles]" in note for note in larger.notes)
    plain = o1.plan(build(GENERIC), base=build(GENERIC), lr=1e-2)
    assert not any("[guessed-roles]" in note for note in plain.notes)


def test_absolute_mode_names_a_readout_that_counts_as_hidden():
    build = ARCHITECTURES["chain"].build
    for sizes, doubtful in ((GENERIC, False), (Sizes(classes=16), True)):
        plan = o1.plan(build(sizes), base="absolute", lr=1e-2)
        assert any("[guessed-roles]" in note for note in plan.notes) == doubtful
        assert plan["write.weight"].role == ("hidden" if doubtful else "readout")
    overrides = {"write.weight": "readout"}
    plan = o1.plan(build(Sizes(classes=16)), base="absolute", lr=1e-2, overrides=overrides)
    assert not any("[guessed-roles]" in note for note in plan.notes)
    language_model = ARCHITECTURES["tied"].build(GENERIC)
    plan = o1.plan(language_model, base="absolute", lr=1e-2)  # ends inside of a block
    assert not any("[guessed-roles]" in note for note in plan.notes)
