"""The strategies of S2 on whole models: every tensor has the initial size and the learning rate of
its group.

Which group a tensor belongs to is written down here, by name; the numbers are those of theory.
"""

import numpy as np
import pytest
import torch
import transformers
from support.errors import refuses
from support.transformers_small import (
    BUILD,
    CLASSES,
    IMAGE,
    VOCAB,
    encoder_decoder,
    gpt,
    ids,
    images,
    inputs,
    vit,
)
from torch import nn as tnn

import orderone as o1
from orderone import nn, theory

# as large as a patch of 4 x 4 pixels in three colours: sizes alone do not tell patches from hidden
# matrices
N = 48
POWER = {
    "standard": 0.0,
    "neural-tangent": 0.0,
    "s=1/4": 0.25,
    "hybrid": 0.5,
    "maximal-update": 1.0,
}
OURS = {
    "patchify": "patch",
    "words": "WE",
    "positions": "PE",
    "class_token": "PE",
    "attention": "QKVU",
    "mlp.up": "W",
    "mlp.down": "X",
    "head": "head",
}
HF = {
    "patch_embeddings": "patch",
    "shared": "WE",
    "wte": "WE",
    "position": "PE",
    "wpe": "PE",
    "attn": "QKVU",
    "attention": "QKVU",
    "fc1": "W",
    "fc2": "X",
    "c_fc": "W",
    "mlp.c_proj": "X",
    "intermediate": "W",
    "output.dense": "X",
    "classifier": "head",
}


def hf_vit(width: int = N):
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=width // 16,
            intermediate_size=4 * width,
            num_labels=CLASSES,  # type: ignore[call-arg]
            image_size=IMAGE,
            patch_size=4,
            hidden_dropout_prob=0.0,  # type: ignore[call-arg]
        )
    )


def hf_bart(width: int = N):
    from transformers import BartConfig, BartForConditionalGeneration

    heads = width // 16
    return BartForConditionalGeneration(
        BartConfig(
            d_model=width,
            vocab_size=VOCAB,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
            max_position_embeddings=16,
            dropout=0.0,
            eos_token_id=2,
            forced_eos_token_id=2,
        )
    )


def hf_gpt2(width: int = N):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=width,
            n_layer=2,
            n_head=width // 16,
            vocab_size=VOCAB,
            n_positions=16,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def with_biases(width: int = N):
    return vit(width, bias=True, affine=True, classes=width)  # a head as wide as the model


def gpt_with_biases(width: int = N):
    return BUILD["gpt_untied"](width, bias=True, affine=True)


MODELS = {
    **BUILD,
    "with_biases": with_biases,
    "gpt_with_biases": gpt_with_biases,
    "hf_vit": hf_vit,
    "hf_bart": hf_bart,
    "hf_gpt2": hf_gpt2,
}
TIED = ("encoder_decoder", "gpt", "hf_bart", "hf_gpt2")


@pytest.fixture(scope="module")
def models() -> dict[str, tnn.Module]:
    torch.manual_seed(0)
    return {name: build(N) for name, build in MODELS.items()}


