"""A baked model is plain and computes the same; a tied model without a batch is not silently
wrong."""

# pyright: reportAttributeAccessIssue=false
# pyright: reportIncompatibleMethodOverride=false

import copy
import warnings

import pytest
import torch
from support.errors import refuses
from test_roles import Language, mlp
from torch import nn

import orderone as o1
from orderone import rules
from orderone.core.errors import code_of

IDS = torch.arange(12).reshape(2, 6)
# multipliers that differ from those of the named rules
CUSTOM = rules.custom(
    "custom",
    a={"embedding": "-1/4", "hidden": "1/4", "readout": "1/2"},
    b={"embedding": "1/4", "hidden": "1/4", "readout": "1/2"},
)


class Bare(Language):
    """A tied model without a norm before the readout."""

    def forward(self, ids):
        h = self.word(ids) + self.place(torch.arange(ids.shape[1]))
        return self.head(h + self.body(self.norm(h)))


class Masked(Language):
    """A tied model whose input is not a batch of indices alone."""

    def forward(self, ids, mask):
        return super().forward(ids) * mask


def trained(plan, inputs, out=lambda y: y):
    """Apply the plan and take three steps, so that gains and biases are no constants."""
    model = plan.apply()
    optimizer = plan.optimizer()
    for _ in range(3):
        optimizer.zero_grad()
        out(model(inputs)).square().mean().backward()
        optimizer.step()
    return model.eval()


def hooks(model):
    return [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def assert_same(baked, model, plain, inputs, out=lambda y: y):
    with torch.no_grad():
        expected = out(model(inputs))
        torch.testing.assert_close(out(baked(inputs)), expected, rtol=1e-9, atol=1e-11)
        assert not hooks(baked)
        plain.load_state_dict(baked.state_dict())
        torch.testing.assert_close(out(plain.eval()(inputs)), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", ["mup", "ntk", CUSTOM], ids=["mup", "ntk", "custom"])
@pytest.mark.parametrize("gauge", ["folded", "unit", "paper"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_baked_model_is_plain_and_computes_the_same(rule, gauge, tied):
    plan = o1.plan(
        Language(128, tied=tied).double(),
        base=Language(32, tied=tied).double(),
        rule=rule,
        gauge=gauge,
        lr=1e-2,
    )
    assert bool(plan.multipliers) == (gauge != "folded")
    model = trained(plan, IDS)
    before = copy.deepcopy(model.state_dict())
    assert_same(plan.bake(model), model, Language(128, tied=tied).double(), IDS)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert len(hooks(model)) == len({multiplier.module for multiplier in plan.multipliers})


def test_an_mlp_and_convolutions_are_baked():
    def build(width):
        layers = [nn.Conv1d(3, width, 3), nn.ReLU(), nn.Conv1d(width, width, 3), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * width, 5)).double()

    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    plan = o1.plan(build(64), base=build(16), gauge="unit", lr=1e-2, inputs=x)
    assert {multiplier.module for multiplier in plan.multipliers} == {"2", "4"}
    model = trained(plan, x)
    assert_same(plan.bake(), model, build(64), x)


@pytest.mark.parametrize("gauge", ["folded", "unit", "paper"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_hugging_face_models_are_baked(kind, gauge):
    """GPT-2 is tied, Llama is not."""
    transformers = pytest.importorskip("transformers")

    def build(width):
        common = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0}
        if kind == "gpt2":
            config = transformers.GPT2Config(
                n_embd=width, n_head=2, n_layer=2, n_positions=16, **common
            )
            return transformers.GPT2LMHeadModel(config).double()
        config = transformers.LlamaConfig(
            hidden_size=width,
            intermediate_size=2 * width,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_hidden_layers=2,
            **common,
        )
        return transformers.LlamaForCausalLM(config).double()

    plan = o1.plan(build(64), base=build(16), gauge=gauge, lr=1e-2)
    assert bool(plan.multipliers) == (gauge != "folded")
    model = trained(plan, IDS, out=lambda y: y.logits)
    baked = plan.bake(model)
    plain = type(model)(baked.config).double()
    assert_same(baked, model, plain, IDS, out=lambda y: y.logits)
    assert baked.config.tie_word_embeddings == model.config.tie_word_embeddings


def test_the_strategies_of_the_effective_theory_are_baked():
    plan = o1.plan(Language(64, tied=True).double(), rule="neural-tangent", lr=1e-2)
    assert [code_of(note) for note in plan.notes] == ["multiplier-in-hook"]
    model = trained(plan, IDS)
    assert_same(plan.bake(model), model, Language(64, tied=True).double(), IDS)


def test_without_a_norm_the_baked_model_has_two_weights_and_says_so():
    plan = o1.plan(Bare(128, tied=True).double(), base=Bare(32, tied=True).double(), lr=1e-2)
    assert "multiplier-in-hook" in [code_of(note) for note in plan.notes]
    model = trained(plan, IDS)
    with pytest.warns(UserWarning, match="baked-untied"):
        baked = plan.bake(model)
    assert_same(baked, model, Bare(128, tied=False).double(), IDS)


def test_a_reloaded_model_without_hooks_is_baked():
    def build(width):
        return Language(width, tied=True).double()

    plan = o1.plan(build(128), base=build(32), gauge="paper", lr=1e-2)
    model = trained(plan, IDS)
    reloaded = build(128)
    reloaded.load_state_dict(model.state_dict())
    assert_same(plan.bake(reloaded), model, build(128), IDS)


def test_a_plan_that_was_not_applied_is_not_baked():
    with refuses("plan-not-applied"):
        o1.plan(mlp(64), base=mlp(16)).bake()


# --- tied models without an example batch ---------------------------------------------------------


def test_a_batch_of_indices_is_derived_for_a_tied_model():
    plan = o1.plan(Language(256, tied=True), base=Language(64, tied=True))
    seen = o1.plan(Language(256, tied=True), base=Language(64, tied=True), inputs=IDS)
    assert plan.multipliers == seen.multipliers == ()
    assert [row.init_std for row in plan.rows] == pytest.approx(
        [row.init_std for row in seen.rows], rel=0.05
    )
    assert plan["norm.weight"].constant == pytest.approx(0.25)
    model = plan.apply().eval()
    plain = Language(256, tied=True).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(IDS), model(IDS))


def test_a_tied_model_that_accepts_no_batch_of_indices_needs_one():
    def build(width):
        return Masked(width, tied=True)

    with refuses("needs-example-batch", argument="inputs"):
        o1.plan(build(256), base=build(64))
    batch = (IDS, torch.ones(1))
    assert o1.plan(build(256), base=build(64), inputs=batch).multipliers == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hooked = o1.plan(build(256), base=build(64), probe=False)
    assert [m.module for m in hooked.multipliers] == ["head"]
    assert "multiplier-in-hook" in [code_of(note) for note in hooked.notes]
