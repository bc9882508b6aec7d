"""One network, several gauges: folded, with multipliers in hooks, and written out by hand. All of
them train alike.

By hand means: from the published tables, in another forward pass, with an optimizer group for every
tensor. Everything runs in float64, so that two trajectories either agree to rounding or are
different ones. Adam's eps and Adafactor's floor for the size of weights are large enough to
matter.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1
from orderone.optimizers.lion import Lion

F = nn.functional
FEATURES, TOKENS, CLASSES, BATCH, STEPS = 6, 11, 5, 16, 10
BASE, RATIO = 8, 3  # no power of two: a factor that is forgotten cannot hide in exact arithmetic
LR, DECAY, EPS = 0.02, 0.1, 1e-3
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "adafactor": (torch.optim.Adafactor, {}),
    "lion": (Lion, {}),
}
TUNED: dict[str, dict[str, Any]] = {
    "adam": {"lr": LR, "weight_decay": DECAY / 10, "eps": EPS},
    "adamw": {"lr": LR, "weight_decay": DECAY, "eps": EPS},
    "sgd": {"lr": LR, "weight_decay": DECAY},
    "adafactor": {"lr": LR, "weight_decay": DECAY, "eps": (1e-8, 0.1)},
    "lion": {"lr": LR / 10, "weight_decay": DECAY},
    "muon": {"lr": {"muon": LR, "adamw": LR}, "weight_decay": DECAY},
}


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# networks: ordinary ones, and the same with multipliers in their forward code


class Network(nn.Module):
    """Embedding, norm, hidden layer, readout, as an MLP, a CNN or a network of tokens."""

    def __init__(self, kind: str, width: int):
        super().__init__()
        self.kind = kind
        self.embed, self.hidden = {
            "mlp": lambda: (nn.Linear(FEATURES, width), nn.Linear(width, width)),
            "cnn": lambda: (
                nn.Conv2d(3, width, 3, padding=1),
                nn.Conv2d(width, width, 3, padding=1),
            ),
            "text": lambda: (nn.Embedding(TOKENS, width), nn.Linear(width, width)),
        }[kind]()
        self.norm = nn.GroupNorm(1, width) if kind == "cnn" else nn.LayerNorm(width)
        self.readout = nn.Linear(width, CLASSES)

    def layer(self, name: str, x: Tensor) -> Tensor:
        return getattr(self, name)(x)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.layer("embed", x)))
        x = torch.tanh(self.layer("hidden", x))
        return self.layer("readout", x.mean((-1, -2)) if self.kind == "cnn" else x)


class Explicit(Network):
    """The network with every weight multiplied by a number in the forward code."""

    def __init__(self, kind: str, width: int, **multipliers: float):
        super().__init__(kind, width)
        self.multipliers = multipliers

    def layer(self, name: str, x: Tensor) -> Tensor:
        part, multiplier = getattr(self, name), self.multipliers[name]
        if isinstance(part, nn.Embedding):
            return F.embedding(x, part.weight) * multiplier
        if isinstance(part, nn.Conv2d):
            return F.conv2d(x, part.weight * multiplier, part.bias, padding=1)
        return F.linear(x, part.weight * multiplier, part.bias)


class Uneven(nn.Module):
    """Two widths, which grow by different ratios."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.embed, self.up = nn.Linear(FEATURES, width), nn.Linear(width, inner)
        self.down, self.readout = nn.Linear(inner, width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        return self.readout(torch.tanh(self.down(torch.tanh(self.up(x)))))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))


class Residual(nn.Module):
    """A pre-norm residual network of tokens; `branch` and `logits` multiply in the forward code."""

    def __init__(self, width: int, layers: int, branch: float = 1.0, logits: float = 1.0):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, CLASSES, bias=False)
        self.branch, self.logits = branch, logits

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + (block(x) if self.branch == 1 else self.branch * block(x))
        return (
            self.readout(self.norm(x))
            if self.logits == 1
            else self.readout(self.norm(x)) * self.logits
        )


