"""Adapters other than LoRA: rates from the measured response, against closed forms and training.

Tolerances are statistical. A rate scatters by the `spread` that `support.adapter_formulas`
simulates for one random adapter. A test averages the logarithms of several independent adapters,
and allows SIGMAS standard errors: a correct rate fails once in 16,000 tests. Every such tolerance
must be smaller than a quarter power of the ratio of ranks, so that another power fails.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import adapter_formulas as formulas
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1

WIDTH = 64
DRAWS = 4  # random adapters that a test averages
LAYERS = 2  # of a model, drawn independently
SIGMAS = 4.0
X = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(0))


class Adapted(nn.Module):
    """A frozen matrix and an adapter; `scale` is the multiplier as a function of the rank."""

    def __init__(self, rank: int, scale: Callable[[int], float], width: int = WIDTH, draw: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(1_000_000 + draw)
        self.weight = nn.Parameter(self.draw(width, width, seed=generator) / width**0.5)
        self.weight.requires_grad_(False)
        self.rank = rank
        self.scale = scale(rank)
        self.make(rank, width, torch.Generator().manual_seed(1000 * draw + rank))

    @staticmethod
    def draw(*shape: int, seed: torch.Generator) -> Tensor:
        return torch.randn(*shape, generator=seed)

    def make(self, rank: int, width: int, seed: torch.Generator) -> None:
        self.down = nn.Parameter(self.draw(rank, width, seed=seed) / width**0.5)
        self.up = nn.Parameter(torch.zeros(width, rank))

    def matrix(self) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix().T


class MultipliedOut(Adapted):
    """W + s B A, as in many LoRA codes that merge before the product."""

    def matrix(self) -> Tensor:
        return self.weight + self.scale * (self.up @ self.down)


class Hadamard(Adapted):
    """W * (1 + s B A), as HiRA."""

    def matrix(self) -> Tensor:
        return self.weight * (1 + self.scale * (self.up @ self.down))


class TwoProducts(Adapted):
    """W + s (B1 A1) * (B2 A2), as LoHa."""

    def make(self, rank: int, width: int, seed: torch.Generator) -> None:
        super().make(rank, width, seed)
        self.down2 = nn.Parameter(self.draw(rank, width, seed=seed) / width**0.5)
        self.up2 = nn.Parameter(self.draw(width, rank, seed=seed))

    def matrix(self) -> Tensor:
        return self.weight + self.scale * (self.up @ self.down) * (self.up2 @ self.down2)


class Projected(Adapted):
    """W + diag(b) B diag(d) A with random A and B, as VeRA."""

    def make(self, rank: int, width: int, seed: torch.Generator) -> None:
        self.register_buffer("random_a", self.draw(rank, width, seed=seed) / width**0.5)
        self.register_buffer("random_b", self.draw(width, rank, seed=seed) / rank**0.5)
        self.d = nn.Parameter(torch.full((rank,), 0.1))
        self.b = nn.Parameter(torch.zeros(width))

    def matrix(self) -> Tensor:
        product = (self.b[:, None] * self.random_b * self.d) @ self.random_a  # pyright: ignore[reportOperatorIssue]
        return self.weight + self.scale * product


class Rotated(Adapted):
    """W R with R block-diagonal, a Cayley transform in every block, as OFT. The rank is the size of
    a block."""

    def make(self, rank: int, width: int, seed: torch.Generator) -> None:
        self.rotation = nn.Parameter(torch.zeros(width // rank, rank, rank))

    def matrix(self) -> Tensor:
        skew = self.rotation - self.rotation.transpose(1, 2)
        one = torch.eye(self.rank)
        blocks = torch.linalg.solve(one + skew, one - skew)
        return self.weight @ torch.block_diag(*blocks)


class Sparse(Adapted):
    """W and values at `rank` places of each row, as SHiRA."""

    def make(self, rank: int, width: int, seed: torch.Generator) -> None:
        places = torch.stack([torch.randperm(width, generator=seed)[:rank] for _ in range(width)])
        self.register_buffer("places", places)
        self.values = nn.Parameter(torch.zeros(width * rank))

    def matrix(self) -> Tensor:
        values = self.values.reshape(WIDTH, self.rank)
        return self.weight.scatter_add(1, self.places, values)  # pyright: ignore[reportArgumentType]


def constant(rank: int) -> float:
    return 1.0


def inverse(rank: int) -> float:
    return 8 / rank


def build(
    kind: type[Adapted], rank: int, scale: Callable[[int], float] = constant, draw: int = 0
) -> nn.Module:
    """Return two adapted layers with a frozen nonlinearity between them."""
    first = kind(rank, scale, draw=LAYERS * draw)
    second = kind(rank, scale, draw=LAYERS * draw + 1)
    return nn.Sequential(first, nn.Tanh(), second)


def plan(kind: type[Adapted], rank: int = 16, base: int = 4, **options: Any) -> o1.Plan:
    scale = options.pop("scale", constant)
    draw = options.pop("draw", 0)
    settings: dict[str, Any] = {"lr": 1.0, "inputs": X, **options}
    small = build(kind, base, scale, draw)
    return o1.plan(build(kind, rank, scale, draw), base=small, **settings)


def mean_rates(kind: type[Adapted], ranks: tuple[int, int], **options: Any) -> dict[str, float]:
    """Return the geometric means of the rates of the first layer over DRAWS plans, by tensor."""
    logs: dict[str, list[float]] = {}
    for draw in range(DRAWS):
        made = plan(kind, ranks[1], ranks[0], draw=draw, **options)
        for row in made.rows:
            if row.trained and row.name.startswith("0."):
                assert "measured response" in row.reason
                logs.setdefault(row.name.removeprefix("0."), []).append(math.log(row.lr))
    return {name: math.exp(sum(values) / DRAWS) for name, values in logs.items()}


def assert_rate(
    measured: float, factor: float, spread: float, ratio: float, adapters: int = DRAWS * LAYERS
) -> None:
    """Compare a mean rate over `adapters` with its prediction, within SIGMAS standard errors."""
    margin = SIGMAS * spread / math.sqrt(adapters)
    assert margin < math.log(ratio) / 4  # another power of the ratio of ranks would fail
    assert abs(math.log(measured / factor)) < margin, (measured, factor, margin)


def closed_form(size: formulas.Size, ranks: tuple[int, int]) -> float:
    return size(ranks[0], WIDTH) / size(ranks[1], WIDTH)


RANKS = [pytest.param((4, 16), marks=pytest.mark.slow), (6, 48)]
CLOSED_FORMS: list[tuple[formulas.Size, formulas.Step]] = [
    (formulas.lora_up, formulas.lora_up_step),
    (formulas.lora_up, formulas.lora_sgd_step),
    (formulas.hira_up, formulas.hira_up_step),
    (formulas.sparse, formulas.sparse_step),
    (formulas.oft, formulas.oft_step),
    (formulas.vera_b, formulas.vera_b_step),
    (formulas.vera_d, formulas.vera_d_step),
    (formulas.core, formulas.core_step),
]


@pytest.mark.parametrize("ranks", [(4, 16), (8, 32)])
@pytest.mark.parametrize(("size", "step"), CLOSED_FORMS)
def test_closed_forms_agree_with_simulated_steps(size, step, ranks):
    """VeRA's d neglects terms of order 1 / r and 1 / n, at most 0.02 of its logarithm here."""
    draws = 40
    found = formulas.simulated(step, ranks, WIDTH, draws)
    neglected = 0.02 if size is formulas.vera_d else 0.0
    margin = SIGMAS * found.spread / math.sqrt(draws) + neglected
    assert abs(math.log(found.factor / closed_form(size, ranks))) < margin


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("scale", [constant, inverse])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_multiplied_out_products_have_the_rates_of_lora(optimizer, scale, ranks):
    """Adam: 1 and 1 / (r s). SGD: gradients follow r s and s, so that rates are 1 / (r s^2) for B
    and, with B of size 1 / (r s), r times as much for A."""
    rates = mean_rates(MultipliedOut, ranks, scale=scale, optimizer=optimizer)
    ratio = ranks[1] / ranks[0]
    s = scale(ranks[1]) / scale(ranks[0])
    if optimizer == "adamw":
        step = formulas.lora_up_step
        up = 1 / (ratio * s)
        down = 1.0
    else:
        step = formulas.lora_sgd_step
        up = 1 / (ratio * s**2)
        down = ratio
    spread = formulas.simulated(step, ranks, WIDTH).spread
    assert_rate(rates["up"], up, spread, ratio)
    assert_rate(rates["down"], down, spread, ratio)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("scale", [constant, inverse])