def group_of(name: str, parameter: torch.Tensor, words: dict[str, str]) -> str:
    """In S2's words; `vector` for biases and gains inside of the model, and Hugging Face's class
    token."""
    if name in ("head.bias", "classifier.bias"):
        return "head_bias"
    if name.endswith((".bias", "cls_token")) or parameter.dim() == 1:
        return "vector"
    return next(
        group
        for word, group in words.items()
        if word in name and not (group == "X" and "attention.output" in name)
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("rule", POWER)
@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_the_numbers_of_its_group(models, name, rule, optimizer):
    model = models[name]
    plan = o1.plan(model, rule=rule, optimizer=optimizer, lr=2.0)
    n_out = {"vit": CLASSES, "vit_class": CLASSES, "hf_vit": CLASSES, "with_biases": N}.get(
        name, VOCAB
    )
    rates = theory.lr_factors(rule, optimizer, n=N, n_in=48, n_out=n_out, mlp=4)
    sizes = theory.init_std(rule, n=N, n_in=48, n_out=n_out, mlp=4)
    for tensor, parameter in model.named_parameters():
        row, group = (
            plan[tensor],
            group_of(tensor, parameter, HF if name.startswith("hf") else OURS),
        )
        assert row.group == group, tensor
        if (
            group == "vector"
        ):  # positions of one token: S2 (1.100), (1.109); starts as the model has it
            plain = rule if rule == "standard" else "neural-tangent"
            lift = N ** (
                POWER[rule] / (1 if optimizer == "sgd" else 2)
            )  # by the width of the stream, not of an MLP
            size = parameter.shape[-1] // (
                3 if "c_attn" in tensor else 1
            )  # queries, keys, values: as three biases
            rate = lift * theory.lr_factors(plain, optimizer, n=size)["PE"]
            size = parameter.detach().square().mean().sqrt().item()
        else:
            rate, size = rates[group], sizes[group]
        assert row.lr == pytest.approx(2.0 * rate), tensor
        assert row.init_std == pytest.approx(size), tensor
    rescale = [m.value for m in plan.multipliers]
    assert rescale == ([pytest.approx(N ** (-(1 + POWER[rule]) / 2))] if name in TIED else [])


@pytest.mark.parametrize("name", MODELS)
def test_model_and_optimizer_have_the_numbers_of_the_plan(name):
    torch.manual_seed(0)
    model = MODELS[name](N)
    plan = o1.plan(model, rule="hybrid", lr=0.1)
    plan.apply()
    optimizer = plan.optimizer()
    plan.check(optimizer)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for tensor, parameter in model.named_parameters():
        assert parameter.detach().square().mean().sqrt().item() == pytest.approx(
            plan[tensor].init_std, rel=1e-4
        )
        assert rates[id(parameter)] == plan[tensor].lr


def logits(model: tnn.Module, build) -> torch.Tensor:
    words = {gpt: (ids(),), encoder_decoder: (ids(), ids()), hf_bart: (ids(), None, ids())}[build]
    output = model(*words)
    return getattr(output, "logits", output).detach()


@pytest.mark.parametrize("build", [encoder_decoder, gpt, hf_bart])
def test_a_tied_head_needs_its_multiplier(build):
    """Logits of order one at every width; without N_rescale they grow like sqrt(n). Medians,
    because the logit of a word that stands there itself grows all the same (S2 footnote 19, erratum
    S2.11)."""
    sizes = {}
    for width in (64, 256):
        torch.manual_seed(0)
        model = build(width).eval()
        plan = o1.plan(model, rule="neural-tangent")
        plan.apply()
        sizes[width, "with"] = logits(model, build).abs().median().item()
        plan.remove_multipliers()
        sizes[width, "without"] = logits(model, build).abs().median().item()
    assert sizes[256, "with"] == pytest.approx(sizes[64, "with"], rel=0.15)
    assert sizes[64, "with"] == pytest.approx(0.6745, rel=0.2)  # of a standard normal
    assert sizes[256, "without"] == pytest.approx(2 * sizes[64, "without"], rel=0.15)


def test_a_model_that_rescales_itself_needs_no_multiplier():
    """The forward pass shows it, on a batch; a constant of order one is left alone."""
    assert o1.plan(gpt(64, rescale=64**-0.5), rule="neural-tangent", inputs=ids()).multipliers == ()
    (both,) = o1.plan(gpt(64, rescale=0.5), rule="neural-tangent", inputs=ids()).multipliers
    assert both.value == pytest.approx(1 / 8)


