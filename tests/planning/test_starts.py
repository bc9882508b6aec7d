"""Starts: `init=` against hand-written initializations, and what it must not change."""

# pyright: reportCallIssue=false
# pyright: reportArgumentType=false

import math

import pytest
import torch
from support.errors import refuses
from support.zoo import ZOO
from torch import nn

import orderone as o1
from orderone.rules import starts

WIDTH = 32


def small(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(11, width),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.LayerNorm(width),
        nn.Linear(width, 5),
    )


def fan_in_of(module: nn.Module, name: str, parameter: torch.Tensor) -> float | None:
    """Return 1 / size^2 of a tensor as one would write it by hand, None for gains and biases."""
    kind = type(module).__name__
    if parameter.dim() < 2 or "norm" in kind.lower():
        return None
    if isinstance(module, nn.Embedding):
        return 1.0
    if kind == "Conv1D":
        return parameter.shape[0]
    if isinstance(module, (nn.LSTM, nn.Linear)) or name == "in_proj_weight":
        return parameter.shape[1]
    if isinstance(module, nn.Conv2d):
        return math.prod(parameter.shape[1:])
    raise AssertionError(kind)


def by_hand(model: nn.Module, tied: bool) -> None:
    """Draw matrices with variance 1 / fan-in and tables with variance 1, in the model's order."""
    seen: set[int] = set()
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                fan_in = fan_in_of(module, name, parameter)
                if fan_in is None or id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                if tied and isinstance(module, nn.Embedding):
                    fan_in = parameter.shape[1]
                parameter.normal_(std=fan_in**-0.5)
                if getattr(module, "padding_idx", None) is not None:
                    parameter[module.padding_idx] = 0.0


ARCHITECTURES = (
    *("gpt2", "gpt2-untied", "llama-gqa", "mistral", "phi3", "qwen3", "gpt-neox", "stablelm"),
    *("mlp", "cnn-depthwise", "cnn-groupnorm", "resnet-basic", "lstm", "nn-transformer"),
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fan_in_at_base_size_is_the_hand_written_initialization(name):
    entry = ZOO[name]
    torch.manual_seed(0)
    ours, hand = entry.build(WIDTH).double(), entry.build(WIDTH).double()
    hand.load_state_dict(ours.state_dict())
    plan = o1.plan(ours, base=entry.build(WIDTH).double(), init="fan-in", probe=False)
    torch.manual_seed(1)
    plan.apply()
    torch.manual_seed(1)
    by_hand(hand, tied=name == "gpt2")
    state = ours.state_dict()
    for key, value in hand.state_dict().items():
        assert torch.equal(state[key], value), key


def test_keep_changes_no_bit():
    torch.manual_seed(0)
    model = small(WIDTH)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    o1.plan(model, base=small(WIDTH), init="keep").apply()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    target, other = small(64), small(64)
    other.load_state_dict(target.state_dict())
    base = small(WIDTH)
    o1.plan(target, base=base, init="keep").apply()
    o1.plan(other, base=base).apply()
    for one, two in zip(target.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("start", starts.names())
def test_base_and_target_change_together(start):
    """Factors of the rule are those without a start, and sizes are base times factor."""
    entry = ZOO["llama"]
    plain = o1.plan(entry.build(64), base=entry.build(WIDTH), lr=1e-2)
    plan = o1.plan(entry.build(64), base=entry.build(WIDTH), lr=1e-2, init=start)
    at_base = o1.plan(entry.build(WIDTH), base=entry.build(WIDTH), lr=1e-2, init=start)
    for row, other, base in zip(plan.rows, plain.rows, at_base.rows, strict=True):
        assert (row.factors, row.lr) == (other.factors, other.lr)
        assert row.base_std == base.init_std
        assert math.isclose(row.init_std, base.init_std * row.factors.std)


def test_orthogonal_matrices_are_orthogonal():
    plan = o1.plan(ZOO["lstm"].build(WIDTH), base=ZOO["lstm"].build(WIDTH), init="orthogonal")
    model = plan.apply()
    for name, parameter in model.named_parameters():
        if "weight_hh" in name:  # four gates, each by itself
            for gate in parameter.detach().chunk(4):
                assert torch.allclose(gate @ gate.T, torch.eye(WIDTH), atol=1e-5)
    [wide] = [row for row in plan.rows if row.name == "head.weight"]
    columns = model.get_parameter("head.weight").detach()
    gram = columns.T @ columns * WIDTH / columns.shape[0]
    assert torch.allclose(gram, torch.eye(WIDTH), atol=1e-5)
    assert math.isclose(wide.init_std, WIDTH**-0.5)


def test_transposed_and_grouped_convolutions_have_outputs_of_order_one():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1, groups=4),
        nn.Conv2d(64, 64, 3, padding=1, groups=8),
    )
    o1.plan(model, base=model, init="fan-in").apply()
    x = torch.randn(4, 3, 16, 16)
    for layer in model:
        layer.bias.data.zero_()
        x = layer(x)
        assert 0.7 < x[..., 4:-4, 4:-4].std() < 1.3


