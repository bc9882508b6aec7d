"""Layers that multiply their own product, as equalized layers do: weights start with size one."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1

BASE = 32
WIDTHS = [32, 64, 128, 256]
VOCABULARY, CLASSES, HEAD = 40, 8, 8


class Equalized(nn.Linear):
    """The factor multiplies the product."""

    def __init__(self, fan_in: int, fan_out: int, bias: bool = True, extra: float = 1.0):
        super().__init__(fan_in, fan_out, bias)
        self.factor = fan_in**-0.5 * extra
        nn.init.normal_(self.weight)
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        y = functional.linear(input, self.weight) * self.factor
        return y if self.bias is None else y + self.bias


class ScaledWeight(Equalized):
    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight * self.factor, self.bias)


class ScaledInput(Equalized):
    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input * self.factor, self.weight, self.bias)


class Residual(nn.Module):
    """A stream of tokens with attention, experts and an MLP, without norms."""

    def __init__(self, width: int, layer: type[Equalized]):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.query, self.key, self.value = (layer(width, width, bias=False) for _ in range(3))
        self.experts = Experts(width, layer)
        self.up, self.down = layer(width, 2 * width), layer(2 * width, width)
        self.readout = layer(width, CLASSES, extra=(BASE / width) ** 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        heads = [m(x).unflatten(-1, (-1, HEAD)) for m in (self.query, self.key, self.value)]
        q, k, v = (head.transpose(1, 2) for head in heads)
        mixed = functional.scaled_dot_product_attention(q, k, v, scale=1 / HEAD)
        x = x + mixed.transpose(1, 2).flatten(-2)
        x = x + self.experts(x)
        x = x + self.down(torch.relu(self.up(x)))
        return self.readout(x.mean(1))


class Experts(nn.Module):
    def __init__(self, width: int, layer: type[Equalized]):
        super().__init__()
        self.parts = nn.ModuleList(layer(width, width) for _ in range(3))
        self.router = nn.Linear(width, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1).unsqueeze(-1)
        outputs = torch.stack([torch.relu(part(x)) for part in self.parts], -2)
        return (shares * outputs).sum(-2)


def batch():
    ids = torch.randint(0, VOCABULARY, (16, 6), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(16) % CLASSES


LAYERS = [Equalized, ScaledWeight, ScaledInput]
HIDDEN = ["query", "key", "value", "experts.parts.1", "up", "down"]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("optimizer", "power"), [("adam", -0.5), ("sgd", 1.0)])
def test_a_plan_keeps_weights_of_size_one(layer, optimizer, power):
    models = (Residual(width, layer) for width in (8 * BASE, BASE))
    plan = o1.plan(next(models), base=next(models), optimizer=optimizer, lr=1e-2, inputs=batch()[0])
    for name in HIDDEN:
        row = plan[f"{name}.weight"]
        assert row.factors.std == pytest.approx(1.0), name
        assert row.lr == pytest.approx(1e-2 * 8**power), name
    assert plan["words.weight"].factors.std == 1
    assert plan["readout.weight"].factors.std == pytest.approx(1.0)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_planned_network_passes(layer, optimizer):
    result = o1.coord_check(
        lambda width: Residual(width, layer),
        WIDTHS,
        optimizer=optimizer,
        lr={"adam": 1e-2, "sgd": 0.1}[optimizer],
        batches=batch(),
    )
    assert result.passed, str(result)


def by_hand(layer, fault="", power=0.0):
    def build(width):
        model = Residual(width, layer)
        growth = width / BASE
        with torch.no_grad():
            model.experts.router.weight *= growth**-0.5
        groups = []
        for name, tensor in model.named_parameters():
            exponent = 0.0
            if name.removesuffix(".weight") in (*HIDDEN, "experts.parts.0", "experts.parts.2"):
                exponent = -0.5
            if name == "experts.router.weight":
                exponent = -1.0
            if name == fault:
                exponent += power
            groups.append({"params": [tensor], "lr": 1e-2 * growth**exponent})
        return model, torch.optim.Adam(groups, eps=1e-12)

    return build


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("fault", "power"), [("", 0.0), ("key.weight", 0.5), ("down.weight", -0.5), ("up.bias", -1.0)]
)
def test_a_network_scaled_by_hand_is_judged(layer, fault, power):
    result = o1.coord_check(
        by_hand(layer, fault, power), WIDTHS, optimizer="adam", lr=1e-2, batches=batch()
    )
    if not fault:
        assert result.passed, str(result)
        return
    assert result.verdict == "FAIL", str(result)
    assert fault in result.causes[0].split()


class Branch(nn.Module):
    """A number multiplies what a branch reads of the stream, and not the stream."""

    def __init__(self, width: int):
        super().__init__()
        self.root = (width / BASE) ** 0.5
        self.words = nn.Embedding(VOCABULARY, width)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.readout = nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + self.down(torch.relu(self.up(x * self.root)))
        return self.readout(x.mean(1))


def test_a_factor_of_a_branch_is_no_factor_of_the_stream():
    plan = o1.plan(Branch(8 * BASE), base=Branch(BASE), lr=1e-2, inputs=batch()[0])
    assert plan["words.weight"].factors.std == 1
    assert plan["words.weight"].lr == 1e-2
    assert plan["up.weight"].factors.std == pytest.approx(8**-1.0)
    assert plan["up.weight"].lr == pytest.approx(1e-2 * 8**-1.5)
    result = o1.coord_check(Branch, WIDTHS, lr=1e-2, batches=batch())
    assert result.passed, str(result)


class Packed(nn.Module):
    """A layer that makes scores itself: the factor of its queries is the scale of attention."""

    def __init__(self, width: int):
        super().__init__()
        self.size = width // 2
        self.weight = nn.Parameter(torch.randn(3 * width, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = functional.linear(x, self.weight).unflatten(-1, (3, 2, -1)).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in (q / self.size, k, v))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(-2)


class OwnScores(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.attention = Packed(width)
        self.readout = nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.readout((x + self.attention(x)).mean(1))


def test_the_scale_of_scores_inside_of_a_layer_is_no_factor_of_its_weight():
    plan = o1.plan(OwnScores(8 * BASE), base=OwnScores(BASE), lr=1e-2, inputs=batch()[0])
    assert plan["attention.weight"].factors.std == pytest.approx(8**-0.5)
    assert plan["attention.weight"].lr == pytest.approx(1e-2 / 8)
    assert not plan["attention.weight"].blocks