def test_products_with_the_frozen_matrix(scale, ranks):
    rates = mean_rates(Hadamard, ranks, scale=scale)
    ratio = ranks[1] / ranks[0]
    up = closed_form(formulas.hira_up, ranks) * scale(ranks[0]) / scale(ranks[1])
    spread = formulas.simulated(formulas.hira_up_step, ranks, WIDTH).spread
    assert_rate(rates["up"], up, spread, ratio)
    down, spread = formulas.simulated(formulas.hira_down_step, ranks, WIDTH)
    assert_rate(rates["down"], down, spread, ratio)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_layers_have_the_same_rates_and_keep_their_initial_sizes(optimizer):
    made = plan(Hadamard, optimizer=optimizer)
    assert made["0.up"].lr == made["2.up"].lr
    assert made["0.down"].factors.std == 1
    assert "rank x4 (4 -> 16)" in made.headline


class Core(Adapted):
    """W + c L R with random L and R: no trained tensor has another shape."""

    def make(self, rank: int, width: int, seed: torch.Generator) -> None:
        self.register_buffer("left", self.draw(width, rank, seed=seed))
        self.register_buffer("right", self.draw(rank, width, seed=seed) / width**0.5)
        self.core = nn.Parameter(torch.zeros(()))

    def matrix(self) -> Tensor:
        return self.weight + self.core * (self.left @ self.right)  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize(
    ("kind", "tensor", "size", "step", "ranks"),
    [
        (Rotated, "rotation", formulas.oft, formulas.oft_step, (8, 64)),
        (Sparse, "values", formulas.sparse, formulas.sparse_step, (6, 48)),
        (Projected, "b", formulas.vera_b, formulas.vera_b_step, (6, 48)),
        (Projected, "d", formulas.vera_d, formulas.vera_d_step, (6, 48)),
        (Core, "core", formulas.core, formulas.core_step, (6, 48)),
    ],
)
def test_rates_of_other_adapters(kind, tensor, size, step, ranks):
    """The rate of `d` follows that of `b`, and has its spread too."""
    factor, spread = formulas.simulated(step, ranks, WIDTH)
    if tensor == "d":
        spread = math.hypot(spread, formulas.simulated(formulas.vera_b_step, ranks, WIDTH).spread)
    else:
        factor = closed_form(size, ranks)
    assert_rate(mean_rates(kind, ranks)[tensor], factor, spread, ranks[1] / ranks[0])


