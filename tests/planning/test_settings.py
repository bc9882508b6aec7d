"""Settings per role and pattern: which value a tensor gets, and what it does in training."""

# pyright: reportCallIssue=false
# pyright: reportArgumentType=false

import copy

import pytest
import torch
from support.errors import refuses
from torch import nn
from torch.nn import functional

import orderone as o1

DEFAULT, EMBEDDING, BIAS, ONE_NAME = 3e-3, 1e-2, 7e-4, 1e-3
LR = {"default": DEFAULT, "embedding": EMBEDDING, "*.bias": BIAS, "1.weight": ONE_NAME}


def build(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(11, width),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.Linear(width, width),
        nn.Linear(width, 5),
    )


class TiedModel(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.norm(self.inner(self.words(x))))


class ModelWithPositions(nn.Module):
    """A table of positions that is a parameter: no module declares its layout."""

    def __init__(self, width: int):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(1, 6, width))
        self.into = nn.Linear(3, width)
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)


def rates(plan):
    return {row.name: row.lr for row in plan.rows}


# --- which value counts ---------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("rule", ["mup", "sp", "standard"])
def test_each_rate_is_scaled_as_a_single_rate_would_be(width, rule):
    planned = rates(o1.plan(build(width), base=build(32), rule=rule, lr=LR))
    single = rates(o1.plan(build(width), base=build(32), rule=rule, lr=DEFAULT))
    expected = dict.fromkeys(single, 1.0)
    expected |= {name: BIAS / DEFAULT for name in single if name.endswith("bias")}
    expected |= {"0.weight": EMBEDDING / DEFAULT, "1.weight": ONE_NAME / DEFAULT}
    ratios = {name: planned[name] / single[name] for name in single}
    assert ratios == pytest.approx(expected, rel=1e-14)


def test_a_name_counts_before_a_pattern_a_role_an_optimizer_and_the_default():
    keys = {
        "default": 1.0,
        "muon": 2.0,
        "hidden": 3.0,
        "*.w*": 4.0,
        "1.w*": 5.0,
        "1.weight": 6.0,
    }
    values = []
    while len(keys) > 1:
        plan = o1.plan(build(64), base=build(64), optimizer="muon", lr=keys)
        values.append(plan["1.weight"].lr)
        keys.popitem()
    assert values == [6.0, 5.0, 4.0, 3.0, 2.0]


def test_the_order_of_keys_does_not_count():
    backwards = dict(reversed(LR.items()))
    model = build(64)
    base = build(32)
    plan = o1.plan(model, base=base, lr=LR)
    other = o1.plan(model, base=base, lr=backwards)
    assert plan.rows == other.rows
    assert plan.settings == other.settings


def test_equally_specific_patterns_with_different_values_are_refused():
    with refuses("invalid-argument", argument="lr"):
        o1.plan(build(64), base=build(32), lr={"default": 1.0, "1.*ght": 2.0, "*.weig*": 3.0})


def test_roles_are_the_same_at_base_size_where_no_dimension_grows():
    lr = {"default": 1.0, "readout": 2.0, "hidden": 3.0, "vector": 4.0}
    base = rates(o1.plan(build(32), base=build(32), rule="standard", lr=lr))
    large = rates(o1.plan(build(64), base=build(32), rule="standard", lr=lr))
    assert base == large
    assert base["4.bias"] == 4.0  # a bias of the output, although its size never grows


def test_a_table_of_positions_is_an_embedding_at_every_size():
    lr = {"default": 1.0, "embedding": 2.0}
    for width in (32, 64):
        plan = o1.plan(ModelWithPositions(width), base=ModelWithPositions(32), lr=lr)
        assert plan["pos_embed"].lr == plan["into.weight"].lr == 2.0


def test_a_role_that_depends_on_the_size_is_refused_if_that_changes_the_rate():
    def coincident(width):  # as many outputs as the base is wide
        return nn.Sequential(nn.Embedding(9, width), nn.Linear(width, width), nn.Linear(width, 32))

    lr = {"default": 1.0, "hidden": 2.0}
    with refuses("ambiguous-role", argument="lr"):
        o1.plan(coincident(64), base=coincident(32), lr=lr)
    chosen = {"2.weight": "readout"}
    for width in (32, 64):
        plan = o1.plan(
            coincident(width), base=coincident(32), rule="standard", lr=lr, overrides=chosen
        )
        assert plan["2.weight"].lr == 1.0
    same = o1.plan(coincident(64), base=coincident(32), lr={"default": 1.0, "embedding": 2.0})
    assert same["0.weight"].lr == 2.0


