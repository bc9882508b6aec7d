"""Plans of adapters (LoRA) whose base has another rank, by hand and with unmodified peft models."""

import math

import pytest
import torch
from support.errors import refuses
from support.mixtures import adapted_mlp
from torch import nn

import orderone as o1

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def _plan(rank: int, base: int = 4, optimizer: str = "adamw", **options: object) -> o1.Plan:
    names = ("gamma", "alpha", "random", "width")
    network = {name: options.pop(name) for name in names if name in options}
    model = adapted_mlp(rank, **network)  # pyright: ignore[reportArgumentType]
    small = adapted_mlp(base, **network)  # pyright: ignore[reportArgumentType]
    keywords = {"lr": 1.0, "inputs": X, "optimizer": optimizer, **options}
    return o1.plan(model, base=small, **keywords)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("random", ["A", "B"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_the_rates_follow_the_multiplier(gamma, random):
    """lora's rates do not depend on the rank, those of B with rslora or a constant multiplier do;
    B starts smaller if it is random."""
    plan = _plan(32, gamma=gamma, random=random)
    assert "rank x8 (4 -> 32)" in plan.headline
    assert plan.notes == ()
    assert plan["2.left"].lr == pytest.approx(1)
    assert plan["2.right"].lr == pytest.approx(8 ** -(1 - gamma))
    if random == "B":
        assert plan["2.right"].factors.std == pytest.approx(8 ** -(1 - gamma))


def test_a_base_on_the_meta_device_keeps_changes_that_its_configuration_does_not_have():
    """A base that is rebuilt from its configuration would have 32 neurons instead of 40."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )

    def changed(neurons: int, device: str) -> nn.Module:
        with torch.device(device):
            model = transformers.LlamaForCausalLM(config)
            mlp = model.model.layers[0].mlp
            mlp.gate_proj = nn.Linear(16, neurons, bias=False)
            mlp.up_proj = nn.Linear(16, neurons, bias=False)
            mlp.down_proj = nn.Linear(neurons, 16, bias=False)
        for matrix in mlp.parameters():
            nn.init.normal_(matrix, std=config.initializer_range)
        return model

    plan = o1.plan(changed(80, "cpu"), base=changed(40, "meta"), lr=1.0)
    assert plan["model.layers.0.mlp.down_proj.weight"].growth.fan_in == 2


def test_a_composition_has_the_rule():
    recipe = o1.rules.compose("mup", rank_rule="mua")
    assert _plan(32, gamma=0.0, rule=recipe)["2.right"].lr == pytest.approx(8**-0.5)
    with refuses("option-of-the-rule", argument="rank_rule"):
        _plan(32, rule=recipe, rank_rule=None)


def test_frozen_tensors_are_respected():
    plan = _plan(32)
    model = plan.bound()
    before = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    plan.apply()
    optimizer = plan.optimizer()
    model(X).sum().backward()
    optimizer.step()
    assert before
    for name, p in model.named_parameters():
        if name in before:
            assert torch.equal(p, before[name])
            assert "frozen" in plan[name].reason


def test_other_rules_for_the_rank():
    mua = _plan(32, gamma=0.5, rank_rule="mua")
    assert mua["2.left"].lr == mua["2.right"].lr == pytest.approx(8**-0.25)
    none = _plan(32, gamma=0.5, rank_rule=None)
    assert none["2.left"].lr == none["2.right"].lr == 1


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_rates_of_sgd_follow_the_gradients(gamma):
    """The gradient of B is s (A x), so that its step changes the output by lr s^2 |A x|^2 ~
    lr s^2 r: the rate is 1 / (s^2 r), and the entries of B are of the order 1 / (s r). The gradient
    of A is s B, of the order 1 / r: the rate is r. Here r = 8 and s = r^-gamma."""
    sgd = _plan(32, gamma=gamma, optimizer="sgd")
    assert (sgd["2.left"].lr, sgd["2.right"].lr) == pytest.approx((8, 8 ** (2 * gamma - 1)))


def test_rank_and_width_grow_by_different_ratios():
    """The multiplier follows the rank: it is compensated exactly, not as a power of the width."""
    model = adapted_mlp(8, width=96)
    plan = o1.plan(model, base=adapted_mlp(4, width=24), lr=1.0, inputs=X)
    assert plan["2.left"].role == plan["2.right"].role == "hidden"
    assert plan["2.left"].lr == pytest.approx(1 / 4)
    assert plan["2.right"].lr == pytest.approx(1)  # 1/2 for the rank, 2 for alpha / r
    assert "width x4" in plan.headline
    assert "rank x2 (4 -> 8)" in plan.headline


def test_what_cannot_be_scaled_is_refused_by_name():
    with refuses("adapter-not-read", argument="rank_rule"):
        o1.plan(_of_modules(8), base=_of_modules(4), lr=1.0)
    with refuses("adapter-not-read", argument="rank_rule"):
        o1.plan(adapted_mlp(8), base=adapted_mlp(4), lr=1.0)
    small = adapted_mlp(4)
    nn.init.normal_(small[2].right)  # pyright: ignore[reportArgumentType]
    with refuses("adapter-not-zero", argument="rank_rule"):
        o1.plan(adapted_mlp(8), base=small, lr=1.0, inputs=X)
    with refuses("unknown-name", argument="rank_rule"):
        _plan(8, rank_rule="nonsense")


class WithGains(nn.Module):
    """B E A x with a gain E for each of the ranks, as in AdaLoRA."""

    def __init__(self, rank: int, start: float, gamma: float = 1.0):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, 8))
        self.gain = nn.Parameter(torch.full((rank, 1), start))
        self.b = nn.Parameter(torch.randn(8, rank))
        self.scaling = 16 / rank**gamma

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.scaling * (x @ (self.a * self.gain).T @ self.b.T)


def test_a_gain_that_starts_at_zero_makes_the_product_zero():
    plan = o1.plan(WithGains(6, 0.0, 0.5), base=WithGains(3, 0.0, 0.5), lr=1.0, inputs=X)
    assert plan["a"].lr == plan["gain"].lr == 1
    assert plan["b"].lr == plan["b"].factors.std == pytest.approx(2**-0.5)
    with refuses("adapter-not-zero", argument="rank_rule"):
        o1.plan(WithGains(6, 1.0), base=WithGains(3, 1.0), lr=1.0, inputs=X)


@pytest.mark.parametrize("kind", ["number", "buffer", "parameter"])
def test_the_multiplier_may_be_a_tensor(kind):
    """AdaLoRA divides by the rank, which it keeps as a parameter that is not trained."""

    class Divided(WithGains):
        def __init__(self, rank: int):
            super().__init__(rank, 0.0, gamma=0.0)
            number: object = float(rank)
            if kind == "buffer":
                self.register_buffer("number", torch.tensor([number]))
            elif kind == "parameter":
                self.number = nn.Parameter(torch.tensor([number]), requires_grad=False)
            else:
                self.number = number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(x) + x @ (self.a * self.gain).T @ self.b.T * 16 / (self.number + 0)

    plan = o1.plan(Divided(6), base=Divided(3), lr=1.0, inputs=X)
    assert plan["b"].lr == plan["b"].factors.std == pytest.approx(1.0)


def _of_modules(rank: int) -> nn.ModuleDict:
    """Return an adapter whose layouts are known without a forward pass."""
    frozen = nn.Linear(16, 16).requires_grad_(False)
    down = nn.Linear(16, rank, bias=False)
    up = nn.Linear(rank, 16, bias=False)
    nn.init.zeros_(up.weight)
    return nn.ModuleDict({"layer": nn.ModuleDict({"frozen": frozen, "down": down, "up": up})})


def test_layers_that_are_frozen_beside_trained_ones_are_no_adapters():
    """Queries and keys frozen, values and output trained: their sizes are widths."""

    class Attention(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = (self.q(x) @ self.k(x).T).softmax(-1)
            return self.o(scores @ self.v(x))

    def build(width: int) -> nn.Sequential:
        net = nn.Sequential(nn.Linear(8, width), Attention(width), nn.Linear(width, 4))
        for name, p in net.named_parameters():
            p.requires_grad_(name.split(".")[1] not in ("q", "k"))
        return net

    plan = o1.plan(build(64), base=build(16), lr=1.0, inputs=X)
    assert plan["1.v.weight"].lr == plan["1.o.weight"].lr == 1 / 4
    assert "rank" not in plan.headline


# --- real networks --------------------------------------------------------------------------------


def _change(rank: int, gamma: float, rule: str | None, random: str) -> float:
    """Return the size of the change of the outputs after a few steps of AdamW."""
    torch.manual_seed(0)
    model = adapted_mlp(rank, gamma, random=random, width=128)
    torch.manual_seed(0)
    base = adapted_mlp(8, gamma, random=random, width=128)
    plan = o1.plan(model, base=base, lr=1e-3, weight_decay=0, inputs=X, rank_rule=rule)
    plan.apply()
    optimizer = plan.optimizer()
    before = model(X).detach()
    target = X[:, :4]
    for _ in range(6):
        optimizer.zero_grad()
        (model(X) - target).square().mean().backward()
        optimizer.step()
    return float((model(X) - before).detach().norm())


def _exponent(gamma: float, rule: str | None, random: str) -> float:
    small = _change(8, gamma, rule, random)
    large = _change(64, gamma, rule, random)
    return math.log(large / small) / math.log(8)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_the_first_changes_do_not_depend_on_the_rank(gamma):
    assert _exponent(gamma, "mup", "A") == pytest.approx(0, abs=0.1)


def test_without_a_rule_changes_grow_with_the_rank():
    """With a multiplier that does not depend on the rank, r aligned terms add up."""
    assert _exponent(0.0, None, "A") == pytest.approx(1, abs=0.2)
    # mua divides by the root only
    assert _exponent(0.0, "mua", "A") == pytest.approx(0.5, abs=0.2)


# --- peft -----------------------------------------------------------------------------------------


def _peft_model(rank: int, **settings: object) -> nn.Module:
    peft = pytest.importorskip("peft")
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    settings = {"target_modules": ["q_proj", "v_proj", "down_proj"], "lora_alpha": 16, **settings}
    if settings.pop("adalora", False):
        adaptive = peft.AdaLoraConfig(init_r=rank, target_r=2, total_step=100, **settings)
        return peft.get_peft_model(model, adaptive)
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, **settings))


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"adalora": True}, 1.0),
        ({"lora_dropout": 0.1}, 1.0),
        ({"init_lora_weights": "gaussian", "use_rslora": True}, 4**-0.5),
        ({"target_modules": ["embed_tokens", "q_proj"], "use_rslora": True}, 4**-0.5),
        ({"modules_to_save": ["lm_head"], "bias": "all"}, 1.0),
    ],
)
def test_other_configurations_of_peft(settings, factor):
    plan = o1.plan(_peft_model(16, **settings), base=_peft_model(4, **settings), lr=1.0)
    assert "rank x4 (4 -> 16)" in plan.headline
    trained = [row for row in plan.rows if row.trained]
    assert len(trained) >= 6
    for row in trained:
        is_b = "lora_B" in row.name or "embedding_B" in row.name
        assert row.lr == pytest.approx(factor if is_b else 1.0, rel=1e-4)  # AdaLoRA adds 1e-5 to r


@pytest.mark.parametrize("start", ["pissa", "orthogonal", False])
def test_products_of_peft_that_do_not_start_at_zero_are_refused(start):
    with refuses("adapter-not-zero", argument="rank_rule"):
        o1.plan(
            _peft_model(16, init_lora_weights=start),
            base=_peft_model(4, init_lora_weights=start),
            lr=1.0,
        )


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize(("rslora", "factor"), [(False, 1.0), (True, 4**-0.5)])
def test_unmodified_peft_models_are_planned_applied_and_trained(rslora, factor, dora):
    """The example batch comes from the configuration of the model inside."""
    settings = {"use_rslora": rslora, "use_dora": dora}
    model = _peft_model(16, **settings)
    plan = o1.plan(model, base=_peft_model(4, **settings), lr=1e-3)
    assert "rank x4 (4 -> 16)" in plan.headline
    assert plan.notes == ()
    for row in plan.rows:
        if "lora_B" in row.name:
            assert row.lr == pytest.approx(1e-3 * factor)
        elif "lora_A" in row.name or "magnitude" in row.name:
            assert row.lr == pytest.approx(1e-3)
        else:
            assert not row.trained
    plan.apply()
    optimizer = plan.optimizer()
    ids = torch.randint(3, 64, (2, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    plan.check(optimizer)