def test_the_constants_of_the_papers_runs():
    """S2 Table II.1.E: the neural-tangent run starts as the model does, with the constants of
    II.1.C."""
    model = vit(256)
    C = {"PE": 0.02**2, "Q": 1 / 2, "K": 1 / 2, "V": 1 / 2, "U": 1 / 3, "W": 2 / 5, "X": 8 / 5}
    plan = o1.plan(
        model,
        rule="neural-tangent",
        lr=20.0,
        weight_decay=4e-5,
        C=C,
        Lambda={"Q": 3.0},
        no_decay=["head.bias"],
    )
    for row in plan.rows:
        assert row.init_std == pytest.approx(
            model.get_parameter(row.name).detach().std().item(), rel=0.05, abs=1e-6
        )
        if (
            row.name != "head.bias"
        ):  # S2 (1.94): every group decays by lr * wd, whatever its own rate
            assert row.lr * row.weight_decay == pytest.approx(20.0 * 4e-5)
    assert plan["layers.0.attention.query.weight"].lr == pytest.approx(
        3 * plan["layers.0.attention.key.weight"].lr
    )
    assert plan["head.bias"].weight_decay == 0


def test_one_matrix_of_attention_cannot_be_named_where_it_is_packed(models):
    with refuses("invalid-argument", argument="C") as caught:
        o1.plan(models["hf_gpt2"], rule="hybrid", C={"Q": 2.0})
    assert "QKVU" in str(caught.value)
    assert "c_attn" in str(caught.value)
    with refuses("unknown-name", argument="group in C"):
        o1.plan(models["gpt"], rule="hybrid", C={"queries": 2.0})


# --- relative to a base ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILD)
def test_relative_to_a_base_and_one_without_memory(name):
    torch.manual_seed(0)
    model, base, example = BUILD[name](128), BUILD[name](64), inputs(name)
    batch = {"source": example[0], "target": example[1]} if len(example) == 2 else example[0]
    plan = o1.plan(model, base=base, rule="mup", lr=1.0, inputs=batch)
    assert not [note for note in plan.notes if "[unexpected-exponent]" in note], plan.notes
    layer = "decoder.1" if name == "encoder_decoder" else "layers.1"
    for matrix in ("attention.query", "attention.out", "mlp.up", "mlp.down"):
        row = plan[f"{layer}.{matrix}.weight"]
        assert (row.role, row.lr) == ("hidden", pytest.approx(0.5)), matrix
        assert row.factors.std == pytest.approx(0.5**0.5)
    first = "patchify" if name.startswith("vit") else "words"
    assert (plan[f"{first}.weight"].role, plan[f"{first}.weight"].lr) == ("embedding", 1.0)
    assert [m.value for m in plan.multipliers] == ([0.5] if name in TIED else [])
    if name not in TIED:
        assert (plan["head.weight"].role, plan["head.weight"].factors.std) == (
            "readout",
            pytest.approx(0.5),
        )
    with torch.device("meta"):
        ghost = BUILD[name](64)
    without = o1.plan(model, base=ghost, rule="mup", lr=1.0, probe=False)
    for row in without.rows:
        assert (row.role, row.lr) == (plan[row.name].role, plan[row.name].lr)
        assert row.init_std == pytest.approx(plan[row.name].init_std, rel=0.1, abs=1e-9), row.name


def test_wider_heads_are_divided_in_the_queries():
    """Queries have a tensor of their own, which takes what muP's 1/C lacks beside 1/sqrt(C)."""
    plan = o1.plan(gpt(256, heads=4), base=gpt(64, heads=4), lr=1.0, inputs=ids())
    query, key = (plan[f"layers.0.attention.{x}.weight"] for x in ("query", "key"))
    assert query.factors.std == pytest.approx(key.factors.std / 2)
    assert query.lr == pytest.approx(key.lr / 2)


# --- theory and network ---------------------------------------------------------------------------


def group_sizes(width: int, rule: str, optimizer: str, seed: int) -> dict[str, float]:
    """lambda |grad|^2 for SGD, lambda |grad|_1 for AdamW, by group: what a step of each group adds
    to the outputs."""
    torch.manual_seed(seed)
    model = vit(width)
    plan = o1.plan(model, rule=rule, optimizer=optimizer, lr=1.0)
    plan.apply()
    output = model(images(8))
    (
        output * torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
    ).mean().backward()
    sums: dict[str, float] = {}
    for row in plan.rows:
        gradient = model.get_parameter(row.name).grad
        assert gradient is not None
        size = gradient.square().sum() if optimizer == "sgd" else gradient.abs().sum()
        sums[row.group] = sums.get(row.group, 0.0) + row.lr * size.item()
    return sums


