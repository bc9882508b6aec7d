"""Plans train step for step like the rules that other projects publish, in float64.

Each rule is written down here from its published table, as factors of one tensor, and trained with
torch.optim. Its factors in the forward pass are those of the table, too. The plan has none: what
they do is part of its initial sizes, learning rates and eps, so that `gauge` converts its weights.

m is the width, l the number of layers, each divided by that of the base:

* nanoGPT-mup, branch `completep`: `configure_optimizers`, which has one eps for all tensors.
* CompleteP (Dey et al. 2025, arXiv 2505.01618), table 1, as Cerebras publishes it; alpha is 1 for
  CompleteP and 1/2 for Depth-muP; equation 40 for eps. Its weight decay follows the width only.
* Megatron-LM, `get_mup_config_overrides` and `TransformerConfig`.
* u-muP (Blake et al. 2024, arXiv 2407.17465), table 2, as in unit-scaling.
* nanochat, `setup_optimizers`: Muon for matrices, AdamW for the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import orderone as o1

F = nn.functional
TOKENS, TIME, BATCH, STEPS = 24, 6, 4, 6
LR, DECAY = 0.01, 0.1
EPS = 1e-3  # as large as gradients, so that it matters
TINY = 1e-30  # for rules whose eps is not that of the plan
BASE = {"width": 16, "heads": 2, "layers": 2}
TARGET = {"width": 48, "heads": 3, "layers": 4}
WIDER = {"width": 48, "heads": 3, "layers": 2}
MORE_HEADS = {"width": 48, "heads": 6, "layers": 2}  # of the same size
M = TARGET["width"] / BASE["width"]
L = TARGET["layers"] / BASE["layers"]
HEAD = BASE["width"] // BASE["heads"]
HEAD_GROWTH = WIDER["width"] // WIDER["heads"] / HEAD


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass(frozen=True)
class Forward:
    """Factors in the forward pass, and what the model has."""

    tied: bool = False
    bias: bool = True
    gains: bool = True
    matrices: float = 1.0
    branch: float = 1.0
    logits: float = 1.0
    scale: Callable[[int], float] = lambda head: head**-0.5


class Scaled(nn.Linear):
    """Linear layer whose matrix has a factor."""

    def __init__(self, fan_in: int, fan_out: int, bias: bool, factor: float):
        super().__init__(fan_in, fan_out, bias=bias)
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(self.factor * input, self.weight, self.bias)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, options: Forward):
        super().__init__()
        self.heads = heads
        self.branch = options.branch
        self.scale = options.scale(width // heads)

        def linear(fan_in: int, fan_out: int) -> nn.Linear:
            if options.matrices == 1:
                return nn.Linear(fan_in, fan_out, bias=options.bias)
            return Scaled(fan_in, fan_out, options.bias, options.matrices)

        self.ln_1 = nn.LayerNorm(width, elementwise_affine=options.gains, bias=options.bias)
        self.q = linear(width, width)
        self.k = linear(width, width)
        self.v = linear(width, width)
        self.proj = linear(width, width)
        self.ln_2 = nn.LayerNorm(width, elementwise_affine=options.gains, bias=options.bias)
        self.up = linear(width, 4 * width)
        self.down = linear(4 * width, width)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for part in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.proj(mixed.transpose(-2, -3).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch * self.attention(self.ln_1(x))
        return x + self.branch * self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, sizes: dict[str, int], options: Forward):
        super().__init__()
        width = sizes["width"]
        self.wte = nn.Embedding(TOKENS, width)
        self.wpe = nn.Embedding(TIME, width)
        layers = (Layer(width, sizes["heads"], options) for _ in range(sizes["layers"]))
        self.layers = nn.ModuleList(layers)
        self.ln_f = nn.LayerNorm(width, elementwise_affine=options.gains, bias=options.bias)
        self.head = nn.Linear(width, TOKENS, bias=False)
        if options.tied:
            self.head.weight = self.wte.weight
        self.logits = options.logits
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.logits * self.ln_f(x))


def is_branch_end(name: str) -> bool:
    return name.endswith(("proj.weight", "down.weight", "proj.bias", "down.bias"))


def is_hidden(name: str) -> bool:
    return name.startswith("layers.") and ".ln_" not in name and name.endswith("weight")


def in_layers(name: str) -> bool:
    return name.startswith("layers.")


def is_vector(name: str) -> bool:
    return name.endswith("bias") or "ln_" in name


@dataclass(frozen=True)
class Factors:
    """Settings of a tensor relative to the base."""

    std: float = 1.0
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


@dataclass(frozen=True)
class Published:
    table: Callable[[str], Factors]
    gauge: Callable[[str], float]  # weights of the plan divided by those of the table
    forward: Forward  # of the table
    unscaled: Forward  # of the model that is planned
    plan: dict[str, Any]
    target: dict[str, int] = field(default_factory=lambda: TARGET)
    eps: float | None = EPS  # None: that of the plan


# --- CompleteP, and nanoGPT-mup ------------------------------------------------------------------


def completep(alpha: float, tied: bool, one_eps: bool = False) -> Published:
    """With `one_eps`, eps shrinks with the depth outside of the layers, too."""

    def table(name: str) -> Factors:
        eps = L**-alpha / M
        if not in_layers(name):
            return Factors(eps=eps if one_eps else 1 / M)
        lr = L ** (alpha - 1)
        if is_hidden(name):
            return Factors(std=M**-0.5, lr=lr / M, weight_decay=M, eps=eps)
        return Factors(lr=lr, eps=eps)

    def gauge(name: str) -> float:
        if is_branch_end(name):
            return L**-alpha
        return gauge_of_logits(name, tied)

    unscaled = Forward(tied=tied, scale=lambda head: 1 / head)
    options: dict[str, Any] = {"depth": "completep", "decay_vectors": False}
    if alpha != 1:
        options["depth"] = "sqrt"
        options["weight_decay"] = {"default": DECAY, "hidden": DECAY * L ** (alpha - 1)}
    return Published(
        table=table,
        gauge=gauge,
        forward=replace(unscaled, branch=L**-alpha, logits=1 / M),
        unscaled=unscaled,
        plan=options,
        eps=TINY if one_eps else EPS,
    )


def gauge_of_logits(name: str, tied: bool) -> float:
    """A factor of the logits is part of the readout, or of the norm before a tied one."""
    last = name.startswith("ln_f.") if tied else name == "head.weight"
    return 1 / M if last else 1.0


# --- Megatron-LM ---------------------------------------------------------------------------------


def megatron(tied: bool) -> Published:
    """Weight decay is not scaled. The readout that is not tied has lr / m beside logits / m."""

    def table(name: str) -> Factors:
        if is_hidden(name):
            return Factors(std=M**-0.5, lr=1 / M, eps=1 / M)
        if name == "head.weight":
            return Factors(lr=1 / M, eps=1 / M)
        return Factors()

    def gauge(name: str) -> float:
        if ".q." in name:
            return HEAD_GROWTH**-0.5
        return gauge_of_logits(name, tied)

    unscaled = Forward(tied=tied)
    return Published(
        table=table,
        gauge=gauge,
        forward=replace(unscaled, logits=1 / M, scale=lambda head: HEAD**0.5 / head),
        unscaled=unscaled,
        plan={
            "lr": LR if tied else {"default": LR, "readout": LR / M},
            "weight_decay": DECAY if tied else {"default": DECAY, "readout": DECAY * M},
            "decay": "proportional",
            "decay_vectors": False,
        },
        target=WIDER,
        eps=TINY,
    )


# --- u-muP ---------------------------------------------------------------------------------------


def u_mup() -> Published:
    """All weights have the same size at every width; the learning rate of embeddings shrinks."""

    def table(name: str) -> Factors:
        lr = L**-0.5 if in_layers(name) else 1.0
        if is_hidden(name) or name.startswith("w"):
            lr *= M**-0.5
        return Factors(lr=lr, weight_decay=1 / lr)

    def gauge(name: str) -> float:
        if not is_hidden(name):
            return gauge_of_logits(name, tied=False)
        return M**-0.5 * (L**-0.5 if is_branch_end(name) else 1.0)

    unscaled = Forward(bias=False, scale=lambda head: 1 / head)
    return Published(
        table=table,
        gauge=gauge,
        forward=replace(unscaled, matrices=M**-0.5, branch=L**-0.5, logits=1 / M),
        unscaled=unscaled,
        plan={
            "lr": {"default": LR, "embedding": LR * M**-0.5},
            "weight_decay": {"default": DECAY, "embedding": DECAY * M**0.5},
            "depth": "sqrt",
        },
        eps=TINY,
    )


# --- nanochat ------------------------------------------------------------------------------------


def nanochat() -> Published:
    """Muon has one learning rate; those of AdamW shrink as m^-1/2, embedding and readout alike.

    Its readout starts at zero, so that any factor of the size will do.
    """

    def table(name: str) -> Factors:
        if is_hidden(name):
            return Factors(std=M**-0.5)
        return Factors(std=1 / M if name == "head.weight" else 1.0, lr=M**-0.5)

    unscaled = Forward(bias=False, gains=False)
    return Published(
        table=table,
        gauge=lambda name: 1.0,
        forward=unscaled,
        unscaled=unscaled,
        plan={
            "optimizer": "muon",
            "lr": {"default": LR, "embedding": LR * M**-0.5, "readout": LR * M**0.5},
            "weight_decay": 0.0,
        },
        target=MORE_HEADS,
        eps=None,
    )


RULES: dict[str, Published] = {
    "nanoGPT-mup": completep(alpha=1, tied=True, one_eps=True),
    "CompleteP, tied": completep(alpha=1, tied=True),
    "CompleteP": completep(alpha=1, tied=False),
    "CompleteP, alpha 1/2": completep(alpha=0.5, tied=False),
    "Megatron-LM": megatron(tied=False),
    "Megatron-LM, tied": megatron(tied=True),
    "u-muP": u_mup(),
    "nanochat": nanochat(),
}


# --- training ------------------------------------------------------------------------------------


def batch() -> Tensor:
    return torch.randint(TOKENS, (BATCH, TIME + 1), generator=torch.Generator().manual_seed(0))


def planned(rule: Published) -> o1.Plan:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"lr": LR, "weight_decay": DECAY}
    if rule.eps is not None:
        settings["eps"] = rule.eps
    return o1.plan(
        GPT(rule.target, rule.unscaled),
        base=GPT(BASE, rule.unscaled),
        inputs=batch()[:, :-1],
        **(settings | rule.plan),
    )


def decays(rule: Published, name: str) -> bool:
    return rule.plan.get("decay_vectors", True) or not is_vector(name)


def published(rule: Published, plan: o1.Plan) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """Return the model of the published rule, with the weights of the plan, and its optimizers."""
    model = GPT(rule.target, rule.forward)
    groups: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    weight_decay = DECAY if rule.plan.get("weight_decay") != 0 else 0.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(plan.bound().get_parameter(name) / rule.gauge(name))
            factors = rule.table(name)
            eps = plan[name].eps if rule.eps is None else rule.eps * factors.eps
            group = {
                "params": [parameter],
                "lr": LR * factors.lr,
                "weight_decay": weight_decay * factors.weight_decay * decays(rule, name),
                "eps": eps,
            }
            groups[is_hidden(name)].append(group)
    if rule.plan.get("optimizer") == "muon":
        return model, [torch.optim.Muon(groups[True]), torch.optim.AdamW(groups[False])]
    return model, [torch.optim.AdamW(groups[True] + groups[False])]


def losses(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    tokens = batch()
    values: list[float] = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        values.append(loss.item())
    assert values[-1] < values[0] - 1e-2
    return values


@pytest.mark.parametrize("name", RULES)
def test_settings(name):
    rule = RULES[name]
    for row in planned(rule).rows:
        gauge = rule.gauge(row.name)
        factors = rule.table(row.name)
        assert row.lr == pytest.approx(LR * factors.lr * gauge), row.name
        if not is_vector(row.name):
            assert row.factors.std == pytest.approx(factors.std * gauge), row.name
        if decays(rule, row.name) and rule.plan.get("weight_decay") != 0:
            assert row.weight_decay == pytest.approx(DECAY * factors.weight_decay / gauge), row.name
        if rule.eps == EPS:
            assert row.eps == pytest.approx(EPS * factors.eps / gauge), row.name


@pytest.mark.parametrize("name", RULES)
def test_trains_step_for_step(name):
    rule = RULES[name]
    plan = planned(rule)
    plan.apply()
    theirs = losses(*published(rule, plan))
    assert losses(plan.bound(), [plan.optimizer()]) == pytest.approx(theirs, rel=1e-9)


FOLLOWED = ["CompleteP, alpha 1/2", "Megatron-LM", "u-muP", "nanochat"]


@pytest.mark.parametrize("name", FOLLOWED)
def test_differences_matter(name):
    """Without the settings that follow these rules where they leave muP, the losses differ."""
    rule = RULES[name]
    plan = planned(rule)
    plan.apply()
    of_mup = {"lr": LR, "weight_decay": DECAY}
    own = [key for key in of_mup if isinstance(rule.plan.get(key), dict)]
    other = planned(replace(rule, plan=rule.plan | {key: of_mup[key] for key in own}))
    other.apply()
    other.bound().load_state_dict(plan.bound().state_dict())
    theirs = losses(*published(rule, plan))
    least = 1e-6 if own == ["weight_decay"] else 1e-3
    assert losses(other.bound(), [other.optimizer()]) != pytest.approx(theirs, rel=least)


def test_one_eps_is_the_only_difference_of_nanogpt_mup():
    """An eps that is felt: the plan's of embeddings and last norm do not shrink with the depth."""
    rule = replace(RULES["nanoGPT-mup"], eps=EPS)
    plan = planned(rule)
    plan.apply()
    start = {name: p.clone() for name, p in plan.bound().state_dict().items()}
    theirs = losses(*published(rule, plan))

    def with_eps(depth: float) -> list[float]:
        plan.bound().load_state_dict(start)
        groups: list[dict[str, Any]] = []
        for row in plan.rows:
            assert isinstance(row.eps, float)
            eps = row.eps * (1.0 if in_layers(row.name) else depth)
            group = {"lr": row.lr, "weight_decay": row.weight_decay, "eps": eps}
            groups.append({"params": [plan.bound().get_parameter(row.name)], **group})
        return losses(plan.bound(), [torch.optim.AdamW(groups)])

    assert with_eps(1 / L) == pytest.approx(theirs, rel=1e-9)
    assert with_eps(1.0) != pytest.approx(theirs, rel=1e-4)