@pytest.mark.parametrize("ranks", RANKS)
def test_the_product_of_two_products(ranks):
    """r aligned terms of the product that starts at zero, r^1/2 of the random one."""
    factor, spread = formulas.simulated(formulas.loha_up_step, ranks, WIDTH)
    assert_rate(mean_rates(TwoProducts, ranks)["up"], factor, spread, ranks[1] / ranks[0])
    made = plan(TwoProducts)
    assert made["0.up2"].factors.std == made["0.down2"].factors.std == 1


def test_at_base_size_every_factor_is_one():
    for kind in (MultipliedOut, Projected, Rotated, Sparse, TwoProducts):
        same = plan(kind, rank=4)
        assert {row.lr for row in same.rows} == {1.0}
        assert "target equals its base" in same.headline


def test_what_is_not_measured_is_refused_by_name():
    with refuses("adapter-not-read", argument="rank_rule"):
        plan(MultipliedOut, inputs=None)
    with refuses("adapter-not-read", argument="rank_rule"):
        plan(MultipliedOut, rank_rule="mua")
    with refuses("adapter-not-read", argument="rank_rule"):
        plan(MultipliedOut, optimizer="adafactor")
    wide = MultipliedOut(16, constant, width=128)
    with refuses("adapter-not-read", argument="rank_rule"):  # rank and width at once
        o1.plan(
            nn.Sequential(nn.Linear(8, 128), wide, nn.Linear(128, 4)),
            base=nn.Sequential(nn.Linear(8, 64), MultipliedOut(4, constant), nn.Linear(64, 4)),
            lr=1.0,
            inputs=torch.randn(16, 8),
        )

    class Started(MultipliedOut):
        def make(self, rank: int, width: int, seed: torch.Generator) -> None:
            super().make(rank, width, seed)
            nn.init.normal_(self.up, generator=seed)

    with refuses("adapter-not-read", argument="rank_rule"):
        plan(Started)


