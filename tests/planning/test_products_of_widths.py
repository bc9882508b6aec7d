"""Sizes that grow like products of widths, and constants behind layers with biases."""

import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1

X = torch.randn(32, 16)


class Outer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.a = nn.Linear(16, width)
        self.b = nn.Linear(16, width)
        self.out = nn.Linear(width * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        product = torch.tanh(self.a(x))[:, :, None] * torch.tanh(self.b(x))[:, None, :]
        return self.out(product.flatten(1))


class Hyper(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.inp = nn.Linear(16, width)
        self.hyper = nn.Linear(8, width * width)
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.hyper(x[:, :8]).unflatten(-1, (self.width, self.width))
        return self.out(torch.relu(weights @ torch.relu(self.inp(x))[..., None])[..., 0])


class Divided(nn.Module):
    """The output of one layer is multiplied by a buffer that depends on the width."""

    multiplier: Tensor

    def __init__(self, width: int, layer: str):
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.hid = nn.Linear(width, width)
        self.out = nn.Linear(width, 10)
        self.layer = layer
        self.register_buffer("multiplier", torch.tensor(width**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        for name in ("inp", "hid", "out"):
            x = getattr(self, name)(x)
            if name == self.layer:
                x = x * self.multiplier
            if name != "out":
                x = torch.relu(x)
        return x


def test_the_readout_of_an_outer_product_has_a_fan_in_of_both_widths():
    plan = o1.plan(Outer(64), base=Outer(16), inputs=X, optimizer="adam", lr=1e-2)
    assert plan["a.weight"].role == plan["b.weight"].role == "embedding"
    assert plan["out.weight"].role == "readout"
    assert plan["out.weight"].factors.lr == pytest.approx(1 / 16)
    assert plan["out.weight"].factors.std == pytest.approx(1 / 16)


def test_the_first_line_has_the_dimensions_that_grow():
    plan = o1.plan(Outer(32), base=Outer(8), optimizer="adam", lr=0.01, inputs=X)
    assert "dimensions x4 (8 -> 32), x16 (64 -> 1024)" in plan.headline


def test_a_hypernetwork_has_the_role_of_the_matrix_that_it_writes():
    with refuses("ambiguous-role", argument="overrides"):
        o1.plan(Hyper(64), base=Hyper(16))
    as_traced = o1.plan(Hyper(64), base=Hyper(16), inputs=X, optimizer="adam")
    overridden = o1.plan(
        Hyper(64), base=Hyper(16), optimizer="adam", overrides={"hyper.*": "hidden"}
    )
    # the matrix is (n, n)
    for plan in (as_traced, overridden):
        for name in ("hyper.weight", "hyper.bias"):
            assert plan[name].role == "hidden"
            assert plan[name].factors.std == pytest.approx(1 / 2)
            assert plan[name].factors.lr == pytest.approx(1 / 4)


class WrittenReadout(nn.Module):
    """A network of the context writes the readout, (n, 10)."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.hyper = nn.Linear(8, width * 10)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.hyper(x[:, :8]).unflatten(-1, (-1, 10))
        return torch.einsum("bi,bio->bo", torch.relu(self.inp(x)), weights)


def test_a_readout_that_a_hypernetwork_writes_is_a_readout():
    plan = o1.plan(WrittenReadout(64), base=WrittenReadout(16), inputs=X, optimizer="adam")
    assert plan["hyper.weight"].role == "readout"
    assert plan["hyper.weight"].factors.std == pytest.approx(1 / 4)
    assert plan["hyper.weight"].factors.lr == pytest.approx(1 / 4)


@pytest.mark.parametrize("layer", ["inp", "hid", "out"])
def test_a_constant_behind_a_layer_is_compensated_in_weight_and_bias(layer):
    def plan_with(constant_behind: str) -> o1.Plan:
        model, base = Divided(64, constant_behind), Divided(16, constant_behind)
        return o1.plan(model, base=base, inputs=X, optimizer="adam", lr=1e-2)

    scaled, plain = plan_with(layer), plan_with("none")
    for row in scaled.rows:
        factor = 2.0 if row.name.startswith(layer) else 1.0
        assert row.factors.std == pytest.approx(factor * plain[row.name].factors.std), row.name
        assert row.factors.lr == pytest.approx(factor * plain[row.name].factors.lr), row.name


class Attention(nn.Module):
    """Heads of size 8: queries of one head have 8 * tokens entries, their layer `width` features.

    `how` says how queries, keys and values get from features to heads.
    """

    def __init__(self, width: int, how: str):
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.how = how
        if how == "packed":
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.query = nn.Linear(width, width)
            self.key = nn.Linear(width, width)
            self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        if self.how == "packed":
            parts = self.qkv(x).split(x.shape[-1], dim=-1)
        else:
            parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in parts)
        if self.how == "rotated":
            q, k = (t * 0.8 + torch.cat((-t[..., 4:], t[..., :4]), -1) * 0.6 for t in (q, k))
        scores = q @ k.transpose(-2, -1) * 8**-0.5
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("how", ["separate", "rotated", "packed"])
@pytest.mark.parametrize("tokens", [8, 24])
def test_attention_is_no_hypernetwork_where_its_sizes_agree_by_chance(how, tokens):
    def factors(tokens: int) -> dict[str, object]:
        x = torch.randn(4, tokens, 16)
        model, base = Attention(64, how), Attention(16, how)
        plan = o1.plan(model, base=base, inputs=x, optimizer="adam", lr=1e-2)
        return {row.name: row.factors for row in plan.rows}

    # 8 tokens times a head of 8: the 64 features of queries; 24 times 8: three of them, packed
    assert factors(tokens) == factors(7)


class Empty(nn.Module):
    """A layer without inputs, and a tensor without entries."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.rest = nn.Linear(0, width)
        self.nothing = nn.Parameter(torch.zeros(0))
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inp(x) + self.rest(x[:, :0])))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.parametrize("inputs", [None, X])
def test_tensors_without_entries_are_planned(inputs):
    plan = o1.plan(Empty(64), base=Empty(32), inputs=inputs, optimizer="adam", lr=1e-2)
    assert plan["inp.weight"].role == "embedding"
    assert plan["out.weight"].factors.lr == pytest.approx(1 / 2)
    plan.apply()
    plan.optimizer()
