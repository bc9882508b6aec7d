"""Plans of mixtures of experts whose base has another number of experts."""

import math

import pytest
import torch
from support.errors import refuses
from support.mixtures import MixtureNet, moe
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.core.roles import Role
from orderone.observe.inventory import shapes_of
from orderone.planning.base import from_module
from orderone.planning.forward_facts import collect
from orderone.planning.roles.experts import expert_parts, same_names
from orderone.planning.routing import Routing, RoutingChange

FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "olmoe")
# a softmax over all experts, whose largest entries are not normalized again
NOT_NORMALIZED = ("qwen3_moe", "olmoe")
X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))


def _plan(model: nn.Module, base: nn.Module, **options: object) -> o1.Plan:
    return o1.plan(model, base=base, lr=1.0, eps=1.0, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("family", FAMILIES)
def test_unmodified_models_are_planned_from_8_to_64_experts(family):
    plan = _plan(moe(family, 64), moe(family, 8))
    assert "experts x8 (8 -> 64)" in plan.headline
    assert any("expert-tokens" in note for note in plan.notes)
    rows = {row.name: row for row in plan.rows if ".1.mlp." in row.name}
    weights = 8.0 if family in NOT_NORMALIZED else 1.0
    for name, row in rows.items():
        if "shared" in name:
            assert row.factors == o1.rules.Factors()
        elif "down_proj" in name:
            assert (row.factors.lr, row.factors.std) == pytest.approx((weights, weights))
            assert row.eps == pytest.approx(8**-0.5 / weights)
        else:
            assert (row.factors.lr, row.factors.std) == (1, 1)
            assert row.eps == pytest.approx(8**-0.5)
    assert len([row for row in plan.rows if row.eps != 1]) >= 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fixed_fraction_of_active_experts_needs_no_note(family):
    """Weights that sum to k/M then sum to the same; gradients fall like 1/k."""
    plan = _plan(moe(family, 16, 4), moe(family, 8, 2))
    assert plan.notes == ()
    down = plan["model.layers.1.mlp.experts.down_proj"]
    assert (down.factors.lr, down.factors.std) == pytest.approx((1, 1))
    assert down.eps == pytest.approx(1 / 2)


def test_normalized_weights_are_measured_and_not_assumed():
    plan = _plan(moe("olmoe", 32, norm_topk_prob=True), moe("olmoe", 8, norm_topk_prob=True))
    assert plan["model.layers.0.mlp.experts.down_proj"].factors.lr == 1


def test_more_active_experts_of_as_many():
    """No tensor shows the number of active experts; the forward pass does."""
    plan = _plan(moe("mixtral", 8, 4), moe("mixtral", 8, 2))
    assert plan["model.layers.0.mlp.experts.down_proj"].eps == pytest.approx(2**-0.5)
    assert plan["model.layers.0.self_attn.q_proj.weight"].eps == 1


def test_experts_and_width_grow_together():
    base = moe("mixtral", 8, 2, width=32, hidden=32)
    plan = _plan(moe("mixtral", 16, 4, width=64, hidden=64, num_attention_heads=8), base)
    down = plan["model.layers.0.mlp.experts.down_proj"]
    assert (down.role, down.growth.fan_in, down.growth.fan_out) == ("hidden", 2, 2)
    assert down.factors.lr == pytest.approx(1 / 2)
    assert down.factors.gradient == pytest.approx(1 / 4)  # 1/2 in width, 1/2 in experts
    router = plan["model.layers.0.mlp.gate.weight"]
    assert (router.role, router.factors.std) == ("readout", pytest.approx(1 / 2))
    mssp = _plan(
        moe("mixtral", 16, 4, width=64, hidden=64, num_attention_heads=8), base, expert_rule="mssp"
    )
    assert mssp["model.layers.0.mlp.gate.weight"].factors.std == pytest.approx(2**-0.5)


@pytest.mark.parametrize("form", ["list", "dict", "fused"])
@pytest.mark.parametrize(("weights", "sum_of_them"), [("top", 1), ("all", 1 / 4), ("sigmoid", 1)])
def test_every_form_of_experts_is_read(form, weights, sum_of_them):
    base = MixtureNet(4, 2, form=form, weights=weights)
    model = MixtureNet(16, 2, form=form, weights=weights)
    before = [p.clone() for p in model.parameters()]
    plan = _plan(model, base, inputs=X)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert {row.depth for row in plan.rows} == {1.0}
    last = {"list": "moe.15.down.weight", "dict": "moe.expert_15.down.weight", "fused": "moe.w2"}
    up = {"list": "moe.3.up.bias", "dict": "moe.expert_3.up.bias", "fused": "moe.b1"}
    assert plan[f"layers.1.mix.{last[form]}"].factors.std == pytest.approx(1 / sum_of_them)
    assert plan[f"layers.0.mix.{up[form]}"].eps == pytest.approx(1 / 2)
    assert plan["layers.0.mix.router.weight"].eps == pytest.approx(1 / 2)
    assert plan["head.weight"].eps == 1


def test_measured_sums_of_weights_are_exact_fractions():
    """Rounding in single precision does not reach learning rates."""
    for exact in (1.0, 3.0, 1 / 3, 1 / 8, 5 / 12):
        for error in (-2e-6, 9.6e-7, 3e-7):
            change = RoutingChange(Routing(2.0, 1.0), Routing(2.0, exact * (1 + error)))
            assert change.weights == exact
    odd = RoutingChange(Routing(2.0, 1.0), Routing(2.0, 2**0.5))
    assert odd.weights == 2**0.5


class Inside(nn.Module):
    """Experts in a module of this name, which also contains their router."""

    def __init__(self, number: int, width: int = 16):
        super().__init__()
        self.router = nn.Linear(width, number, bias=False)
        self.up = nn.Parameter(torch.randn(number, width, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).topk(2, -1)
        y = torch.einsum("td,tkde->tke", x, self.up[chosen])
        return (weights.softmax(-1)[..., None] * y).sum(1)


class AroundThem(nn.Module):
    def __init__(self, number: int):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.experts = Inside(number)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.experts(x))


def test_a_module_of_experts_may_contain_their_router():
    plan = o1.plan(AroundThem(16), base=AroundThem(4), lr=1.0, inputs=torch.randn(32, 8))
    assert plan["experts.up"].lr == plan["experts.router.weight"].lr == 1
    assert plan["experts.up"].factors.gradient == pytest.approx(4**-0.5)
    assert "experts x4 (4 -> 16)" in plan.headline


def test_weights_of_a_sigmoid_grow_with_the_number_of_active_experts():
    base = MixtureNet(8, 2, weights="sigmoid")
    plan = _plan(MixtureNet(8, 4, weights="sigmoid"), base, inputs=X)
    assert plan["layers.0.mix.moe.0.down.weight"].factors.std == pytest.approx(1 / 2)


@pytest.mark.parametrize("form", ["list", "dict", "fused"])
def test_experts_that_choose_their_tokens(form):
    """On average a token has k experts, and weights that sum to k/M."""
    base = MixtureNet(4, 2, form=form, weights="choice")
    plan = _plan(MixtureNet(16, 2, form=form, weights="choice"), base, inputs=X)
    last = {"list": "moe.15.down.weight", "dict": "moe.expert_15.down.weight", "fused": "moe.w2"}
    row = plan[f"layers.1.mix.{last[form]}"]
    assert row.factors.std == row.lr == pytest.approx(4)
    assert row.eps == pytest.approx(1 / 8)
    assert plan["layers.0.mix.router.weight"].eps == pytest.approx(1 / 2)
    assert "2 of 16 experts (base: 2 of 4)" in row.reason
    assert any("expert-tokens" in note for note in plan.notes)
    same = _plan(MixtureNet(16, 8, form=form, weights="choice"), base, inputs=X)
    assert same[f"layers.1.mix.{last[form]}"].factors.std == pytest.approx(1)


def test_experts_that_drop_tokens_are_refused_by_name():
    """With equal logits all tokens want the same experts: how many are dropped is not known."""
    with refuses("experts-not-read", argument="expert_rule"):
        base = MixtureNet(4, weights="capacity")
        _plan(MixtureNet(16, weights="capacity"), base, inputs=X)


def test_unknown_routing_is_refused_by_name():
    with refuses("experts-not-read", argument="expert_rule"):
        _plan(MixtureNet(16, form="fused"), MixtureNet(8, form="fused"))
    with refuses("experts-not-read", argument="expert_rule"):
        _plan(moe("mixtral", 16), moe("mixtral", 8), probe=False)
    plan = _plan(MixtureNet(16), MixtureNet(8), expert_rule=None)
    assert {row.eps for row in plan.rows} == {1.0}
    with refuses("unknown-name", argument="expert_rule"):
        _plan(MixtureNet(8), MixtureNet(8), expert_rule="nonsense")


def test_at_base_size_nothing_changes():
    plan = _plan(MixtureNet(8), MixtureNet(8), inputs=X)
    assert all(row.factors == o1.rules.Factors() for row in plan.rows)


# --- widths that are no numbers of experts --------------------------------------------------------


class Products(nn.Module):
    """A tensor of three axes next to a matrix that has one of its sizes."""

    def __init__(self, width: int, equation: str, shape: tuple[int, int, int]):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.mix = nn.ModuleDict({"beside": nn.Linear(width, width)})
        self.mix.register_parameter("filters", nn.Parameter(torch.randn(shape) / width))
        self.equation = equation
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        made = torch.einsum(self.equation, x, self.mix.get_parameter("filters"))
        return self.head(torch.relu(self.mix["beside"](x)) * made.mean())


@pytest.mark.parametrize(
    ("equation", "width_out", "kinds"),
    [
        ("ti,iom->tom", 1, set()),  # the axis is summed: a width
        ("ti,iom->tom", 2, set()),
        ("ti,oim->tom", 1, set()),  # the other axis that grows is summed, the third stays
        ("ti,eoi->teo", 1, {"expert", "router"}),  # one matrix for each output beside
    ],
)
def test_an_axis_that_is_summed_counts_no_experts(equation, width_out, kinds):
    def build(width: int) -> Products:
        last = width if equation.startswith("ti,e") else 3
        return Products(width, equation, (width, width_out * width, last))

    model = build(32)
    base = build(8)
    facts = collect(model, from_module(base), X)
    shapes = shapes_of(model)
    summed = facts.summed_axes(facts.traced_as(shapes))
    parts = expert_parts(shapes, shapes_of(base), same_names(shapes), summed=summed)
    assert {part.kind for part in parts.values()} == kinds


@pytest.mark.parametrize(("router", "kinds"), [("pointwise", set()), ("router", {"expert"})])
def test_without_a_forward_pass_two_equal_axes_are_widths(router, kinds):
    """Unless the router is called so."""
    shapes = {"layers.0.w": (32, 32, 3), f"layers.0.{router}.weight": (32, 32)}
    base = {"layers.0.w": (8, 8, 3), f"layers.0.{router}.weight": (8, 8)}
    parts = expert_parts(shapes, base, same_names(shapes))
    assert {part.kind for part in parts.values() if part.kind == "expert"} == kinds


@pytest.mark.parametrize(
    ("tensor", "base", "kinds"),
    [
        ((32, 1, 1), (8, 1, 1), set()),  # gains of channels
        ((32, 256, 8), (8, 64, 8), set()),  # projections by head
        ((32, 8, 256), (8, 8, 64), set()),
        ((256, 32, 8), (64, 8, 8), set()),  # by head, behind the width
        ((256, 8, 32), (64, 8, 8), set()),
        ((32, 256, 16), (8, 64, 16), {"expert"}),
        ((32, 1, 256), (8, 1, 64), {"expert"}),  # biases of experts
    ],
)
def test_gains_and_projections_by_head_are_no_experts(tensor, base, kinds):
    shapes = {"layers.0.w": tensor, "layers.0.gate.weight": (32, 256)}
    base_shapes = {"layers.0.w": base, "layers.0.gate.weight": (8, 64)}
    parts = expert_parts(shapes, base_shapes, same_names(shapes))
    assert {part.kind for part in parts.values() if part.kind == "expert"} == kinds
    named = {name.replace(".w", ".expert_w"): shape for name, shape in shapes.items()}
    base_named = {name.replace(".w", ".expert_w"): shape for name, shape in base_shapes.items()}
    assert "layers.0.expert_w" in expert_parts(named, base_named, same_names(named))


class _GatedHeads(nn.Module):
    """Attention with weights by head, whose sizes are free, beside a gate for each head."""

    def __init__(self, width: int, heads: int, head: int):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.q = nn.Parameter(torch.randn(heads, width, head) / width**0.5)
        self.k = nn.Parameter(torch.randn(heads, width, head) / width**0.5)
        self.v = nn.Parameter(torch.randn(heads, width, head) / width**0.5)
        self.o = nn.Parameter(torch.randn(heads, head, width) / (heads * head) ** 0.5)
        self.strength = nn.Sequential(nn.Linear(width, heads), nn.Sigmoid())
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        h = self.embed(x)
        q, k, v = (torch.einsum("btd,hde->bhte", h, w) for w in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        mixed = mixed * self.strength(h).movedim(-1, 1)[..., None]
        return self.out(h + torch.einsum("bhte,hed->btd", mixed, self.o))


def test_weights_by_head_beside_gates_of_heads_are_no_experts():
    x = torch.randn(2, 5, 4)
    model = _GatedHeads(64, 8, 16)
    made = o1.plan(model, base=_GatedHeads(32, 4, 16), lr=1e-2, inputs=x)
    for name in ("q", "k", "v"):
        assert (made[name].growth.fan_in, made[name].growth.fan_out) == (2, 2), name
    assert (made["o"].growth.fan_in, made["o"].growth.fan_out) == (2, 2)
    assert {made[name].role for name in ("q", "k", "v", "o")} == {Role.HIDDEN}
    assert made["q"].lr == pytest.approx(5e-3)


class _Splines(nn.Module):
    """Layer of a Kolmogorov-Arnold network: a function of each input for each output."""

    def __init__(self, fan_in: int, fan_out: int):
        super().__init__()
        self.register_buffer("points", torch.linspace(-2, 2, 5))
        self.heights = nn.Parameter(torch.randn(fan_out, fan_in, 5) / fan_in**0.5)
        self.plain = nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, x):
        bumps = torch.exp(-((x[..., None] - self.points) ** 2))
        return torch.einsum("big,oig->bo", bumps, self.heights) + self.plain(x)


def test_splines_with_one_axis_of_outputs_are_no_experts():
    def build(width: int) -> nn.Module:
        return nn.Sequential(_Splines(8, width), _Splines(width, width), _Splines(width, 3))

    made = o1.plan(build(64), base=build(16), lr=1e-2, inputs=X)
    roles = (Role.EMBEDDING, Role.HIDDEN, Role.READOUT)
    for position, role in enumerate(roles):
        assert made[f"{position}.heights"].role == role
        assert made[f"{position}.plain.weight"].role == role
    assert made["1.heights"].growth.fan_in == 4
    assert made["1.heights"].lr == pytest.approx(2.5e-3)


def test_heads_of_xlnet_are_no_experts():
    transformers = pytest.importorskip("transformers")

    def build(width: int, heads: int) -> nn.Module:
        settings = {"vocab_size": 16, "n_layer": 1, "d_inner": 2 * width, "dropout": 0.0}
        tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        config = transformers.XLNetConfig(d_model=width, n_head=heads, **settings, **tokens)
        return transformers.XLNetLMHeadModel(config)

    inputs = {"input_ids": torch.arange(12).view(2, 6)}
    for heads in (4, 2):  # in number, or in size
        made = o1.plan(build(64, heads), base=build(32, 2), lr=1e-2, inputs=inputs)
        for name in ("q", "k", "v", "o", "r"):
            row = made[f"transformer.layer.0.rel_attn.{name}"]
            assert (row.role, row.growth.fan_in, row.growth.fan_out) == (Role.HIDDEN, 2, 2)


# --- real networks --------------------------------------------------------------------------------


def _slope(values: dict[int, float]) -> float:
    x = torch.tensor([math.log(size) for size in values])
    y = torch.tensor([math.log(value) for value in values.values()])
    return float(((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum())


def _slopes(weights: str, rule: str | None, signal: float = 0.0) -> dict[str, float]:
    """Return the exponent of the number of experts for every size, averaged over three seeds."""
    seeds = range(3)
    sizes = (4, 32)
    slopes: dict[str, float] = {}
    for seed in seeds:
        runs = {experts: _trained(experts, weights, rule, seed, signal) for experts in sizes}
        for key in runs[sizes[0]]:
            slope = _slope({experts: run[key] for experts, run in runs.items()})
            slopes[key] = slopes.get(key, 0.0) + slope / len(seeds)
    return slopes


def _trained(
    experts: int, weights: str, rule: str | None, seed: int, signal: float
) -> dict[str, float]:
    """Return the sizes of the block's first output, of updates and gradients of its tensors.

    The gradient of the output is random for every token; `signal` is the part that all share.
    """
    torch.manual_seed(seed)
    model = MixtureNet(experts, form="fused", weights=weights)
    base = MixtureNet(4, form="fused", weights=weights)
    plan = o1.plan(model, base=base, lr=1e-3, weight_decay=0, inputs=X, expert_rule=rule)
    plan.apply()
    optimizer = plan.optimizer()
    x = torch.randn(1024, 8)
    noise = torch.randn(1024, 4) + signal
    mix = model.layers[0]["mix"]  # pyright: ignore[reportIndexIssue]
    assert isinstance(mix, nn.Module)
    outputs: list[torch.Tensor] = []
    mix.register_forward_hook(lambda _module, _args, y: outputs.append(y.detach()))
    before = {name: p.detach().clone() for name, p in mix.named_parameters()}
    sizes: dict[str, float] = {}
    for step in range(3):
        optimizer.zero_grad()
        (model(x) * noise).mean().backward()
        if step == 0:
            for name, p in mix.named_parameters():
                assert p.grad is not None
                sizes[f"gradient {name}"] = float(p.grad.norm()) / p.numel() ** 0.5
        optimizer.step()
    sizes["output"] = float(outputs[0].square().mean().sqrt())
    for name, p in mix.named_parameters():
        change = (p - before[name]).detach()
        lr = plan[f"layers.0.mix.{name}"].factors.lr
        sizes[f"update {name}"] = float(change.norm()) / p.numel() ** 0.5 / lr
    return sizes


@pytest.mark.parametrize("weights", ["top", "all", "choice"])
def test_sizes_in_networks_with_more_experts_are_the_predicted_ones(weights):
    """At a constant number of active experts: outputs and updates of order one; gradients of
    experts M^-1/2, times the compensated weights for their last matrix."""
    for key, slope in _slopes(weights, "mup").items():
        expected = 0.0
        if key.startswith("gradient"):
            expected = -1.5 if (weights != "top" and "w2" in key) else -0.5
        tolerance = 0.2 if key.startswith("gradient") else 0.1
        assert slope == pytest.approx(expected, abs=tolerance), (key, slope)


def test_gradients_of_experts_that_all_tokens_share_fall_like_their_fraction_of_tokens():
    """1/M instead of M^-1/2: the range between the two is what training can show."""
    assert -1.1 < _slopes("top", "mup", signal=30.0)["gradient moe.w2"] < -0.75


@pytest.mark.parametrize("weights", ["all", "choice"])
def test_without_the_rule_unnormalized_weights_make_the_output_vanish(weights):
    assert _slopes(weights, None)["output"] == pytest.approx(-1, abs=0.15)


class AtTheRoot(nn.Module):
    """Router and experts beside other layers, in one module: the block is the whole model."""

    def __init__(self, width: int, experts: int = 4):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * (2 * width) ** -0.5)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        hidden = torch.relu(torch.bmm(x.expand(len(self.up), *x.shape), self.up))
        weights = self.router(x).softmax(dim=-1)
        return self.head(x + torch.einsum("be,ebw->bw", weights, torch.bmm(hidden, self.down)))


def test_layers_after_the_experts_do_not_pass_for_their_weights():
    """Two models with other random weights: the factor of the experts is one."""
    inputs = torch.randn(4, 8)
    same = o1.plan(AtTheRoot(16), base=AtTheRoot(16), inputs=inputs, lr=1e-2)
    assert same["down"].lr == 1e-2
    wide = o1.plan(AtTheRoot(64), base=AtTheRoot(16), inputs=inputs, lr=1e-2)
    assert wide["down"].lr == wide["up"].lr == pytest.approx(1e-2 / 4)
    with refuses("experts-not-read", argument="expert_rule"):
        o1.plan(AtTheRoot(16, 8), base=AtTheRoot(16, 4), inputs=inputs)


class _StateSpace(nn.Module):
    """Diagonal state-space layer: a kernel for each channel, from complex residues `(n, 4, 2)`."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.residues = nn.Parameter(torch.randn(width, 4, 2))
        self.mix = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        h = self.first(x)
        time = torch.arange(x.shape[1], dtype=x.dtype)
        modes = torch.exp(torch.complex(-time, time))
        kernels = (torch.view_as_complex(self.residues)[..., None] * modes).sum(1).real
        length = 2 * len(time)
        product = torch.fft.rfft(kernels, length) * torch.fft.rfft(h.mT, length)
        y = torch.fft.irfft(product, length)[..., : len(time)].mT
        return self.head((h + functional.glu(self.mix(y))).mean(1))


def test_tables_with_one_row_for_each_channel_are_no_experts():
    """Residues of n channels were read as n experts, and layers beside them as their router."""
    plan = _plan(_StateSpace(64), _StateSpace(16), inputs=torch.randn(2, 6, 3))
    assert plan["residues"].role is Role.VECTOR
    assert plan["mix.weight"].role is Role.HIDDEN
    assert plan["head.weight"].role is Role.READOUT


def test_more_unnamed_experts_of_the_same_width_are_still_experts():
    sizes = {"block.up": (8, 16, 32), "block.choice.weight": (8, 16), "head.weight": (4, 16)}
    base = {**sizes, "block.up": (4, 16, 32), "block.choice.weight": (4, 16)}
    parts = expert_parts(sizes, base, same_names(sizes))
    assert {name: part.kind for name, part in parts.items()} == {
        "block.up": "expert",
        "block.choice.weight": "router",
    }
