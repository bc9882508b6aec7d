"""Comparison with `mup`, the package of the authors of muP (arXiv:2203.03466), with its full
recipe: one network in two gauges.

mup leaves a multiplier 1/r in front of the readout, r being the growth of its fan-in; a folded plan
has none. Take a tensor W with a multiplier m in front, so that the effective weight is m W. A step
with learning rate lr changes the effective weight by m^k lr:

    k = 1 for Adam, whose update is independent of m;  k = 2 for SGD, whose gradient is m times as
                                                      large as well

and a step shrinks W by the fraction lr * wd in every gauge. In our gauge, mup's numbers are
therefore

    std -> m std,      lr -> m^k lr,      weight_decay -> weight_decay / m^k,      m = 1/r at the
                                          readout, 1 elsewhere.

If the two still differ, the test says which is right. Only this file needs mup, and only
developers need this file.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import orderone as o1

mup = pytest.importorskip("mup")
F = nn.functional
FEATURES, CLASSES, TOKENS, BATCH, STEPS = 6, 64, 31, 8, 5
BASE, RATIO = 16, 3
INNER, HEADS, HEAD = 24, 4, 4  # of the base
LR, DECAY = 0.01, 0.1
K = {"adamw": 1, "adam": 1, "sgd": 2}
MU = {"adamw": mup.MuAdamW, "adam": mup.MuAdam, "sgd": mup.MuSGD}


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# the networks: mup wants its own readout, we take any


class MLP(nn.Module):
    def __init__(self, width: int, readout: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.embed, self.hidden = nn.Linear(FEATURES, width), nn.Linear(width, width)
        self.norm, self.readout = nn.LayerNorm(width), readout(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.tanh(self.hidden(self.norm(torch.tanh(self.embed(x))))))


class Attention(nn.Module):
    """Attention with `pairs` of keys and values, which queries may share."""

    def __init__(self, width: int, heads: int, pairs: int, head: int, power: float):
        super().__init__()
        self.head_dim, self.shared = head, heads // pairs
        self.scale = HEAD ** (power - 0.5) * head**-power  # 1 / sqrt(HEAD) in the base
        self.q, self.k, self.v = (
            nn.Linear(width, count * head, bias=False) for count in (heads, pairs, pairs)
        )
        self.o = nn.Linear(heads * head, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, self.head_dim)).transpose(-2, -3)
            for p in (self.q, self.k, self.v)
        )
        k, v = (t.repeat_interleave(self.shared, -3) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.o(mixed.transpose(-2, -3).flatten(-2))


class Gated(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, pairs: int, head: int, power: float):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width, heads, pairs, head, power)
        self.norm2, self.mlp = nn.RMSNorm(width), Gated(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Two layers, whose attention scores are divided by a power of the head size: 1 for mup, 1/2
    otherwise."""

    def __init__(self, sizes: Any, readout: type[nn.Linear] = nn.Linear, power: float = 1.0):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, sizes[0])
        self.layers = nn.ModuleList(Layer(*sizes, power=power) for _ in range(2))
        self.norm, self.readout = nn.RMSNorm(sizes[0]), readout(sizes[0], CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.readout(self.norm(x))


KINDS = {"mlp": MLP, "llama": Llama, "grouped": Llama}
# width, inner size, heads, pairs of keys and values, head size; no two of them need to grow alike
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "llama": {
        "base": (BASE, INNER, HEADS, HEADS, HEAD),
        "target": (RATIO * BASE, 2 * INNER, 6, 6, 2 * HEAD),
    },
    "grouped": {
        "base": (BASE, INNER, HEADS, 1, HEAD),
        "target": (RATIO * BASE, 2 * INNER, 6, 3, 2 * HEAD),
    },
}
HEAD_GROWTH = 2


def sizes(kind: str, which: str) -> Any:
    """Return base, target, and mup's delta, which shows mup what grows."""
    if kind == "mlp":
        return {"base": BASE, "target": RATIO * BASE, "delta": BASE + 1}[which]
    return (
        tuple(size + 1 for size in SIZES[kind]["base"]) if which == "delta" else SIZES[kind][which]
    )