def test_roles_without_a_base():
    plan = o1.plan(build(32), base="absolute", lr=LR, init_scale={"readout": 0.5})
    single = o1.plan(build(32), base="absolute", lr=DEFAULT)
    assert plan["0.weight"].lr / single["0.weight"].lr == pytest.approx(EMBEDDING / DEFAULT)
    assert plan["4.weight"].init_std == pytest.approx(single["4.weight"].init_std / 2)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("lr", {"default": 1e-2, "embeding": 1e-2}, "unknown-name"),
        ("lr", {"default": 1e-2, "*.wieght": 1e-2}, "unknown-name"),
        ("lr", {"default": 1e-2, "muon": 1e-2}, "unknown-name"),
        ("lr", {"default": 1e-2, "fixed": 1e-2}, "unknown-name"),
        ("lr", {"embedding": 1e-2}, "invalid-argument"),  # no value for the others
        ("lr", {}, "invalid-argument"),
        ("lr", {"default": -1.0}, "invalid-argument"),
        ("lr", {"default": 1e-2, "hidden": None}, "invalid-argument"),
        ("lr", {1: 1e-2}, "wrong-type"),
        ("weight_decay", {"default": 0.1, "1.wait": 0.0}, "unknown-name"),
        ("init_scale", {"hiden": 2.0}, "unknown-name"),
        ("init_scale", {"adamw": 2.0}, "unknown-name"),
        ("init_scale", 0.0, "invalid-argument"),
        ("init_scale", {"2.bias": 2.0}, "invalid-argument"),  # starts at zero
    ],
)
def test_keys_without_a_tensor_and_wrong_values_are_refused(setting, value, code):
    with refuses(code, argument=setting):
        o1.plan(build(64), base=build(32), **{setting: value})


def test_the_message_names_near_matches():
    with pytest.raises(ValueError, match=r"'\*\.weight'"):
        o1.plan(build(64), base=build(32), lr={"default": 1e-2, "*.wieght": 1e-2})


def test_a_mapping_that_covers_every_tensor_needs_no_default():
    plan = o1.plan(build(64), base=build(32), rule="standard", lr={"*.weight": 1.0, "*.bias": 2.0})
    assert set(rates(plan).values()) == {1.0, 2.0}


def test_the_second_name_of_a_tied_tensor_points_to_the_first():
    with pytest.raises(ValueError, match=r"tied to words\.weight"):
        o1.plan(TiedModel(64), base=TiedModel(32), lr={"default": 1.0, "out.weight": 2.0})
    plan = o1.plan(TiedModel(64), base=TiedModel(32), lr={"default": 1.0, "words.weight": 2.0})
    assert plan["words.weight"].lr == 2.0


def test_frozen_tensors_need_no_value_and_cannot_be_named():
    model = build(64)
    model[0].requires_grad_(False)
    plan = o1.plan(model, base=build(32), lr={"*.bias": 1.0, "[1-9].weight": 2.0}, init_scale=3.0)
    assert plan["0.weight"].init_scale == 1.0
    before = model[0].weight.clone()
    plan.apply()
    assert torch.equal(model[0].weight, before)
    with refuses("unknown-name", argument="lr"):
        o1.plan(model, base=build(32), lr={"default": 1.0, "0.weight": 2.0})


def test_weight_decay_of_a_tensor_in_no_decay_is_refused():
    with refuses("unknown-name", argument="weight_decay"):
        o1.plan(
            build(64),
            base=build(32),
            no_decay="*.bias",
            weight_decay={"default": 0.1, "1.bias": 0.2},
        )


# --- weight decay and initial sizes ---------------------------------------------------------------


@pytest.mark.parametrize("decay", ["independent", "proportional"])
def test_weight_decay_per_role_follows_the_convention(decay):
    wd = {"default": 0.1, "readout": 0.3, "vector": 0.0}
    base = o1.plan(build(32), base=build(32), lr=LR, weight_decay=wd, decay=decay)
    plan = o1.plan(build(128), base=build(32), lr=LR, weight_decay=wd, decay=decay)
    assert base["4.weight"].weight_decay == 0.3
    assert plan["2.weight"].weight_decay == plan["4.bias"].weight_decay == 0.0
    for row, small in zip(plan.rows, base.rows, strict=True):
        if decay == "independent":
            product = small.lr * small.weight_decay
            assert row.lr * row.weight_decay == pytest.approx(product, rel=1e-12)
        else:
            assert row.weight_decay == small.weight_decay


