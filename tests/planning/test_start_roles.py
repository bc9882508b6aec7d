"""Starts of tensors whose role the shapes alone do not show: they are the same at all sizes."""

# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

import math

import pytest
import torch
from support.errors import refuses
from support.zoo import ZOO
from torch import nn

import orderone as o1

BASE = 16


class Positions(nn.Module):
    """Learned rows, without a hint in their name, that are added to a stream or joined to it."""

    def __init__(self, width: int):
        super().__init__()
        self.read = nn.Linear(5, width)
        self.rows = nn.Parameter(0.02 * torch.randn(6, width))
        self.registers = nn.Parameter(0.02 * torch.randn(1, 3, width))
        self.shifts = nn.Parameter(torch.zeros(9, width))  # a bias for every row
        self.hidden = nn.Linear(width, width)
        self.write = nn.Linear(width, 4)

    def forward(self, x):
        x = self.read(x) + self.rows
        x = torch.cat([x, self.registers.expand(len(x), -1, -1)], 1)
        return self.write(torch.relu(self.hidden(x)) + self.shifts)


class Latents(nn.Module):
    """Queries from a learned table, keys and values from features of another size."""

    def __init__(self, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, width))
        self.attention = nn.MultiheadAttention(width, 2, kdim=7, vdim=7, batch_first=True)
        self.write = nn.Linear(width, 3)

    def forward(self, x):
        queries = self.table.expand(len(x), -1, -1)
        return self.write(queries + self.attention(queries, x, x, need_weights=False)[0])


class BothWays(nn.Module):
    """Two recurrent layers; the second reads the outputs of both directions of the first."""

    def __init__(self, width: int):
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.layers = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.write = nn.Linear(2 * width, 4)

    def forward(self, x):
        return self.write(self.layers(self.tokens(x))[0])


class Detector(nn.Module):
    """Learned queries read features; the first of two heads comes before a hidden matrix."""

    def __init__(self, width: int):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(4, width))
        self.layers = nn.ModuleList(Reader(width) for _ in range(3))
        self.label = nn.Linear(width, 5)
        self.box = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6))

    def forward(self, x):
        stream = self.queries.expand(len(x), -1, -1)
        for layer in self.layers:
            stream = layer(stream, x)
        return self.label(stream), self.box(stream)


class Reader(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, kdim=7, vdim=7, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, stream, x):
        stream = stream + self.attention(self.norm(stream), x, x, need_weights=False)[0]
        return stream + self.mlp(stream)


class Denoiser(nn.Module):
    """The output is as large as the input, and another input comes first."""

    def __init__(self, width: int):
        super().__init__()
        self.label = nn.Embedding(3, width)
        self.read = nn.Linear(8, width)
        self.hidden = nn.Linear(width, width)
        self.write = nn.Linear(width, 8)

    def forward(self, x, label):
        return self.write(torch.relu(self.hidden(self.read(x) + self.label(label))))


