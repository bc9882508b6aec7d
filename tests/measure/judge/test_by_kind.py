"""Networks in muP with tensors that say their kind, apart from the other tests' builders.

Each healthy network has a neighbour with one fault; the judge tells them apart.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.core.errors import code_of
from orderone.measure.judge.causes.failed_lines import is_small
from orderone.measure.judge.verdict import Verdict

WIDTHS = (32, 64, 128, 256)
FEATURES, CLASSES, HEAD, LENGTH = 12, 7, 8, 6
LR = {"adam": 3e-3, "sgd": 0.05}
# powers of the width in the learning rate
RATES = {
    "adam": {"in": 0, "hidden": -1, "out": -1, "vector": 0, "fixed": 0, "out2": -2, "writer": -0.5},
    "sgd": {"in": 1, "hidden": 0, "out": -1, "vector": 1, "fixed": 0, "out2": -2, "writer": 1},
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LABELS = torch.arange(FEATURES) % CLASSES
VECTORS = (normal(FEATURES, FEATURES), LABELS)
SERIES = (normal(FEATURES, LENGTH, FEATURES), LABELS)


def linear(fan_in: int, fan_out: int, kind: str, std: float | None = None) -> nn.Linear:
    """Return a layer without bias whose weight has a kind."""
    layer = nn.Linear(fan_in, fan_out, bias=False)
    default = WIDTHS[0] ** 0.5 / fan_in if kind == "out" else fan_in**-0.5
    nn.init.normal_(layer.weight, std=default if std is None else std)
    layer.weight.kind = kind  # pyright: ignore[reportAttributeAccessIssue]
    return layer


def scaled(
    network: Callable[[int], nn.Module],
    law: str = "adam",
    rates: Mapping[str, float] | None = None,
    eps: Mapping[str, float] | None = None,
) -> Callable[[int], Any]:
    """Return `build`; `rates` has wrong powers of learning rates, `eps` values of tensors."""

    def build(width: int) -> Any:
        model = network(width)
        growth = width / WIDTHS[0]
        groups = []
        for name, tensor in model.named_parameters():
            if tensor.requires_grad:
                kind = tensor.kind  # pyright: ignore[reportAttributeAccessIssue]
                power = RATES[law][kind] + (rates or {}).get(name, 0.0)
                group: dict[str, Any] = {"params": [tensor], "lr": LR[law] * growth**power}
                if eps and name in eps:
                    group["eps"] = eps[name]
                groups.append(group)
        if law == "adam":
            return model, torch.optim.Adam(groups)
        return model, torch.optim.SGD(groups)

    return build


def check(build: Callable[[int], Any], batch: Any = VECTORS, law: str = "adam") -> o1.measure.Check:
    return o1.coord_check(build, WIDTHS, optimizer=law, lr=LR[law], batches=batch, seeds=2)


# --- networks -------------------------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.first = linear(FEATURES, width, "in")
        self.second = linear(width, width, "hidden")
        self.last = linear(width, CLASSES, "out")

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(self.prepared(torch.tanh(self.first(x))))))

    def prepared(self, x: Tensor) -> Tensor:
        return x


class UnitLength(Plain):
    def prepared(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1)


class RootLength(Plain):
    def prepared(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1) * self.width**0.5


class Weighted(Plain):
    def prepared(self, x: Tensor) -> Tensor:
        return x.softmax(-1) * self.width


class Added(Plain):
    """A bias of the output whose initial size is a power of the width."""

    power = 0.0

    def __init__(self, width: int):
        super().__init__(width)
        size = (width / WIDTHS[0]) ** self.power
        self.offset = nn.Parameter(size * normal(CLASSES, seed=width))
        self.offset.kind = "fixed"  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.offset


class AddedGrowing(Added):
    power = 1.0


class AddedShrinking(Added):
    power = -1.0


class Folded(Plain):
    """A gain that has another number of dimensions in larger models: no plan is possible."""

    def __init__(self, width: int):
        super().__init__(width)
        shape = (width,) if width == WIDTHS[0] else (2, width // 2)
        self.gain = nn.Parameter(torch.ones(shape))
        self.gain.kind = "vector"  # pyright: ignore[reportAttributeAccessIssue]

    def prepared(self, x: Tensor) -> Tensor:
        return x * self.gain.flatten()


class Masked(nn.Module):
    """Causal attention with a mask of -1e9."""

    power = 0.0

    def __init__(self, width: int):
        super().__init__()
        self.first = linear(FEATURES, width, "in")
        self.qkv = linear(width, 3 * width, "hidden")
        self.last = linear(width, CLASSES, "out")
        self.factor = HEAD**-0.5 * (WIDTHS[0] / width) ** self.power

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(torch.tanh(self.first(x))).unflatten(-1, (3, -1, HEAD))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mask = torch.full((LENGTH, LENGTH), -1e9).triu(1)
        mixed = (q @ k.mT * self.factor + mask).softmax(-1) @ v
        return self.last(mixed.transpose(1, 2).flatten(-2).mean(1))


class SmallScores(Masked):
    power = 0.5


class Outer(nn.Module):
    """A readout of all products of two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.left = linear(FEATURES, width, "in")
        self.right = linear(FEATURES, width, "in")
        self.last = linear(width**2, CLASSES, "out2", WIDTHS[0] / width**2)

    def forward(self, x: Tensor) -> Tensor:
        left = torch.tanh(self.left(x))
        right = torch.tanh(self.right(x))
        return self.last((left[:, :, None] * right[:, None, :]).flatten(1))


