"""Initial sizes that the model's own code sets by its depth stay, unless a rule for depth is asked
for; the rule for the width replaces the dependence on width."""

# pyright: reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import copy

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.core.errors import code_of

INPUTS = torch.zeros(2, 12)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.scale * self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """A residual network with initial sizes of its own: `size(fan_in)` for matrices, times
    `last(layer, depth)` for the last matrix of a branch."""

    def __init__(self, width, depth, size, last, gain=lambda depth: 1.0):
        super().__init__()
        self.stem = nn.Linear(12, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 5)
        torch.manual_seed(width + depth)
        for layer, block in enumerate(self.blocks):
            nn.init.normal_(block.up.weight, std=size(width))
            nn.init.normal_(block.down.weight, std=size(4 * width) * last(layer, depth))
            nn.init.constant_(block.scale, gain(depth))
        nn.init.normal_(self.head.weight, std=size(width))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def constant(fan_in):
    return 0.02


def by_fan_in(fan_in):
    return fan_in**-0.5


def residual(layer, depth):
    return (2 * depth) ** -0.5


def by_layer(layer, depth):
    return (layer + 1) ** -0.5


def unscaled(layer, depth):
    return 1.0


def sizes(plan, name):
    return [row.init_std for row in plan.rows if row.name.endswith(name)]


@pytest.mark.parametrize("size", [constant, by_fan_in])
@pytest.mark.parametrize("last", [residual, by_layer, unscaled])
@pytest.mark.parametrize(("width", "depth"), [(64, 8), (128, 8), (256, 3), (128, 4)])
def test_the_own_dependence_on_depth_stays(size, last, width, depth):
    """The rule replaces the dependence on width: sizes are those of a model with the width of the
    base and the depth of the target, times the factor of muP."""
    plan = o1.plan(Net(width, depth, size, last), base=Net(64, 2, size, last))
    rule = (width / 64) ** -0.5
    expected = [size(256) * last(layer, depth) * rule for layer in range(depth)]
    assert sizes(plan, "down.weight") == pytest.approx(expected, rel=0.04)
    assert sizes(plan, "up.weight") == pytest.approx([size(64) * rule] * depth, rel=0.04)
    codes = [code_of(note) for note in plan.notes]
    assert ("own-depth-kept" in codes) == (last is not unscaled)
    plan.apply()
    down = plan.tensors()[f"blocks.{depth - 1}.down.weight"]
    assert float(down.detach().std()) == pytest.approx(expected[-1], rel=0.04)


def test_a_coincidence_of_width_and_depth_is_decided_by_the_other_matrices():
    """Twice the width and twice the depth: fan-in^-1/2 and L^-1/2 are the same number."""
    plan = o1.plan(Net(128, 4, constant, residual), base=Net(64, 2, constant, residual))
    assert sizes(plan, "down.weight") == pytest.approx([0.02 / 8**0.5 / 2**0.5] * 4, rel=0.04)


def test_torch_draws_by_shape_only():
    def build(width, depth):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, width), *(nn.Linear(width, width) for _ in range(depth)))

    plan = o1.plan(build(128, 8), base=build(64, 2))
    for row in plan.rows:
        assert row.own_depth == 1
    assert plan["5.weight"].init_std == pytest.approx((3 * 64) ** -0.5 / 2**0.5)


def test_constants_that_depend_on_depth_stay():
    def build(width, depth):
        return Net(width, depth, by_fan_in, unscaled, gain=lambda depth: 1 / depth)

    plan = o1.plan(build(128, 8), base=build(64, 2))
    assert [row.constant for row in plan.rows if row.name.endswith("scale")] == [0.125] * 8


def test_what_cannot_be_separated_is_refused():
    """The last matrix of a branch is the only one with a size of its own, and a power of the width
    explains it as well as one of the depth."""

    def build(width, depth):
        net = Net(width, depth, constant, lambda layer, depth: width**-0.5)
        for module in [net.head, *(block.up for block in net.blocks)]:
            module.reset_parameters()
        return net

    with refuses("own-depth-unknown", argument="depth") as caught:
        o1.plan(build(128, 4), base=build(64, 2))
    assert "base=build(" in str(caught.value)
    plan = o1.plan(build(128, 4), base=build(64, 4))  # the remedy
    assert plan["blocks.0.down.weight"].init_std == pytest.approx(0.02 / 8 / 2**0.5, rel=0.04)
    o1.plan(build(128, 4), base=build(64, 2), depth="sqrt", inputs=INPUTS)  # the other one


def test_a_model_without_memory_is_refused_if_its_code_is_unknown():
    with torch.device("meta"):
        model = Net(128, 8, constant, residual)
    with refuses("own-depth-unknown", argument="depth"):
        o1.plan(model, base=Net(64, 2, constant, residual))


def test_hugging_face_models_keep_it(tmp_path):
    transformers = pytest.importorskip("transformers")

    def gpt2(width, layers):
        config = transformers.GPT2Config(
            n_embd=width, n_head=4, n_layer=layers, vocab_size=97, n_positions=32, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config)

    expected = 0.02 / 16**0.5 / 2**0.5
    name = "transformer.h.{}.mlp.c_proj.weight"
    with torch.device("meta"):
        large = gpt2(128, 8)
    saved = o1.plan(large, base=gpt2(64, 2), probe=False)
    saved.save(tmp_path / "plan.json")
    bases = [gpt2(64, 2), {"n_embd": 64, "n_layer": 2}, saved, tmp_path / "plan.json"]
    for base in bases:
        plan = o1.plan(large, base=base, probe=False)
        for layer in (0, 7):
            assert plan[name.format(layer)].init_std == pytest.approx(expected, rel=0.03)
        assert plan["transformer.h.7.mlp.c_fc.weight"].init_std == pytest.approx(0.02 / 2**0.5)
        assert "own-depth-kept" in [code_of(note) for note in plan.notes]


def test_the_factors_survive_training_and_files(tmp_path):
    """A plan of the same model is continued from its file: trained sizes are not initial ones."""

    def build():
        return Net(128, 8, constant, residual)

    plan = o1.plan(build(), base=Net(64, 2, constant, residual))
    model = plan.apply()
    plan.save(tmp_path / "plan.json")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    again = o1.plan(copy.deepcopy(model), base=tmp_path / "plan.json")
    assert again.applied
    assert [row.init_std for row in again.rows] == [row.init_std for row in plan.rows]


def test_a_rule_for_depth_replaces_it_and_says_when_it_has_no_effect():
    base = Net(64, 2, constant, residual)
    plan = o1.plan(Net(128, 8, constant, residual), base=base, depth="sqrt", inputs=INPUTS)
    assert sizes(plan, "down.weight") == pytest.approx([0.02 / 2 / 2**0.5 / 2] * 8, rel=0.04)
    plan = o1.plan(Net(128, 2, constant, residual), base=base, depth="sqrt", inputs=INPUTS)
    assert "depth-without-effect" in [code_of(note) for note in plan.notes]