def test_without_a_rule_adapters_have_the_settings_of_the_base():
    made = plan(TwoProducts, rank_rule=None)
    assert {row.lr for row in made.rows if row.trained} == {1.0}
    assert "rank_rule=None" in made["0.up"].reason


def test_models_are_as_before():
    model, base = build(TwoProducts, 16), build(TwoProducts, 4)
    before = [p.clone() for p in (*model.parameters(), *base.parameters())]
    o1.plan(model, base=base, lr=1.0, inputs=X)
    after = (*model.parameters(), *base.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(p.grad is None for p in after)


def test_bottleneck_adapters_of_torch_modules_are_widths():
    """Houlsby's adapters: Linear, nonlinearity, Linear beside a frozen layer."""

    class Block(nn.Module):
        def __init__(self, rank: int):
            super().__init__()
            self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
            self.down = nn.Linear(WIDTH, rank)
            self.norm = nn.LayerNorm(rank)
            self.up = nn.Linear(rank, WIDTH)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            y = self.frozen(x)
            return y + self.up(self.norm(self.down(y)).relu())

    made = o1.plan(Block(16), base=Block(4), lr=1.0, inputs=X)
    assert made["down.weight"].lr == made["norm.weight"].lr == made["down.bias"].lr == 1
    assert made["up.weight"].lr == 1 / 4
    assert made["up.weight"].role == "readout"


# --- training -------------------------------------------------------------------------------------


def change(kind: type[Adapted], ranks: tuple[int, int], rule: str | None, draw: int) -> float:
    """Return the change of the output of a token after three steps of AdamW on it, on average."""
    model = kind(ranks[1], constant, draw=draw)
    base = kind(ranks[0], constant, draw=draw)
    made = o1.plan(model, base=base, lr=1e-4, weight_decay=0, inputs=X, rank_rule=rule)
    made.apply()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = 0.0
    for row in range(len(X)):
        model.load_state_dict(start)
        optimizer = made.optimizer()
        target = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(row))
        before = model(X[row : row + 1]).detach()
        for _ in range(3):
            optimizer.zero_grad()
            (model(X[row : row + 1]) * target).sum().backward()
            optimizer.step()
        total += float((model(X[row : row + 1]) - before).detach().norm())
    return total


def exponent(kind: type[Adapted], rule: str | None) -> float:
    """Return the exponent of the change between two ranks, averaged over DRAWS adapters."""
    small, big = 8, 64
    logs = 0.0
    for draw in range(DRAWS):
        of_big = change(kind, (small, big), rule, draw)
        of_small = change(kind, (small, small), rule, draw)
        logs += math.log(of_big / of_small)
    return logs / DRAWS / math.log(big / small)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (MultipliedOut, formulas.lora_up),
        (Hadamard, formulas.hira_up),
        (Rotated, formulas.oft),
        (Sparse, formulas.sparse),
        (TwoProducts, None),
    ],
)
def test_changes_of_the_output_do_not_depend_on_the_size(kind, size):
    """Exponents are within 0.1 of the prediction, with the rule and without it.

    The limit is that of all slopes of this library. The largest scatter is that of MultipliedOut:
    32 tokens of rank 8 and 64 give (K (1/8 + 1/64) / 32)^1/2 = 0.050, the plan as much again, and
    four draws of both give 0.035 / log 8 = 0.017. So the limit is six standard deviations.
    """
    assert abs(exponent(kind, "mup")) < 0.1
    growth = 64**1.5 / 8**1.5 if size is None else 1 / closed_form(size, (8, 64))
    assert exponent(kind, None) == pytest.approx(math.log(growth) / math.log(8), abs=0.1)


def test_a_check_over_ranks():
    def one(rank: int) -> nn.Module:
        return nn.Sequential(MultipliedOut(rank, constant))

    batch = (X, X.roll(1, 0))
    assert o1.coord_check(one, ranks=[4, 8, 16, 32], lr=1e-4, batches=batch, seeds=2).passed


# --- peft -----------------------------------------------------------------------------------------


def peft_model(rank: int, config: Callable[[Any, int], Any]) -> nn.Module:
    peft = pytest.importorskip("peft")
    import transformers

    sizes: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, **sizes
        )
    )
    torch.manual_seed(1)
    return peft.get_peft_model(model, config(peft, rank))