class Hyper(nn.Module):
    """A small network writes a hidden matrix; a factor n^-1/2 stands behind the product."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.first = linear(FEATURES, width, "in")
        self.code = linear(FEATURES, 8, "fixed")
        self.writer = linear(8, width**2, "writer")
        self.last = linear(width, CLASSES, "out")

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.writer(torch.tanh(self.code(x))).unflatten(-1, (self.width, self.width))
        product = torch.einsum("bij,bj->bi", matrix, torch.tanh(self.first(x)))
        return self.last(torch.tanh(product / self.width**0.5))


class Lora(Plain):
    """A frozen base; A starts with an output of order one, B at zero."""

    def __init__(self, width: int):
        super().__init__(width)
        self.second.requires_grad_(False)
        self.a = linear(width, 4, "out", width**-0.5)
        self.b = linear(4, width, "in", 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.second(x) + self.b(self.a(x))))


class Deeper(Plain):
    """The number of layers grows with the width; branches are divided by it."""

    def __init__(self, width: int):
        super().__init__(width)
        self.blocks = nn.ModuleList(linear(width, width, "hidden") for _ in range(width // 16))

    def prepared(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.tanh(block(x)) / len(self.blocks)
        return x


class DeeperAndSmaller(Deeper):
    """The initial size of the added layers falls with their number."""

    def __init__(self, width: int):
        super().__init__(width)
        for block in self.blocks:
            block.weight.data /= len(self.blocks) ** 0.5


class Towers(nn.Module):
    """Two towers that are compared by angle, in a space of fixed size or as wide as they are."""

    def __init__(self, width: int, space: int = 8):
        super().__init__()
        kind = "out" if space < width else "hidden"
        self.left = linear(FEATURES, width, "in")
        self.left_out = linear(width, space, kind)
        self.right = linear(FEATURES, width, "in")
        self.right_out = linear(width, space, kind)

    def forward(self, x: Tensor) -> Tensor:
        left = functional.normalize(self.left_out(torch.tanh(self.left(x))), dim=-1)
        right = functional.normalize(self.right_out(torch.tanh(self.right(x.flip(0)))), dim=-1)
        return left @ right.T


class Pooled(Plain):
    """Positions are averaged with weights from a learned query: a tensor with one axis."""

    def __init__(self, width: int):
        super().__init__(width)
        self.query = nn.Parameter(normal(width, seed=width))
        self.query.kind = "vector"  # pyright: ignore[reportAttributeAccessIssue]

    def prepared(self, x: Tensor) -> Tensor:
        weights = (x @ self.query / self.width).softmax(-1)
        return (weights.unsqueeze(-1) * x).sum(-2)


class LongHeads(nn.Module):
    """Four heads whose size grows; scores are divided by a power of it."""

    def __init__(self, width: int, power: float):
        super().__init__()
        self.first = linear(FEATURES, width, "in")
        self.queries = linear(width, width, "hidden")
        self.keys = linear(width, width, "hidden")
        self.values = linear(width, width, "hidden")
        self.last = linear(width, CLASSES, "out")
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        parts = [layer(x).unflatten(-1, (4, -1)) for layer in (self.queries, self.keys)]
        q, k = (part.transpose(1, 2) for part in parts)
        scores = q @ k.mT / q.shape[-1] ** self.power
        values = self.values(x).unflatten(-1, (4, -1)).transpose(1, 2)
        return self.last((scores.softmax(-1) @ values).transpose(1, 2).flatten(-2).mean(1))


class Summed(Plain):
    """The sum over all channels is added to each of them."""

    def prepared(self, x: Tensor) -> Tensor:
        return x + x.relu().sum(-1, keepdim=True) / WIDTHS[0]


class OwnLoss(Plain):
    """A model that returns its loss, divided by a power of the width."""

    def __init__(self, width: int, power: float):
        super().__init__(width)
        self.factor = (WIDTHS[0] / width) ** power

    def forward(self, x: Tensor, y: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"loss": self.factor * functional.cross_entropy(super().forward(x), y)}


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["adam", "sgd"])
@pytest.mark.parametrize("network", [RootLength, Weighted, Outer, Hyper, Lora])
def test_healthy_networks_pass(network, law):
    result = check(scaled(network, law), law=law)
    assert result.passed, str(result)
    assert result.unjudged == ()


def test_attention_with_a_finite_mask_passes():
    assert check(scaled(Masked), SERIES).passed


@pytest.mark.parametrize("network", [Deeper, DeeperAndSmaller])
def test_layers_that_are_added_with_the_width_pass(network):
    assert check(scaled(network)).passed


def test_the_rate_of_layers_that_are_added_with_the_width_is_judged():
    rates = {f"blocks.{number}.weight": 0.5 for number in range(WIDTHS[-1] // 16)}
    result = check(scaled(Deeper, rates=rates))
    assert result.verdict == "FAIL", str(result)
    assert "blocks.*.weight" in result.causes[0]


def test_the_initial_size_of_what_does_not_grow_must_not_grow():
    result = check(scaled(AddedGrowing))
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == "wrong-initial-size"
    assert "offset" in result.causes[0]


@pytest.mark.parametrize("network", [Added, AddedShrinking])
def test_a_bias_of_the_output_may_start_with_any_other_size(network):
    assert check(scaled(network)).passed


def test_a_check_without_predictions_does_not_pass():
    result = check(scaled(Folded))
    assert result.verdict == "UNCLEAR", str(result)
    assert code_of(result.causes[0]) == "no-predictions"


def test_a_check_without_predictions_can_fail():
    result = check(scaled(Folded, rates={"second.weight": 1.0}))
    assert result.verdict == "FAIL", str(result)


@pytest.mark.parametrize("network", [Outer, Hyper])
def test_planned_networks_pass(network):
    result = check(network)
    assert result.passed, str(result)


@pytest.mark.parametrize(
    ("network", "batch", "code"),
    [
        (UnitLength, VECTORS, "shrinking-input"),
        (SmallScores, SERIES, "attention-not-scaled"),
    ],
)
def test_forward_code_that_is_too_small_fails(network, batch, code):
    result = check(scaled(network), batch)
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == code


@pytest.mark.parametrize(
    ("network", "tensor"),
    [(Outer, "last.weight"), (Hyper, "writer.weight"), (Lora, "a.weight"), (Lora, "b.weight")],
)
@pytest.mark.parametrize("power", [-0.5, 0.5])
def test_wrong_rates_are_named(network, tensor, power):
    result = check(scaled(network, rates={tensor: power}))
    assert result.verdict == "FAIL", str(result)
    assert tensor in result.causes[0]


def test_a_large_eps_of_one_tensor_is_named():
    result = check(scaled(Plain, eps={"second.weight": 1e-2}))
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == "eps-not-scaled"
    assert "second.weight" in result.causes[0]


@pytest.mark.parametrize("law", ["adam", "sgd"])
def test_a_normalized_readout_is_named(law):
    wide = check(scaled(lambda width: Towers(width, width), law), law=law)
    assert wide.verdict != "FAIL", str(wide)
    result = check(scaled(Towers, law), law=law)
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == "normalized-readout"


@pytest.mark.parametrize("law", ["adam", "sgd"])
def test_a_learned_query_is_a_readout(law):
    """`x @ query / n` is of order one with a query of order one, like a readout of size 1/n."""
    result = check(scaled(Pooled, law), SERIES, law)
    assert result.passed, str(result)
    assert check(Pooled, SERIES, law).passed
    faulty = check(scaled(Pooled, law, {"query": -0.5}), SERIES, law)
    assert faulty.verdict == "FAIL", str(faulty)
    assert "query" in faulty.causes[0]


@pytest.mark.parametrize("power", [0.0, 0.5, 2.0])
def test_scores_that_are_not_divided_by_the_head_size_are_named(power):
    healthy = check(scaled(lambda width: LongHeads(width, 1.0)), SERIES)
    assert healthy.passed, str(healthy)
    result = check(scaled(lambda width: LongHeads(width, power)), SERIES)
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == "attention-not-scaled"


def test_the_table_shows_the_learning_rate_that_the_rule_requires(capsys):
    result = check(scaled(lambda width: LongHeads(width, 0.5)), SERIES)
    row = next(line for line in str(result).splitlines() if line.startswith("queries.weight"))
    assert row.endswith("= -1.50")
    result.explain("queries.weight")
    assert "prediction (mup): n^-1.50" in capsys.readouterr().out


def test_a_growing_input_is_named_instead_of_the_layer_behind_it():
    result = check(Summed)
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == "growing-activations"
    assert "input of module 'second'" in result.causes[0]


@pytest.mark.parametrize("power", [-1.0, 1.0])
def test_a_factor_of_a_loss_that_the_model_returns_is_named_with_sgd(power):
    batch = dict(zip(("x", "y"), VECTORS, strict=True))
    healthy = check(scaled(lambda width: OwnLoss(width, 0.0), "sgd"), batch, "sgd")
    assert healthy.passed, str(healthy)
    result = check(scaled(lambda width: OwnLoss(width, power), "sgd"), batch, "sgd")
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == "loss-scale"
    result.explain("")


class OwnKeys(nn.Module):
    """Attention whose queries are its keys, so that initial scores are of order one."""

    factor = 1.0

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.norm = nn.LayerNorm(width)
        self.queries = nn.Linear(width, width, bias=False)
        self.values = nn.Linear(width, width)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(torch.stack([x, -x, x.flip(-1)], 1))
        queries = self.queries(self.norm(x)).unflatten(-1, (4, -1)).transpose(1, 2)
        weights = (queries @ queries.mT * (self.factor / queries.shape[-1])).softmax(-1)
        values = self.values(self.norm(x)).unflatten(-1, (4, -1)).transpose(1, 2)
        x = x + (weights @ values).transpose(1, 2).flatten(2)
        return self.last(torch.relu(x).mean(1))


@pytest.mark.parametrize("law", ["adam", "sgd"])
@pytest.mark.parametrize(("power", "verdict"), [(0.0, "PASS"), (0.5, "FAIL"), (1.0, "FAIL")])
def test_initial_scores_that_grow_fail_and_are_said_to_grow(law, power, verdict):
    def build(width: int):
        model = OwnKeys(width)
        base = OwnKeys(WIDTHS[0])
        plan = o1.plan(model, base=base, optimizer=law, lr=LR[law], inputs=VECTORS[0])
        plan.apply()
        model.factor = (width / WIDTHS[0]) ** power
        return model, plan.optimizer()

    result = check(build, law=law)
    assert result.verdict == verdict
    if verdict == "FAIL":
        assert code_of(result.causes[0]) == "attention-not-scaled"
        failed = [line for line in result.judgements if line.verdict == Verdict.FAIL]
        assert not any(is_small(line) for line in failed)