def build(kind: str, which: str, readout: type[nn.Linear] = nn.Linear, **options: Any) -> Any:
    torch.manual_seed({"base": 0, "target": 1, "delta": 2}[which])
    return KINDS[kind](sizes(kind, which), readout, **options)


def theirs(kind: str) -> nn.Module:
    """mup's recipe up to the optimizer; initialization is torch's default, which it rescales."""
    model, base, delta = (
        build(kind, which, mup.MuReadout) for which in ("target", "base", "delta")
    )
    return mup.set_base_shapes(model, base, delta=delta)


def ours(kind: str, optimizer: str, **options: Any) -> o1.Plan:
    model, base = build(kind, "target"), build(kind, "base")
    settings: dict[str, Any] = {"lr": LR, "weight_decay": DECAY, "inputs": batch(kind)[0]} | options
    return o1.plan(model, base=base, optimizer=optimizer, **settings)


def batch(kind: str) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    if kind == "mlp":
        x = torch.randn(BATCH, FEATURES, generator=random)
        return x, torch.randint(CLASSES, (BATCH,), generator=random)
    x = torch.randint(TOKENS, (BATCH, 7), generator=random)
    return x, torch.randint(CLASSES, (BATCH, 7), generator=random)


def multiplier(name: str) -> float:
    """Return the multipliers in mup's forward pass."""
    return 1 / RATIO if name == "readout.weight" else 1.0


def key_rate(kind: str, optimizer: str) -> float:
    """Return mup's rate of keys and values over that of the plan.

    With SGD the rate divides by the gradient. If r queries share a key, mup's widths mean that
    their gradients are equal, r; the plan takes them as independent, r^1/2, which is what networks
    show (`rules/axes/repetition.py`).
    """
    if kind != "grouped" or optimizer != "sgd":
        return 1.0
    queries_per_key = {}
    for which in ("base", "target"):
        *_, heads, pairs, _ = SIZES[kind][which]
        queries_per_key[which] = heads / pairs
    return (queries_per_key["target"] / queries_per_key["base"]) ** -0.5


def is_key_or_value(name: str) -> bool:
    return name.endswith((".k.weight", ".v.weight"))


def rms(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()


def settings(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, float, float]]:
    """Return name, learning rate and weight decay of every tensor."""
    names = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            yield names[id(p)], group["lr"], group["weight_decay"]


# numbers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_rates_and_weight_decay_are_those_of_mup(kind, optimizer):
    """The readout's weight decay looks different: lambda for MuAdamW and lambda / r for MuSGD,
    lambda * r in the plan. Both are right, each in its gauge: every step takes the fraction eta *
    lambda from the weights."""
    plan, model = ours(kind, optimizer), theirs(kind)
    found = list(settings(model, MU[optimizer](model.parameters(), lr=LR, weight_decay=DECAY)))
    assert {name for name, *_ in found} == {row.name for row in plan.rows}
    for name, lr, decay in found:
        shift = multiplier(name) ** K[optimizer]
        if is_key_or_value(name):
            shift /= key_rate(kind, optimizer)
        assert plan[name].lr == pytest.approx(lr * shift), name
        assert plan[name].weight_decay == pytest.approx(decay / shift), name


@pytest.mark.parametrize("kind", KINDS)
def test_initial_sizes_are_those_of_mup(kind):
    """mup's own initializers, beside torch's with the same random numbers: only the factor is
    left."""
    plan, model = ours(kind, "adamw"), theirs(kind)
    for name, p in model.named_parameters():
        if p.dim() == 1:
            continue  # biases and gains are constants in this recipe
        torch.manual_seed(0)
        mup.normal_(p, std=0.02)
        torch.manual_seed(0)
        standard = nn.init.normal_(torch.empty_like(p), std=0.02)
        assert plan[name].factors.std == pytest.approx(multiplier(name) * rms(p) / rms(standard)), (
            name
        )