TARGETS = {"target_modules": ["q_proj", "v_proj"]}
CONFIGS: dict[str, Callable[[Any, int], Any]] = {
    "vera": lambda peft, r: peft.VeraConfig(r=r, **TARGETS),
    "loha": lambda peft, r: peft.LoHaConfig(r=r, alpha=r, **TARGETS),
    "hira": lambda peft, r: peft.HiraConfig(r=r, **TARGETS),
    "oft": lambda peft, r: peft.OFTConfig(oft_block_size=r, r=0, **TARGETS),
    "boft": lambda peft, r: peft.BOFTConfig(boft_block_size=r, **TARGETS),
    "hra": lambda peft, r: peft.HRAConfig(r=r, **TARGETS),
    "miss": lambda peft, r: peft.MissConfig(r=r, **TARGETS),
    "gralora": lambda peft, r: peft.GraloraConfig(r=r, **TARGETS),
    "pvera": lambda peft, r: peft.PveraConfig(r=r, **TARGETS),
    "psoft": lambda peft, r: peft.PsoftConfig(r=r, **TARGETS),
    "waveft": lambda peft, r: peft.WaveFTConfig(n_frequency=8 * r, **TARGETS),
    "glora": lambda peft, r: peft.GloraConfig(r=r, **TARGETS),
    "c3a": lambda peft, r: peft.C3AConfig(block_size=r, **TARGETS),
    "randlora": lambda peft, r: peft.RandLoraConfig(r=r, **TARGETS),
    "vblora": lambda peft, r: peft.VBLoRAConfig(r=r, num_vectors=16, vector_length=16, **TARGETS),
}
# Tensors with a closed form of Adam's rate, r = 4 -> 16: the form without the multiplier, its step,
# and the growth of the multiplier. BOFT with one factor is OFT; GraLoRA adds up r products in every
# output, with alpha / r; B of GLoRA is a product without a multiplier.
FACTORS: dict[str, tuple[str, formulas.Size, formulas.Step, float]] = {
    "hira": ("hira_B", formulas.hira_up, formulas.hira_up_step, 1.0),
    "oft": ("oft_R", formulas.oft, formulas.oft_step, 1.0),
    "boft": ("boft_R", formulas.oft, formulas.oft_step, 1.0),
    "gralora": ("gralora_B", formulas.lora_up, formulas.lora_up_step, 1 / 4),
    "glora": ("glora_B.default.Xd", formulas.lora_up, formulas.lora_up_step, 1.0),
}


@pytest.mark.filterwarnings("ignore")  # BOFT looks for CUDA
@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_of_peft_are_measured(name):
    model, base = peft_model(16, CONFIGS[name]), peft_model(4, CONFIGS[name])
    made = o1.plan(model, base=base, lr=1.0)
    trained = [row for row in made.rows if row.trained]
    assert trained
    assert all("measured response" in row.reason for row in trained)
    assert not [note for note in made.notes if "attention-scale" in note]
    if name in FACTORS:
        part, size, step, multiplier = FACTORS[name]
        spread = formulas.simulated(step, (4, 16), 32).spread
        rates = [row.lr for row in trained if part in row.name]
        assert rates
        for rate in rates:  # two layers have the same rate, that of their mean response
            factor = size(4, 32) / size(16, 32) / multiplier
            assert_rate(rate, factor, spread, 4.0, adapters=2)
    made.apply()
    optimizer = made.optimizer()
    ids = torch.randint(3, 64, (2, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    made.check(optimizer)


REFUSED: dict[str, Callable[[Any, int], Any]] = {
    "adamss": lambda peft, r: peft.AdamssConfig(r=r, num_subspaces=2, subspace_rank=1, **TARGETS),
    "fourierft": lambda peft, r: peft.FourierFTConfig(n_frequency=8 * r, **TARGETS),
    "tinylora": lambda peft, r: peft.TinyLoraConfig(r=2, u=r, **TARGETS),
    "tinylora, rank": lambda peft, r: peft.TinyLoraConfig(r=r // 2, u=8, **TARGETS),
    "shira": lambda peft, r: peft.ShiraConfig(r=r // 4, **TARGETS),
    "poly": lambda peft, r: peft.PolyConfig(r=r, **TARGETS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_adapters_of_peft_that_cannot_be_measured_are_refused(name):
    with refuses("adapter-not-read", argument="rank_rule"):
        o1.plan(peft_model(16, REFUSED[name]), base=peft_model(4, REFUSED[name]), lr=1.0)