def group_exponents(rule: str, optimizer: str, seeds: int) -> dict[str, float]:
    widths = (64, 128, 256, 512)
    found = {w: [group_sizes(w, rule, optimizer, seed) for seed in range(seeds)] for w in widths}
    sums = {
        group: [sum(sizes[group] for sizes in found[w]) for w in widths] for group in found[64][0]
    }
    return {
        group: float(np.polyfit(np.log(widths), np.log(values), 1)[0])
        for group, values in sums.items()
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_group_moves_the_outputs_alike_at_every_width(optimizer):
    """Exponents of width of lambda |grad|^2, S2 (1.98)-(1.116)."""
    found = group_exponents("neural-tangent", optimizer, seeds=4)
    assert set(found) == {"patch", "PE", "QKVU", "W", "X", "head", "head_bias"}
    assert {group: slope for group, slope in found.items() if abs(slope) > 0.1} == {}


def test_with_one_rate_for_all_they_differ_by_a_power_of_the_width():
    """S2 II.1.E: for AdamW, matrices by n^3/2 and positions by n^1/2."""
    found = group_exponents("standard", "adamw", seeds=1)
    assert found["QKVU"] == pytest.approx(1.5, abs=0.15)
    assert found["PE"] == pytest.approx(0.5, abs=0.15)
    assert found["head"] == pytest.approx(1.0, abs=0.15)


BATCH = {
    "vit": (images(8), torch.arange(8) % CLASSES),
    "gpt": (ids(8), ids(8).roll(-1, 1)),
    "encoder_decoder": ({"source": ids(8), "target": ids(8)}, ids(8).roll(-1, 1)),
}


def checked(name: str, widths: list[int], **options) -> o1.measure.Check:
    return o1.coord_check(
        lambda width: BUILD[name](width, depth=1),
        widths,
        lr=1e-2,
        batches=BATCH[name],
        seeds=2,
        **options,
    )


@pytest.mark.parametrize("name", ["vit", "gpt"])
def test_a_coordinate_check_passes_under_mup_and_fails_without(name):
    assert checked(name, [32, 64, 128], steps=2).passed
    assert not checked(name, [32, 64, 128], steps=2, rule="sp").passed


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCH)
def test_a_coordinate_check_passes_up_to_width_512(name):
    check = checked(name, [64, 128, 256, 512], steps=4)
    assert check.passed, str(check)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_head_that_is_rescaled_already_is_not_rescaled_again(device):
    """Without a batch: the head's own forward code is asked."""
    with torch.device(device):
        plain, rescaled, odd = (nn.GPT(20, 8, 16, 2, 1, rescale=c) for c in (1.0, 16**-0.5, 0.3))
    values = [
        [m.value for m in o1.plan(model, rule="neural-tangent").multipliers]
        for model in (plain, rescaled, odd)
    ]
    assert values == [[0.25], [], [0.25]]  # 0.3 is no power of the width: a constant of order one


@pytest.mark.parametrize("mlp", [0.5, 4])
def test_matrices_of_a_narrow_mlp_keep_their_names(mlp):
    model = nn.VisionTransformer(image=8, patch=4, classes=5, width=16, heads=2, depth=1, mlp=mlp)
    plan, factors = (
        o1.plan(model, rule="hybrid", lr=1.0),
        theory.lr_factors("hybrid", "adamw", 16, 48, 5, mlp),
    )
    assert plan["layers.0.mlp.up.weight"].group == "W"
    assert {row.group: row.lr for row in plan.rows} == pytest.approx(
        {row.group: factors[row.group] for row in plan.rows}
    )


def test_queries_with_one_key_for_all_are_no_readout():
    config = transformers.FalconConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=100
    )
    plan = o1.plan(transformers.FalconForCausalLM(config), rule="hybrid", probe=False)
    assert plan["transformer.h.0.self_attention.query_key_value.weight"].group == "QKVU"