class Tied(nn.Module):
    """Tokens in, tokens out, through one tensor."""

    def __init__(self, width: int, logits: float = 1.0):
        super().__init__()
        self.embed, self.hidden, self.norm = (
            nn.Embedding(TOKENS, width),
            nn.Linear(width, width),
            nn.LayerNorm(width),
        )
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.embed.weight
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.hidden(self.embed(x))))
        return self.head(x) if self.logits == 1 else self.head(x) * self.logits


# training


def batch(kind: str) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    targets = torch.randint(CLASSES, (BATCH,), generator=random)
    if kind == "text":
        return torch.randint(TOKENS, (BATCH,), generator=random), targets
    return torch.randn(
        BATCH, *{"mlp": (FEATURES,), "cnn": (3, 4, 4)}[kind], generator=random
    ), targets


def trajectory(model: nn.Module, optimizer: torch.optim.Optimizer, kind: str) -> Tensor:
    """Return the loss and the logits of every step."""
    seen = []
    x, targets = batch(kind)
    for _ in range(STEPS):
        logits = model(x)
        loss = F.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(torch.cat([loss[None], logits.flatten()]).detach())
    return torch.stack(seen)


def seeded(build: Any, *sizes: Any) -> Any:
    torch.manual_seed(0)
    return build(*sizes)


def planned(
    kind: str, name: str, gauge: str = "folded", ratio: int = RATIO, **options: Any
) -> o1.Plan:
    """Return an applied plan; all gauges begin with the same random numbers."""
    base, model = seeded(Network, kind, BASE), seeded(Network, kind, ratio * BASE)
    made = o1.plan(model, base=base, optimizer=name, gauge=gauge, **(TUNED[name] | options))
    made.apply()
    return made


def run(plan: o1.Plan, kind: str) -> Tensor:
    options: dict[str, Any] = {"momentum": 0.9} if plan.settings.optimizer == "sgd" else {}
    return trajectory(plan.bound(), plan.optimizer(**options), kind)


def same(one: Tensor, other: Tensor, within: float = 1e-9) -> None:
    assert one[-1, 0] < one[0, 0] - 1e-3, "nothing was learnt"
    torch.testing.assert_close(one, other, rtol=within, atol=within)


def start_from(plan: o1.Plan, model: nn.Module, multipliers: dict[str, float]) -> None:
    """Return the effective weights of the plan's model, divided by the multipliers of this one."""
    theirs = dict(plan.bound().named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(theirs[name] / multipliers.get(name, 1.0))


# hooks

GAUGED = [
    ("mlp", "unit"),
    ("mlp", "paper"),
    ("cnn", "unit"),
    ("cnn", "paper"),
    ("text", "unit"),
    ("text", "paper"),
]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("kind", "gauge"), GAUGED)
def test_hooks_train_like_the_folded_network(kind, gauge, name):
    hooked = planned(kind, name, gauge)
    assert hooked.multipliers
    same(run(planned(kind, name), kind), run(hooked, kind))


@pytest.mark.parametrize("gauge", ["unit", "paper"])
@pytest.mark.parametrize("kind", ["mlp", "text"])
def test_hooks_train_like_the_folded_network_with_muon(kind, gauge):
    """torch's Muon rounds gradients to bfloat16, which powers of two survive: width times 4,
    multipliers 1/4, 1/2 and 2."""
    same(
        run(planned(kind, "muon", ratio=4), kind), run(planned(kind, "muon", gauge, ratio=4), kind)
    )