@pytest.mark.parametrize("gauge", ["folded", "unit"])
def test_init_scale_multiplies_the_values_that_the_rule_gives(gauge):
    scale = {"default": 2.0, "readout": 0.5, "2.weight": 3.0}
    base = build(32)
    start = build(64)
    plain = o1.plan(copy.deepcopy(start), base=base, gauge=gauge)
    scaled = o1.plan(copy.deepcopy(start), base=base, gauge=gauge, init_scale=scale)
    model = plain.apply()
    other = scaled.apply()
    factors = {name: 2.0 for name, p in model.named_parameters() if p.dim() > 1}
    factors |= {"4.weight": 0.5, "2.weight": 3.0}
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p * factors.get(name, 1.0), rtol=1e-6, atol=0)
        assert scaled[name].init_std == pytest.approx(
            plain[name].init_std * factors.get(name, 1.0), rel=1e-12
        )


def test_init_scale_at_base_size_is_exact():
    model = build(32)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    o1.plan(model, base=build(32), init_scale={"embedding": 4.0}).apply()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name] * (4.0 if name == "0.weight" else 1.0))


# --- files and training ---------------------------------------------------------------------------


def test_a_saved_plan_has_the_same_settings_and_rows(tmp_path):
    plan = o1.plan(
        build(64),
        base=build(32),
        lr=LR,
        weight_decay={"default": 0.1, "vector": 0.0},
        init_scale=2.0,
    )
    plan.save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json")
    assert loaded.settings == plan.settings
    assert loaded.rows == plan.rows
    assert loaded.settings.per_tensor["lr"] == LR
    frame = plan.to_frame().set_index("name")
    assert frame.loc["0.weight", "lr"] == EMBEDDING
    assert frame.loc["0.weight", "init_scale"] == 2.0
    assert "'embedding'" in plan["0.weight"].reason


def test_groups_have_the_rates_and_check_holds():
    plan = o1.plan(build(64), base=build(32), lr=LR)
    plan.apply()
    optimizer = plan.optimizer()
    for group in optimizer.param_groups:
        for name in group["names"]:
            assert group["lr"] == plan[name].lr
    plan.check(optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10))
    optimizer.param_groups[0]["lr"] *= 2
    with pytest.raises(o1.BrokenRatios):
        plan.check(optimizer)


def test_losses_are_those_of_an_optimizer_written_by_hand():
    def losses(model, optimizer):
        generator = torch.Generator().manual_seed(1)
        result = []
        for _ in range(5):
            x = torch.randint(11, (16,), generator=generator)
            loss = functional.cross_entropy(model(x), x % 5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result

    width, base = 96, 32
    torch.manual_seed(0)
    model = build(width)
    wd = {"default": 0.1, "vector": 0.0}
    plan = o1.plan(model, base=build(base), lr=LR, weight_decay=wd)
    plan.apply()
    torch.manual_seed(0)
    by_hand = build(width)
    by_hand.load_state_dict(model.state_dict())
    m = width / base
    eps = 1e-8
    groups = [
        {"params": [by_hand[0].weight], "lr": EMBEDDING, "weight_decay": 0.1, "eps": eps / m},
        {"params": [by_hand[1].weight], "lr": ONE_NAME / m, "weight_decay": 0.1 * m},
        {"params": [by_hand[3].weight], "lr": DEFAULT / m, "weight_decay": 0.1 * m},
        {"params": [by_hand[2].weight], "lr": DEFAULT, "weight_decay": 0.0},
        {"params": [by_hand[4].weight], "lr": DEFAULT / m, "weight_decay": 0.1 * m, "eps": eps},
        {"params": [by_hand[i].bias for i in (1, 2, 3)], "lr": BIAS, "weight_decay": 0.0},
        {"params": [by_hand[4].bias], "lr": BIAS, "weight_decay": 0.0, "eps": eps},
    ]
    expected = losses(by_hand, torch.optim.AdamW(groups, eps=eps / m))
    assert losses(model, plan.optimizer()) == pytest.approx(expected, rel=1e-6)