def test_initial_sizes_are_those_of_mup_from_torchs_default():
    """Without other initializers mup rescales torch's, biases included: at this size, sampling
    leaves some percent."""
    torch.manual_seed(0)
    base, model = (
        MLP(256),
        mup.set_base_shapes(MLP(1024, mup.MuReadout), MLP(256, mup.MuReadout), delta=MLP(300)),
    )
    plan = o1.plan(MLP(1024), base=base)
    for name, p in model.named_parameters():
        effective = rms(p) / (4 if name == "readout.weight" else 1)
        assert plan[name].init_std == pytest.approx(effective, rel=0.15), name


@pytest.mark.parametrize(
    "init", ["kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_"]
)
def test_fan_in_initializers_of_mup(init):
    """Hidden matrices and the readout, from a base that torch initialises in the same way."""
    torch.manual_seed(0)
    base, target = (
        MLP(256),
        mup.set_base_shapes(MLP(1024, mup.MuReadout), MLP(256, mup.MuReadout), delta=MLP(300)),
    )
    for name in ("embed.weight", "hidden.weight", "readout.weight"):
        getattr(nn.init, init)(base.get_parameter(name))
        getattr(mup, init)(target.get_parameter(name))
    plan = o1.plan(MLP(1024), base=base)
    for name in ("embed.weight", "hidden.weight", "readout.weight"):
        effective = rms(target.get_parameter(name)) / (4 if name == "readout.weight" else 1)
        assert plan[name].init_std == pytest.approx(effective, rel=0.05), name


# trajectories