def test_muon_rounds():
    """With other factors, the two round differently: about as far apart as two bfloat16 runs
    are."""
    folded, unit = (run(planned("mlp", "muon", gauge), "mlp") for gauge in ("folded", "unit"))
    same(folded, unit, within=0.05)
    assert not torch.allclose(folded, unit, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor", "lion"])
@pytest.mark.parametrize("gauge", ["unit", "paper"])
def test_widths_may_grow_by_different_ratios(gauge, name):
    runs = []
    for choice in ("folded", gauge):
        base, model = seeded(Uneven, 8, 12), seeded(Uneven, 24, 24)
        plan = o1.plan(model, base=base, optimizer=name, gauge=choice, **TUNED[name])
        plan.apply()
        runs.append(run(plan, "mlp"))
    same(runs[0], runs[1])


@pytest.mark.parametrize("floor", [1e-8, 10.0])
def test_both_floors_of_adafactor_follow_the_gauge(floor):
    """A floor that never bites, and one under which every update is a plain gradient.

    In between, torch compares the same number with a gradient and, for matrices, with the square of
    one. No factor is right for both: there the gauges differ by 0.01 in the logits of this network.
    """
    eps = (floor, 0.1)
    folded, unit = (
        run(planned("mlp", "adafactor", gauge, eps=eps), "mlp") for gauge in ("folded", "unit")
    )
    same(folded, unit)


@pytest.mark.parametrize("decay", ["independent", "proportional"])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_the_meaning_of_weight_decay_does_not_depend_on_the_gauge(name, decay):
    folded, paper = (
        run(planned("mlp", name, gauge, decay=decay), "mlp") for gauge in ("folded", "paper")
    )
    same(folded, paper)


def test_without_its_hooks_the_network_differs():
    hooked, folded = planned("mlp", "adamw", "paper"), planned("mlp", "adamw")
    hooked.remove_multipliers()
    assert not torch.allclose(run(hooked, "mlp"), run(folded, "mlp"), rtol=1e-2)


# by hand: muP as S0 prints it (appendix B, Table 1), exponents of 1/n

ROLES = {
    "embed.weight": "embedding",
    "hidden.weight": "hidden",
    "readout.weight": "readout",
    "readout.bias": "fixed",
}
A = {"embedding": -1 / 2, "hidden": 0, "readout": 1 / 2, "vector": 0, "fixed": 0}
B = {"embedding": 1 / 2, "hidden": 1 / 2, "readout": 1 / 2, "vector": 0, "fixed": 0}
G = {
    "embedding": 1 / 2,
    "hidden": 1,
    "readout": 1 / 2,
    "vector": 1,
    "fixed": 0,
}  # gradients: S0 (5), with these a and b
SIGN = {"embedding": 1 / 2, "hidden": 1, "readout": 1 / 2, "vector": 0, "fixed": 0}
C = {
    "adam": SIGN,
    "adamw": SIGN,
    "lion": SIGN,
    "sgd": {"embedding": 0, "hidden": 0, "readout": 0, "vector": -1, "fixed": 0},
    "adafactor": {"embedding": 0, "hidden": 1 / 2, "readout": 0, "vector": 0, "fixed": 0},
}


def role(name: str) -> str:
    return ROLES.get(name, "vector")


def by_hand(model: nn.Module, name: str) -> torch.optim.Optimizer:
    groups = []
    for tensor, p in model.named_parameters():
        r, tuned = role(tensor), TUNED[name]
        a_step, a_gradient, a_weight = (RATIO ** -x[r] for x in (C[name], G, B))
        group = {
            "params": [p],
            "lr": tuned["lr"] * a_step,
            "weight_decay": tuned["weight_decay"] / a_step,
        }
        if name == "adam":  # its penalty is part of the gradient
            group["weight_decay"] = tuned["weight_decay"] * a_gradient / a_weight
        if name in ("adam", "adamw"):
            group["eps"] = tuned["eps"] * a_gradient
        if name == "adafactor":
            group["eps"] = (tuned["eps"][0] * a_gradient, tuned["eps"][1] * a_weight)
        groups.append(group)
    optimizer, options = OPTIMIZERS[name]
    return optimizer(groups, **options)


def explicit(kind: str, plan: o1.Plan) -> Explicit:
    multipliers = {
        part: RATIO ** -A[role(f"{part}.weight")] for part in ("embed", "hidden", "readout")
    }
    model = Explicit(kind, RATIO * BASE, **multipliers)
    start_from(plan, model, {f"{part}.weight": value for part, value in multipliers.items()})
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["mlp", "cnn", "text"])
@pytest.mark.parametrize("gauge", ["folded", "unit", "paper"])
def test_mup_by_hand_trains_like_the_plan(kind, name, gauge):
    plan = planned(kind, name, gauge)
    model = explicit(kind, planned(kind, name))
    same(run(plan, kind), trajectory(model, by_hand(model, name), kind))