def test_fan_out_of_a_convolution_counts_the_outputs_of_one_input():
    """As in Glorot & Bengio: the size of gradients follows from it."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.Conv2d(32, 64, 4, stride=4),
        nn.Conv2d(64, 64, 5, padding=2, groups=64),
        nn.Conv2d(64, 64, 3, padding=1, groups=4),
        nn.ConvTranspose2d(64, 32, 4, stride=2, groups=2),
    )
    plan = o1.plan(model, base=model, init="xavier", probe=False)
    fans = [(27, 288), (288, 288), (512, 64), (25, 25), (144, 144), (128, 256)]
    for k, (fan_in, fan_out) in enumerate(fans):
        assert math.isclose(plan[f"{k}.weight"].base_std, (2 / (fan_in + fan_out)) ** 0.5)
    plan.apply()
    hand = torch.empty_like(model[1].weight)
    torch.nn.init.xavier_normal_(hand)
    assert math.isclose(float(model[1].weight.detach().std()), float(hand.std()), rel_tol=0.03)


def test_constants_of_the_forward_code_count():
    sizes = {}
    for name in ("gemma", "t5"):
        entry = ZOO[name]
        plan = o1.plan(entry.build(64), base=entry.build(WIDTH), init="fan-in")
        sizes[name] = {row.name.split(".")[-2]: row.base_std for row in plan.rows}
    assert math.isclose(sizes["gemma"]["embed_tokens"], WIDTH**-0.5, rel_tol=1e-3)
    assert math.isclose(sizes["t5"]["shared"], 1.0, rel_tol=1e-3)
    assert math.isclose(sizes["t5"]["q"], (WIDTH * 16) ** -0.5, rel_tol=1e-3)  # T5's own


def test_experts_and_routers():
    entry = ZOO["mixtral"]
    plan = o1.plan(
        entry.build(64), base=entry.build(WIDTH), init={"default": "fan-in", "readout": "zero"}
    )
    assert plan["lm_head.weight"].init_std == 0
    routers = [row for row in plan.rows if row.name.endswith("gate.weight")]
    assert routers
    assert all(row.init_std > 0 for row in routers)
    assert any("[inner-readout]" in note for note in plan.notes)
    for row in plan.rows:
        if row.name.endswith("experts.down_proj"):
            assert row.base_shape is not None
            assert math.isclose(row.base_std, row.base_shape[-1] ** -0.5)


def test_weight_norm_gets_lengths():
    def build(width):
        model = small(width)
        model[1] = nn.utils.parametrizations.weight_norm(model[1])
        return model

    model = build(64)
    batch = torch.randint(11, (4, 6))
    o1.plan(model, base=build(WIDTH), init="fan-in", inputs=batch).apply()
    assert math.isclose(
        float(model[1].weight.detach().square().mean().sqrt()), 64**-0.5, rel_tol=0.02
    )


def test_meta_device_and_padding():
    def build(width):
        return nn.Sequential(nn.Embedding(11, width, padding_idx=2), nn.Linear(width, width))

    with torch.device("meta"):
        model = build(64)
    plan = o1.plan(model, base=build(WIDTH), init={"default": "fan-in", "0.weight": 0.5})
    model.to_empty(device="cpu")
    plan.apply()
    table = model[0].weight.detach()
    assert not table[2].any()
    assert math.isclose(float(table[3:].square().mean().sqrt()), 0.5, rel_tol=0.15)


def test_a_saved_plan_has_its_start(tmp_path):
    entry = ZOO["nano-gpt"]
    batch = entry.batch(0)
    made = o1.plan(entry.build(64), base=entry.build(WIDTH), init="zero-residual", inputs=batch)
    assert "start: zero-residual" in str(made)
    made.save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json")
    assert loaded.rows == made.rows
    again = o1.plan(entry.build(128), base=loaded, inputs=batch)
    assert again.settings.init == "zero-residual"
    assert [row.draw for row in again.rows] == [row.draw for row in made.rows]
    assert {row.name for row in again.rows if row.init_std == 0} == {
        row.name for row in made.rows if row.init_std == 0
    }


@pytest.mark.parametrize(
    ("init", "code"),
    [
        ("fan-out", "unknown-name"),
        ("zero", "invalid-argument"),
        ({"hidden": "zero"}, "invalid-argument"),
        ({"default": "fan-in", "decoder": 1.0}, "unknown-name"),
        ({"*.bias": 0.5}, "invalid-argument"),
        (-1.0, "invalid-argument"),
        ("zero-residual", "needs-example-batch"),
    ],
)
def test_wrong_starts_are_refused(init, code):
    with refuses(code, argument="init"):
        o1.plan(small(64), base=small(WIDTH), init=init)


def test_absolute_mode_has_no_start():
    with refuses("absolute-mode", argument="init"):
        o1.plan(small(64), base="absolute", init="fan-in")


def test_members_of_one_stack_have_different_starts():
    batch = (torch.randint(11, (8,)), torch.randint(5, (8,)))
    space = {"lr": [1e-2], "init": ["keep", "fan-in", "zero-readout"], "init.0.weight": [0.5, 1.0]}
    losses = {}
    for stacked in (True, False):
        study = o1.sweep(
            small, space, widths=[16, 32], data=batch, steps=3, stacked=stacked, device="cpu"
        )
        losses[stacked] = study.frame.set_index("key")["loss"]
    assert len(losses[True]) == 12
    assert losses[True].nunique() == 12
    assert torch.allclose(
        torch.tensor(losses[True].values),
        torch.tensor(losses[False][losses[True].index].values),
        atol=1e-5,
    )


def test_the_start_of_the_base_is_compared_with_order_one():
    entry = ZOO["llama"]
    kept = o1.plan(entry.build(64), base=entry.build(WIDTH)).start
    assert any("[start-too-small]" in finding for finding in kept.findings)
    ratios = {size.name: size.ratio for size in kept.sizes}
    query = ratios["model.layers.0.self_attn.q_proj.weight"]
    assert math.isclose(query, 0.02 * WIDTH**0.5, rel_tol=0.05)
    assert math.isclose(ratios["model.embed_tokens.weight"], 0.02, rel_tol=0.05)
    good = o1.plan(entry.build(64), base=entry.build(WIDTH), init="fan-in").start
    assert not good.findings
    assert {round(size.ratio, 9) for size in good.sizes} == {1.0}
    large = o1.plan(entry.build(64), base=entry.build(WIDTH), init="fan-in", init_scale=5.0).start
    assert any("[start-too-large]" in finding for finding in large.findings)


def size_by_hand(start: str, name: str, module: nn.Linear | nn.Embedding, layers: int) -> float:
    """Return the initial size of a tensor of a Llama, from the formulas in the documentation."""
    width = WIDTH
    is_readout = name == "lm_head"
    ends_branch = name.endswith(("o_proj", "down_proj"))
    if isinstance(module, nn.Embedding):
        return 0.02 if start == "completep" else 1.0
    fan_in = module.in_features
    if start == "xavier":
        return (2 / (fan_in + module.out_features)) ** 0.5
    if (start == "zero-readout" and is_readout) or (start == "zero-residual" and ends_branch):
        return 0.0
    if start == "completep":
        if is_readout:
            return 0.02 * 256 / width
        return 0.02 * (256 / width) ** 0.5 * (2 / layers if ends_branch else 1)
    powers = {"neural-tangent": -1 / 2, "hybrid": -3 / 4, "maximal-update": -1}
    if is_readout and start in powers:
        return width ** powers[start]
    return fan_in**-0.5


NAMED = ("xavier", "zero-readout", "zero-residual", "completep", "neural-tangent", "hybrid")


@pytest.mark.parametrize("start", [*NAMED, "maximal-update"])
@pytest.mark.parametrize(
    "name",
    [
        "llama-gqa",
        pytest.param("mistral", marks=pytest.mark.slow),
        pytest.param("qwen3", marks=pytest.mark.slow),
        pytest.param("stablelm", marks=pytest.mark.slow),
    ],
)
def test_named_starts_are_hand_written_initializations(name, start):
    """In float64 and bit for bit: zeros take nothing from the random state."""
    entry = ZOO[name]
    ours, hand = entry.build(WIDTH).double(), entry.build(WIDTH).double()
    hand.load_state_dict(ours.state_dict())
    plan = o1.plan(ours, base=entry.build(WIDTH).double(), init=start, inputs=entry.batch(0))
    torch.manual_seed(1)
    plan.apply()
    torch.manual_seed(1)
    layers = len([key for key, _ in hand.named_modules() if key.endswith(".mlp")])
    with torch.no_grad():
        for key, module in hand.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                size = size_by_hand(start, key, module, layers)
                if size:
                    module.weight.normal_(std=size)
                else:
                    module.weight.zero_()
    for key, value in hand.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key