class Groups(nn.Module):
    """A residual block with a convolution in groups, and a depthwise one."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.grouped = nn.Conv2d(width, width, 3, padding=1, groups=8)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.back = nn.Conv2d(width, width, 1)
        self.write = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.back(self.depthwise(torch.relu(self.grouped(x))))
        return self.write(x.mean((2, 3)))


class Mixture(nn.Module):
    """Experts in bare tensors, whose names do not say so."""

    def __init__(self, width: int):
        super().__init__()
        self.read = nn.Linear(5, width)
        self.router = nn.Linear(width, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, width, 2 * width))
        self.down = nn.Parameter(torch.randn(4, 2 * width, width))
        self.write = nn.Linear(width, 3)

    def forward(self, x):
        x = self.read(x)
        weights = self.router(x).softmax(-1)
        inner = torch.relu(torch.einsum("bn,enm->bem", x, self.up))
        return self.write(
            x + (weights[..., None] * torch.einsum("bem,emn->ben", inner, self.down)).sum(1)
        )


def autoencoder(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 12)
    )


@pytest.mark.parametrize("probe", [True, False])
def test_a_table_of_positions_starts_like_a_lookup(probe):
    build = ZOO["vit"].build
    plan = o1.plan(build(64), base=build(32), lr=1e-2, init="fan-in", probe=probe)
    [row] = [row for row in plan.rows if "position" in row.name]
    assert (row.role, row.base_std, row.init_std) == ("embedding", 1.0, 1.0)
    assert row.name in {size.name for size in plan.start.sizes}


@pytest.mark.parametrize("width", [BASE, 4 * BASE])
def test_added_and_joined_rows_start_like_a_lookup(width):
    batch = torch.randn(4, 6, 5)
    plan = o1.plan(
        Positions(width),
        base=Positions(BASE),
        lr=1e-2,
        inputs=batch,
        init={"default": "fan-in", "embedding": 0.5},
    )
    assert plan["rows"].base_std == plan["registers"].base_std == 0.5
    assert plan["shifts"].draw is None  # equal entries: it may be a bias
    assert plan["hidden.weight"].base_std == BASE**-0.5


def test_queries_of_a_learned_table_are_the_hand_written_initialization():
    """The scale of the scores is 1 up to rounding, and the sizes are exact."""
    ours = Latents(12).double()
    hand = Latents(12).double()
    hand.load_state_dict(ours.state_dict())
    batch = torch.randn(2, 4, 7, dtype=torch.float64)
    plan = o1.plan(ours, base=Latents(12).double(), lr=1e-2, inputs=batch, init="fan-in")
    torch.manual_seed(1)
    plan.apply()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in hand.named_parameters():
            fan_in = 1 if name == "table" else parameter.shape[-1]
            if parameter.dim() == 2:
                parameter.normal_(std=fan_in**-0.5)
    for name, parameter in hand.named_parameters():
        assert torch.equal(ours.get_parameter(name), parameter), name
    large = o1.plan(
        Latents(48), base=Latents(12), lr=1e-2, inputs=batch.float(), init={"embedding": 0.5}
    )
    assert large["attention.q_proj_weight"].draw is None


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("width", [BASE, 4 * BASE])
def test_the_output_of_an_autoencoder_is_a_readout(width, traced):
    options = {"inputs": torch.randn(8, 12)} if traced else {"probe": False}
    plan = o1.plan(
        autoencoder(width), base=autoencoder(BASE), lr=1e-2, init="zero-readout", **options
    )
    assert plan["4.weight"].init_std == 0
    assert plan["2.weight"].init_std > 0
    assert not any("[bottleneck-size]" in note for note in plan.notes)


@pytest.mark.parametrize("width", [BASE, 4 * BASE])
def test_a_matrix_that_reads_joined_outputs_is_no_embedding(width):
    batch = torch.randint(11, (3, 6))
    plan = o1.plan(
        BothWays(width),
        base=BothWays(BASE),
        lr={"default": 1e-2, "embedding": 1e-1},
        inputs=batch,
        init={"default": "fan-in", "embedding": 0.5},
    )
    assert plan["tokens.weight"].base_std == 0.5
    inner = plan["layers.weight_ih_l1_reverse"]
    assert math.isclose(inner.base_std, (2 * BASE) ** -0.5)
    assert inner.lr <= 1e-2


@pytest.mark.parametrize("width", [BASE, 4 * BASE])
def test_every_head_is_a_readout_wherever_it_is_defined(width):
    batch = torch.randn(2, 6, 7)
    plan = o1.plan(Detector(width), base=Detector(BASE), lr=1e-2, inputs=batch, init="zero-readout")
    assert {row.name for row in plan.rows if row.init_std == 0 and row.draw} == {
        "label.weight",
        "box.2.weight",
    }


@pytest.mark.parametrize("width", [BASE, 4 * BASE])
def test_the_first_branch_may_be_added_to_a_learned_table(width):
    batch = torch.randn(2, 6, 7)
    plan = o1.plan(
        Detector(width), base=Detector(BASE), lr=1e-2, inputs=batch, init="zero-residual"
    )
    for k in range(3):
        assert plan[f"layers.{k}.attention.out_proj.weight"].init_std == 0
        assert plan[f"layers.{k}.attention.out_proj.bias"].init_std == 0
        assert plan[f"layers.{k}.mlp.2.weight"].init_std == 0
        assert plan[f"layers.{k}.mlp.0.weight"].init_std > 0


def test_layers_are_branches_and_not_numbers_in_names():
    batch = torch.randn(2, 6, 7)
    plan = o1.plan(Detector(BASE), base=Detector(BASE), inputs=batch, init="completep")
    size = 0.02 * (256 / BASE) ** 0.5
    for name in ("layers.1.attention.out_proj.weight", "layers.1.mlp.2.weight"):
        assert math.isclose(plan[name].base_std, size * 2 / 3)
    assert math.isclose(plan["layers.1.mlp.0.weight"].base_std, size)


@pytest.mark.parametrize("width", [BASE, 4 * BASE])
def test_a_matrix_that_reads_data_is_an_embedding_at_every_size(width):
    batch = (torch.randn(6, 8), torch.randint(3, (6,)))
    init = {"default": "fan-in", "embedding": 0.5}
    plan = o1.plan(Denoiser(width), base=Denoiser(BASE), lr=1e-2, inputs=batch, init=init)
    assert plan["read.weight"].base_std == plan["label.weight"].base_std == 0.5
    assert plan["hidden.weight"].base_std == BASE**-0.5


@pytest.mark.parametrize("width", [2 * BASE, 8 * BASE])
def test_a_group_of_channels_is_no_input_of_the_model(width):
    base = 2 * BASE
    init = {"default": "fan-in", "embedding": 0.5}
    rates = {"default": 1e-2, "embedding": 1e-1}
    batch = torch.randn(2, 3, 6, 6)
    plan = o1.plan(Groups(width), base=Groups(base), lr=rates, inputs=batch, init=init)
    assert (plan["stem.weight"].base_std, plan["stem.weight"].lr) == (0.5, 0.1)
    assert math.isclose(plan["grouped.weight"].base_std, (base / 8 * 9) ** -0.5)
    assert plan["grouped.weight"].lr <= 1e-2
    assert math.isclose(plan["depthwise.weight"].base_std, 1 / 3)


def test_every_expert_counts_by_itself():
    plan = o1.plan(Mixture(BASE), base=Mixture(BASE), inputs=torch.randn(6, 5), init="xavier")
    for name in ("up", "down"):
        assert math.isclose(plan[name].base_std, (2 / (3 * BASE)) ** 0.5)
    plan = o1.plan(Mixture(BASE), base=Mixture(BASE), inputs=torch.randn(6, 5), init="orthogonal")
    model = plan.apply()
    for expert in model.up.detach():  # fewer inputs than outputs: orthonormal rows
        gram = expert @ expert.T * BASE / (2 * BASE)
        assert torch.allclose(gram, torch.eye(BASE), atol=1e-5)


def test_the_reason_why_nothing_was_traced_is_named():
    """An example batch was passed, so the message must not ask for one."""
    with torch.device("meta"):
        target = autoencoder(64)
    with refuses("needs-example-batch", argument="init") as caught:
        o1.plan(target, base=autoencoder(16), inputs=torch.randn(2, 12), init="zero-residual")
    assert "meta device" in str(caught.value)


class Capped(nn.Module):
    """Logits between -cap and cap, small ones as they are; `inverse=False` only bounds them."""

    def __init__(self, width: int, cap: float, inverse: bool = True):
        super().__init__()
        self.read = nn.Linear(5, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)
        self.cap = cap
        self.inverse = inverse

    def forward(self, x):
        x = torch.tanh(self.head(torch.relu(self.hidden(self.read(x)))).float() / self.cap)
        return x * self.cap if self.inverse else x


@pytest.mark.parametrize("width", [BASE, 4 * BASE])
def test_a_soft_cap_is_no_constant_of_the_readout(width):
    """30 tanh(x / 30) is x for logits of order one."""
    batch = torch.randn(4, 5)
    capped = o1.plan(Capped(width, 30.0), base=Capped(BASE, 30.0), inputs=batch, init="fan-in")
    assert capped["head.weight"].base_std == BASE**-0.5
    bounded = o1.plan(
        Capped(width, 30.0, inverse=False),
        base=Capped(BASE, 30.0, inverse=False),
        inputs=batch,
        init="fan-in",
    )
    assert math.isclose(bounded["head.weight"].base_std, 30 * BASE**-0.5, rel_tol=1e-6)