@pytest.mark.parametrize("kind", ["mlp", "cnn", "text"])
def test_mup_by_hand_starts_with_the_sizes_of_the_table(kind):
    plan, base = planned(kind, "adamw"), seeded(Network, kind, BASE)
    sizes = {
        name: p.square().mean().sqrt().item() for name, p in explicit(kind, plan).named_parameters()
    }
    for name, p in base.named_parameters():
        if name != "readout.bias":  # its own test follows
            size = plan[name].base_std
            assert size == pytest.approx(
                p.square().mean().sqrt().item(), rel=0.3
            )  # the base is a small sample
            assert sizes[name] == pytest.approx(size * RATIO ** -B[role(name)]), name


@pytest.mark.parametrize("kind", ["mlp", "cnn", "text"])
def test_the_bias_of_a_readout_starts_as_large_as_in_the_base(kind):
    """torch draws biases of size 1 / sqrt(fan_in): the initial values shrink although the shape is
    the same."""
    plan = planned(kind, "adamw")
    row, bias = plan["readout.bias"], plan.bound().get_parameter("readout.bias")
    assert row.init_std == row.base_std
    assert bias.square().mean().sqrt().item() == pytest.approx(row.init_std)


TENSORS = [name for name, _ in Network("mlp", BASE).named_parameters()]


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("changed", ["lr", "weight_decay", "eps"])
def test_a_wrong_number_for_one_tensor_shows(name, changed):
    """A case that must fail: one tensor is wrong by the square root of the growth."""
    plan = planned("mlp", "adamw")
    right = run(copy.deepcopy(plan), "mlp")
    wrong = replace(plan[name], **{changed: getattr(plan[name], changed) * RATIO**0.5})
    plan = replace(plan, rows=tuple(wrong if row.name == name else row for row in plan.rows))
    assert (run(plan, "mlp") - right).abs().max() > 1e-4


# by hand: a tied readout


def tied(gauge: str = "folded") -> o1.Plan:
    base, model = seeded(Tied, BASE), seeded(Tied, RATIO * BASE)
    plan = o1.plan(model, base=base, inputs=batch("text")[0], gauge=gauge, **TUNED["adamw"])
    plan.apply()
    return plan


@pytest.mark.parametrize("gauge", ["folded", "unit"])
def test_the_multiplier_of_a_tied_readout_is_folded_into_the_last_norm(gauge):
    """The plan puts 1/r into the gain and the bias of the norm; by hand, it multiplies the
    logits."""
    plan, model = tied(gauge), Tied(RATIO * BASE, logits=1 / RATIO)
    assert [m.module for m in plan.multipliers] == ([] if gauge == "folded" else ["hidden"])
    assert plan["norm.weight"].constant == pytest.approx(1 / RATIO)
    start_from(tied(), model, {"norm.weight": 1 / RATIO, "norm.bias": 1 / RATIO})
    groups = []
    for name, p in model.named_parameters():
        fan_in = RATIO if name == "hidden.weight" else 1
        groups.append(
            {"params": [p], "lr": LR / fan_in, "weight_decay": DECAY * fan_in, "eps": EPS / RATIO}
        )
    same(run(plan, "text"), trajectory(model, torch.optim.AdamW(groups), "text"))


def test_a_tied_readout_without_its_multiplier_is_another_network():
    plan, model = tied(), Tied(RATIO * BASE)
    start_from(plan, model, {"norm.weight": 1 / RATIO, "norm.bias": 1 / RATIO})
    x = batch("text")[0]
    torch.testing.assert_close(model(x), RATIO * plan.bound()(x))


def gpt2(width: int) -> hf.GPT2LMHeadModel:
    sizes: dict[str, Any] = {
        "n_embd": width,
        "n_head": width // 4,
        "n_layer": 2,
        "vocab_size": TOKENS,
        "n_positions": 32,
    }
    dropped: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return seeded(
        hf.GPT2LMHeadModel, hf.GPT2Config(**sizes, **dropped, bos_token_id=0, eos_token_id=0)
    ).double()


class Logits(nn.Module):
    """A Hugging Face model as a function from tokens to logits, times a number."""

    def __init__(self, model: nn.Module, multiplier: float = 1.0):
        super().__init__()
        self.model, self.multiplier = model, multiplier

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=x.view(2, -1)).logits.flatten(0, 1) * self.multiplier