def losses(kind: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    x, targets = batch(kind)
    seen = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert seen[-1] < seen[0] - 1e-3, "nothing was learnt"
    return seen


def copy_effective(plan: o1.Plan, model: nn.Module) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(plan.bound().get_parameter(name) / multiplier(name))


def both(kind: str, optimizer: str, eps: float = 1e-30) -> tuple[list[float], list[float]]:
    """Train our model and mup's from the same effective weights. mup does not scale Adam's eps, so
    eps is tiny here."""
    momentum: dict[str, Any] = {"momentum": 0.9} if optimizer == "sgd" else {}
    felt: dict[str, Any] = {} if optimizer == "sgd" else {"eps": eps}
    keys = dict.fromkeys(("*.k.weight", "*.v.weight"), key_rate(kind, optimizer))
    rates: dict[str, Any] = {}
    if kind == "grouped":  # the product of rate and decay is the same in both
        rates["lr"] = {"default": LR} | {name: LR * x for name, x in keys.items()}
        rates["weight_decay"] = {"default": DECAY} | {name: DECAY / x for name, x in keys.items()}
    plan, model = ours(kind, optimizer, **felt, **rates), theirs(kind)
    plan.apply()
    copy_effective(plan, model)
    other = MU[optimizer](model.parameters(), lr=LR, weight_decay=DECAY, **felt, **momentum)
    return losses(kind, plan.bound(), plan.optimizer(**momentum)), losses(kind, model, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_trains_like_mup(kind, optimizer):
    mine, other = both(kind, optimizer)
    assert mine == pytest.approx(other, rel=1e-9)


def test_an_ordinary_llama_trains_like_mups():
    """mup asks for scores q k / d. A plan takes q k / sqrt(d) as it is, and puts what is missing
    into the queries."""
    model, base = build("llama", "target", power=0.5), build("llama", "base", power=0.5)
    plan = o1.plan(model, base=base, lr=LR, weight_decay=DECAY, eps=1e-30, inputs=batch("llama")[0])
    missing = HEAD_GROWTH**-0.5
    query = plan["layers.0.attention.q.weight"]
    assert query.lr == pytest.approx(LR / RATIO * missing)
    assert query.weight_decay == pytest.approx(DECAY * RATIO / missing)
    assert query.factors.std == pytest.approx(RATIO**-0.5 * missing)
    plan.apply()
    other = theirs("llama")
    copy_effective(plan, other)
    with torch.no_grad():
        for name, p in other.named_parameters():
            if name.endswith("attention.q.weight"):
                p.div_(missing)
    mine = losses("llama", model, plan.optimizer())
    optimizer = mup.MuAdamW(other.parameters(), lr=LR, weight_decay=DECAY, eps=1e-30)
    assert mine == pytest.approx(losses("llama", other, optimizer), rel=1e-9)


# where mup deviates


def test_mup_does_not_scale_eps():
    """The plan is right: gradients shrink with the width, so that a constant eps weighs more and
    more. The plan's follows the gradients (1/r, and 1 at a folded readout), as in CompleteP; at an
    eps that is felt, the two part."""
    plan = ours("mlp", "adamw", eps=1e-3)
    assert plan["hidden.weight"].eps == pytest.approx(1e-3 / RATIO)
    assert plan["readout.weight"].eps == pytest.approx(1e-3)
    mine, other = both("mlp", "adamw", eps=1e-3)
    assert mine[0] == pytest.approx(other[0], rel=1e-12)
    assert mine[-1] != pytest.approx(other[-1], rel=1e-3)


WIDE = 16


def penalties(which: str) -> dict[str, float]:
    """Return the ratio of Adam's penalty weight_decay * W to the gradient, wide over base."""
    torch.manual_seed(0)
    base = MLP(64)
    plan = o1.plan(MLP(64 * WIDE), base=base, optimizer="adam", weight_decay=DECAY)
    plan.apply(fresh=True)
    model, decay = plan.bound(), {row.name: row.weight_decay for row in plan.rows}
    if which == "mup":
        model = mup.set_base_shapes(
            MLP(64 * WIDE, mup.MuReadout), MLP(64, mup.MuReadout), delta=MLP(80)
        )
        decay = {
            name: d
            for name, _, d in settings(
                model, mup.MuAdam(model.parameters(), lr=LR, weight_decay=DECAY)
            )
        }
    found = {}
    for name in ("embed.weight", "hidden.weight", "readout.weight"):
        wide, small = (_penalty(m, name) for m in (model, base))
        found[name] = decay[name] * wide / (DECAY * small)
    return found


def _penalty(model: nn.Module, name: str) -> float:
    """Return RMS(W) / RMS(W') for a squared loss."""
    x = torch.randn(256, FEATURES, generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (model(x) - x[:, :1].sin()).square().mean().backward()
    p = model.get_parameter(name)
    assert p.grad is not None
    return rms(p) / rms(p.grad)


def test_mup_lets_the_penalty_of_adam_outgrow_the_gradient():
    """The plan is right. torch.optim.Adam adds weight_decay * W to the gradient and then normalizes
    the sum. MuAdam sets lambda r for hidden matrices and lambda elsewhere, as for AdamW, and so the
    penalty outgrows the gradient: by r at embedding and readout and by r^1.5 in between, which is
    16 and 64 at r = 16. In the end Adam only shrinks weights. The plan keeps the ratio of the two:
    lambda / r, lambda / sqrt(r) and, folded, lambda r.
    """
    mine, other = penalties("ours"), penalties("mup")
    assert mine == pytest.approx(dict.fromkeys(mine, 1.0), rel=0.35)
    grown = {"embed.weight": WIDE, "hidden.weight": WIDE**1.5, "readout.weight": WIDE}
    assert other == pytest.approx(grown, rel=0.35)


def test_a_plan_for_mups_own_model_is_in_mups_gauge():
    """The trace finds the multiplier 1/r of MuReadout, and the plan does not add another one."""
    model, base = theirs("mlp"), mup.set_base_shapes(build("mlp", "base", mup.MuReadout), None)
    plan = o1.plan(model, base=base, lr=LR, weight_decay=DECAY, inputs=batch("mlp")[0])
    for name, lr, decay in settings(
        model, mup.MuAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    ):
        assert plan[name].lr == pytest.approx(lr), name
        assert plan[name].weight_decay == pytest.approx(decay), name
