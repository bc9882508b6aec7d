"""Adapters other than LoRA: rates from the measured response, against closed forms and training."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1

WIDTH = 64
X = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(0))


class Adapted(nn.Module):
    """A frozen matrix and an adapter; `scale` is the multiplier as a function of the rank."""

    def __init__(self, rank: int, scale: Callable[[int], float], width: int = WIDTH):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(self.draw(width, width, seed=generator) / width**0.5)
        self.weight.requires_grad_(False)
        self.rank = rank
        self.scale = scale(rank)
        self.make(rank, width, torch.Generator().manual_seed(rank))

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


def build(kind: type[Adapted], rank: int, scale: Callable[[int], float] = constant) -> nn.Module:
    """Return two adapted layers with a frozen nonlinearity between them."""
    return nn.Sequential(kind(rank, scale), nn.Tanh(), kind(rank, scale))


def plan(kind: type[Adapted], rank: int = 16, base: int = 4, **options: Any) -> o1.Plan:
    scale = options.pop("scale", constant)
    settings: dict[str, Any] = {"lr": 1.0, "inputs": X, **options}
    return o1.plan(build(kind, rank, scale), base=build(kind, base, scale), **settings)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("scale", [constant, inverse])
@pytest.mark.parametrize("kind", [MultipliedOut, Hadamard])
def test_products_have_the_factors_of_lora(kind, scale, optimizer):
    """Adam: 1 and 1 / (r s). SGD: gradients follow r s and s, so that rates are 1 / (r s^2) for B
    and, with B of size 1 / (r s), r times as much for A."""
    made = plan(kind, scale=scale, optimizer=optimizer)
    ratio = 4.0
    s = scale(16) / scale(4)
    up, down = 1 / (ratio * s), 1.0
    margin = 0.12
    if optimizer == "sgd":
        up, down = 1 / (ratio * s**2), ratio
        margin = 0.3  # averages of squares: four rows of A, 32 tokens
    assert made["0.up"].lr == pytest.approx(up, rel=margin)
    assert made["0.down"].lr == pytest.approx(down, rel=margin)
    assert made["0.up"].lr == made["2.up"].lr  # layers of a stack have the same factors
    assert made["0.down"].factors.std == 1
    assert "rank x4 (4 -> 16)" in made.headline


def test_factors_of_other_adapters():
    assert plan(Rotated)["0.rotation"].lr == pytest.approx(3 / 15, rel=0.2)
    assert plan(Sparse)["0.values"].lr == pytest.approx(1 / 4, rel=0.15)
    made = plan(Projected)
    assert made["0.b"].lr == pytest.approx(1, rel=0.2)
    # (1 + r / m)^1/2, and B of four random columns
    assert made["0.d"].lr == pytest.approx(((1 + 4 / WIDTH) / (1 + 16 / WIDTH)) ** 0.5, rel=0.2)
    both = plan(TwoProducts)
    # r aligned terms of the product that starts at zero, r^1/2 of the random one
    assert both["0.up"].lr == pytest.approx(4**-1.5, rel=0.3)
    assert both["0.up2"].factors.std == both["0.down2"].factors.std == 1


def test_at_base_size_every_factor_is_one():
    for kind in (MultipliedOut, Projected, Rotated, Sparse, TwoProducts):
        same = plan(kind, rank=4)
        assert {row.lr for row in same.rows} == {1.0}
        assert "target equals its base" in same.headline


def test_sizes_of_buffers_count():
    """Only the random projections differ: no trained tensor has another shape."""

    class Core(Adapted):
        def make(self, rank: int, width: int, seed: torch.Generator) -> None:
            self.register_buffer("left", self.draw(width, rank, seed=seed))
            self.register_buffer("right", self.draw(rank, width, seed=seed) / width**0.5)
            self.core = nn.Parameter(torch.zeros(()))

        def matrix(self) -> Tensor:
            return self.weight + self.core * (self.left @ self.right)  # pyright: ignore[reportOperatorIssue]

    assert plan(Core)["0.core"].lr == pytest.approx(1 / 2, rel=0.15)  # r^1/2 random terms


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


def change(kind: type[Adapted], rank: int, rule: str | None) -> float:
    """Return the change of the output of a token after three steps of AdamW on it, on average."""
    model, base = kind(rank, constant), kind(4, constant)
    made = o1.plan(model, base=base, lr=1e-4, weight_decay=0, inputs=X, rank_rule=rule)
    made.apply()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = 0.0
    for row in range(16):
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


@pytest.mark.parametrize(
    ("kind", "without"),
    [(MultipliedOut, 1.0), (Hadamard, 1.0), (Rotated, 1.0), (Sparse, 1.0), (TwoProducts, 1.5)],
)
def test_changes_of_the_output_do_not_depend_on_the_size(kind, without):
    """Without a rule they grow with the number of aligned terms."""
    for rule, expected, margin in (("mup", 0.0, 0.1), (None, without, 0.25)):
        exponent = math.log(change(kind, 32, rule) / change(kind, 4, rule)) / math.log(8)
        assert exponent == pytest.approx(expected, abs=margin), rule


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
# Adam's rate of the tensor that changes most, r = 4 -> 16; None: no closed form
FACTORS = {"hira": ("hira_B", 1 / 4), "oft": ("oft_R", 1 / 5), "boft": ("boft_R", 1 / 5)}
FACTORS |= {"gralora": ("gralora_B", 1.0), "glora": ("glora_B.default.Xd", 1 / 4)}


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
        part, factor = FACTORS[name]
        rates = [row.lr for row in trained if part in row.name]
        assert rates
        assert rates == pytest.approx([factor] * len(rates), rel=0.25)
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