def test_the_tied_readout_of_gpt2():
    model = gpt2(RATIO * BASE)
    plan = o1.plan(model, base={"n_embd": BASE, "n_head": BASE // 4}, **TUNED["adamw"])
    other = gpt2(RATIO * BASE)
    plan.apply()
    norm = {"transformer.ln_f.weight": 1 / RATIO, "transformer.ln_f.bias": 1 / RATIO}
    start_from(plan, other, norm)
    groups = []
    for name, p in other.named_parameters():
        fan_in = RATIO if ".h." in name and p.dim() == 2 else 1
        groups.append(
            {"params": [p], "lr": LR / fan_in, "weight_decay": DECAY * fan_in, "eps": EPS / RATIO}
        )
    ours = trajectory(Logits(model), plan.optimizer(), "text")
    same(ours, trajectory(Logits(other, 1 / RATIO), torch.optim.AdamW(groups), "text"))


# by hand: depth (arXiv:2505.01618, Table 1; arXiv:2310.02244, Table 1)

BASE_LAYERS, LAYERS = 2, 10
M_N, M_L = RATIO, LAYERS / BASE_LAYERS
ALPHA = {"sqrt": 1 / 2, "completep": 1}


def deep(depth: str, name: str) -> o1.Plan:
    base, model = seeded(Residual, BASE, BASE_LAYERS), seeded(Residual, RATIO * BASE, LAYERS)
    plan = o1.plan(
        model, base=base, optimizer=name, depth=depth, inputs=batch("text")[0], **TUNED[name]
    )
    plan.apply()
    return plan


def deep_by_hand(depth: str, plan: o1.Plan) -> Residual:
    branch, logits = M_L ** -ALPHA[depth], 1 / M_N
    model = Residual(RATIO * BASE, LAYERS, branch, logits)
    last = {f"blocks.{i}.down.{part}": branch for i in range(LAYERS) for part in ("weight", "bias")}
    start_from(plan, model, {**last, "readout.weight": logits})
    return model


def completep(named: Iterable[tuple[str, nn.Parameter]], alpha: float) -> list[dict[str, Any]]:
    """AdamW. Table 1 gives weight decay for alpha = 1 only; then and otherwise, a step decays by
    eta * lambda."""
    groups = []
    for name, p in named:
        lr, eps = LR, EPS / M_N
        if name.startswith("blocks"):
            lr, eps = lr * M_L ** (alpha - 1), eps * M_L**-alpha
            if name.endswith(("up.weight", "down.weight")):
                lr /= M_N
        groups.append({"params": [p], "lr": lr, "weight_decay": LR * DECAY / lr, "eps": eps})
    return groups


@pytest.mark.parametrize("depth", ALPHA)
def test_depth_by_hand_trains_like_the_plan(depth):
    plan = deep(depth, "adamw")
    model = deep_by_hand(depth, plan)
    optimizer = torch.optim.AdamW(completep(model.named_parameters(), ALPHA[depth]))
    same(run(plan, "text"), trajectory(model, optimizer, "text"))


def test_completep_keeps_weight_decay_in_depth():
    """Table 1: lambda * m_N for hidden weights, lambda for their biases and norms, whatever the
    depth."""
    decays = {name: group["weight_decay"] for name, group in _by_name(completep, 1).items()}
    assert decays["blocks.3.up.weight"] == pytest.approx(DECAY * M_N)
    assert decays["blocks.3.up.bias"] == decays["blocks.3.norm.weight"] == pytest.approx(DECAY)
    rows = {row.name: row.weight_decay for row in deep("completep", "adamw").rows}
    assert rows["blocks.3.up.weight"] == pytest.approx(DECAY * M_N)
    assert rows["blocks.3.up.bias"] == rows["blocks.3.norm.weight"] == pytest.approx(DECAY)


def _by_name(groups: Any, alpha: float) -> dict[str, dict[str, Any]]:
    named = list(Residual(RATIO * BASE, LAYERS).named_parameters())
    return dict(zip((name for name, _ in named), groups(named, alpha), strict=True))


@pytest.mark.parametrize("depth", ALPHA)
def test_depth_by_hand_trains_like_the_plan_with_sgd(depth):
    """Depth-muP (alpha = 1/2): a rate that does not know the depth. In width: n for vectors,
    embeddings and a readout that is divided by n, and 1 for hidden matrices."""
    plan = deep(depth, "sgd")
    model = deep_by_hand(depth, plan)
    groups = []
    for name, p in model.named_parameters():
        hidden = name.endswith(("up.weight", "down.weight"))
        lr = (
            LR
            * (1 if hidden else M_N)
            * (M_L ** (2 * ALPHA[depth] - 1) if name.startswith("blocks") else 1)
        )
        groups.append({"params": [p], "lr": lr, "weight_decay": LR * DECAY / lr})
    same(run(plan, "text"), trajectory(model, torch.optim.SGD(groups, momentum=0.9), "text"))


def test_depth_left_out_is_another_network():
    plan = deep("completep", "adamw")
    model = Residual(RATIO * BASE, LAYERS, branch=1.0, logits=1 / M_N)
    start_from(plan, model, {"readout.weight": 1 / M_N})
    optimizer = torch.optim.AdamW(completep(model.named_parameters(), 1))
    assert not torch.allclose(run(plan, "text"), trajectory(model, optimizer, "text"), rtol=1e-6)


# --- scores that are divided by the root of the head size -----------------------------------------


class Scored(nn.Module):
    """Attention with heads that grow; the same function wherever the code divides."""

    def __init__(self, width: int, place: str):
        super().__init__()
        self.embedding = nn.Linear(FEATURES, width)
        self.queries = nn.Linear(width, width)
        self.keys = nn.Linear(width, width)
        self.values = nn.Linear(width, width)
        self.readout = nn.Linear(width, CLASSES)
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.embedding(x))
        factor = (x.shape[-1] / 2) ** -0.5
        q, k, v = self.queries(x), self.keys(x), self.values(x)
        if self.place == "queries":
            q = q * factor
        if self.place == "keys":
            k = k * factor
        q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.mT
        if self.place == "scores":
            scores = scores * factor
        return self.readout((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2).mean(1))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("place", ["queries", "keys"])
def test_scores_may_be_divided_before_or_after_the_product(place, name):
    x = torch.randn(BATCH, 4, FEATURES)
    factors: dict[str, dict[str, Any]] = {}
    for where in ("scores", place):
        plan = o1.plan(Scored(16, where), base=Scored(8, where), optimizer=name, lr=LR, inputs=x)
        factors[where] = {row.name: row.factors for row in plan.rows}
    assert factors["scores"]["queries.bias"].std == pytest.approx(0.5**0.5)
    assert factors[place] == factors["scores"]


class UsesWeight(nn.Module):
    """Code that multiplies with the weight of a layer without calling the layer, as Mamba does."""

    def __init__(self, width: int):
        super().__init__()
        self.read = nn.Linear(5, width)
        self.hidden = nn.Linear(width, width)
        self.write = nn.Linear(width, 3)

    def forward(self, x):
        x = torch.relu(self.read(x))
        return self.write(torch.relu(x @ self.hidden.weight.T + self.hidden.bias))


def test_a_hook_on_a_layer_that_is_not_called_is_refused():
    batch = torch.randn(4, 5)
    model = UsesWeight(32)
    with refuses("gauge-without-hook", argument="gauge") as caught:
        o1.plan(model, base=UsesWeight(8), lr=1e-2, inputs=batch, gauge="unit")
    assert "hidden.weight" in str(caught.value)
    folded = o1.plan(model, base=UsesWeight(8), lr=1e-2, inputs=batch)
    assert folded.multipliers == ()


class TiedInCode(nn.Module):
    """A readout module that shares the table, and is never called."""

    def __init__(self, width: int):
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.hidden = nn.Linear(width, width)
        self.readout = nn.Linear(width, 11, bias=False)
        self.readout.weight = self.tokens.weight

    def forward(self, x):
        return torch.relu(self.hidden(self.tokens(x))) @ self.readout.weight.T


def test_a_tied_readout_that_is_not_called_needs_a_multiplier_in_the_code():
    batch = torch.arange(11)[None]
    plan = o1.plan(TiedInCode(32), base=TiedInCode(8), lr=1e-2, inputs=batch)
    assert plan.multipliers == ()
    assert any("[tied-readout-in-code]" in note for note in plan.notes)
