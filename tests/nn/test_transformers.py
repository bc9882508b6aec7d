"""Our Transformers: counts of the paper, passes against torch's and Hugging Face's code, and what
users do with them."""

import copy
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses
from support.transformers_small import (
    BUILD,
    CLASSES,
    IMAGE,
    LENGTH,
    VOCAB,
    encoder_decoder,
    gpt,
    ids,
    images,
    inputs,
    vit,
)
from support.warm import WARM
from torch import Tensor
from torch import nn as tnn

from orderone import nn

M = TypeVar("M", bound=tnn.Module)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# --- sizes ----------------------------------------------------------------------------------------

COUNTS = {"vit_b16": 86_444_008, "bart_large": 404_845_568, "r2c2": 2_688_739_328}  # s002.params.*


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_of_the_paper(name):
    with torch.device("meta"):
        model = getattr(nn, name)()
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_counts_written_out():
    """Groups one by one: the formulas of S2 II.1.B and II.2.B for any sizes."""
    n, depth = 64, 2
    block = n * n * (4 + 2 * 4)
    tokens = (IMAGE // 4) ** 2
    assert count(vit()) == 48 * n + tokens * n + block * depth + n * CLASSES + CLASSES
    assert count(BUILD["vit_class"]()) == count(vit()) + 2 * n  # a token, and a position for it
    assert (
        count(encoder_decoder())
        == VOCAB * n + 2 * LENGTH * n + block * depth + n * n * (8 + 2 * 4) * depth
    )
    assert count(gpt()) == VOCAB * n + LENGTH * n + block * depth
    assert count(BUILD["gpt_untied"]()) == count(gpt()) + VOCAB * n


def test_biases_and_gains_are_switches():
    n, depth = 64, 2
    biases = depth * (4 * n + 5 * n)
    assert count(gpt(bias=True)) == count(gpt()) + biases
    assert count(gpt(affine=True)) == count(gpt()) + (2 * depth + 1) * 2 * n
    assert count(vit(bias=True)) == count(vit()) + biases + n
    assert count(vit(head_bias=False)) == count(vit()) - CLASSES
    assert count(encoder_decoder(affine=True)) == count(encoder_decoder()) + (5 * depth + 4) * 2 * n


def count(model: tnn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# --- passes ---------------------------------------------------------------------------------------


def randomised(model: M) -> M:
    """Randomize biases and gains too, so that a missing one changes the result."""
    for p in model.parameters():
        tnn.init.normal_(p, std=0.2)
    return model.eval()


def take(
    state: dict[str, Tensor], theirs: str, ours: str, names: dict[str, str]
) -> dict[str, Tensor]:
    return {
        f"{ours}{new}.{kind}": state[f"{theirs}{old}.{kind}"]
        for new, old in names.items()
        for kind in ("weight", "bias")
    }


def test_the_vision_transformer_is_hugging_faces():
    """With biases, gains and a class token it is the same network, given the same weights."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "num_labels": 10,
        "image_size": IMAGE,
        "patch_size": 4,
        "layer_norm_eps": 1e-6,
    }
    theirs = randomised(ViTForImageClassification(ViTConfig(**sizes)))
    state = theirs.state_dict()
    stem = "vit.embeddings."
    mine = take(state, "", "", {"norm": "vit.layernorm", "head": "classifier"})
    mine |= {
        "patchify.weight": state[f"{stem}patch_embeddings.projection.weight"].flatten(1),
        "patchify.bias": state[f"{stem}patch_embeddings.projection.bias"],
        "class_token.weight": state[f"{stem}cls_token"][0],
        "positions.weight": state[f"{stem}position_embeddings"][0],
    }
    layers = next(
        key.rpartition(".0.layernorm_before")[0] for key in state if ".0.layernorm_before" in key
    )
    inside = {
        name.removeprefix(f"{layers}.0.").rpartition(".")[0]
        for name in state
        if f"{layers}.0." in name
    }
    names = {"attention_norm": "layernorm_before", "mlp_norm": "layernorm_after"}
    for new, words in {
        "attention.query": ("q_proj", "query"),
        "attention.key": ("k_proj", "key"),
        "attention.value": ("v_proj", "value"),
        "attention.out": ("attention.o_proj", "attention.output"),
        "mlp.up": ("fc1", "intermediate"),
        "mlp.down": ("fc2", "output.dense"),
    }.items():
        found = [name for name in inside if any(word in name for word in words)]
        names[new] = min(found, key=len)  # `output.dense` is a part of `attention.output.dense`
    for layer in range(2):
        mine |= take(state, f"{layers}.{layer}.", f"layers.{layer}.", names)
    ours = vit(pooling="class", bias=True, affine=True).eval()
    ours.load_state_dict(mine)
    torch.testing.assert_close(ours(images()), theirs(images()).logits, rtol=1e-4, atol=1e-4)


def test_gpt_is_hugging_faces_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=64,
        n_layer=2,
        n_head=4,
        vocab_size=VOCAB,
        n_positions=LENGTH,
        activation_function="gelu",
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = randomised(GPT2LMHeadModel(config))
    state = {
        name.removeprefix("transformer."): value for name, value in theirs.state_dict().items()
    }
    mine = {
        "words.weight": state["wte.weight"],
        "head.weight": state["wte.weight"],
        "positions.weight": state["wpe.weight"],
    }
    mine |= take(state, "", "", {"norm": "ln_f"})
    for layer in range(2):
        old, new = f"h.{layer}.", f"layers.{layer}."
        mine |= take(state, old, new, {"attention_norm": "ln_1", "mlp_norm": "ln_2"})
        matrices = {"attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
        turned = take(state, old, new, matrices)
        mine |= {name: value.t() for name, value in turned.items()}  # Conv1D is transposed
        for kind in ("weight", "bias"):
            parts = state[f"{old}attn.c_attn.{kind}"].chunk(3, dim=-1)
            mine |= {
                f"{new}attention.{p}.{kind}": x.t()
                for p, x in zip(("query", "key", "value"), parts, strict=True)
            }
    ours = gpt(bias=True, affine=True).eval()
    ours.load_state_dict(mine)
    torch.testing.assert_close(ours(ids()), theirs(ids()).logits, rtol=1e-4, atol=1e-4)


def test_the_encoder_decoder_is_torchs_layers_with_three_more_norms():
    model = randomised(encoder_decoder(rescale=0.5))
    n, heads = 64, 4
    options = {
        "nhead": heads,
        "dim_feedforward": 4 * n,
        "dropout": 0.0,
        "activation": "gelu",
        "batch_first": True,
        "norm_first": True,
        "bias": False,
    }

    def normed(x: Tensor) -> Tensor:
        return tnn.functional.layer_norm(x, (n,), eps=1e-5)

    def load(layer: tnn.Module, block: tnn.Module) -> tnn.Module:
        own = dict(block.named_parameters())
        for name, p in layer.named_parameters():
            part = "cross_attention" if name.startswith("multihead") else "attention"
            if "in_proj" in name:
                p.data = torch.cat(
                    [own[f"{part}.{x}.weight"] for x in ("query", "key", "value")]
                ).detach()
            elif "out_proj" in name:
                p.data = own[f"{part}.out.weight"].detach()
            elif "linear" in name:
                p.data = own[f"mlp.{'up' if 'linear1' in name else 'down'}.weight"].detach()
        return layer.eval()

    source, target = ids(), ids(tokens=9, seed=1)
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[1, 7:] = False
    table = model.words.weight
    z = normed(table[source] + model.encoder_positions.weight[:12])
    for block in model.encoder:
        z = load(tnn.TransformerEncoderLayer(n, **options), block)(z, src_key_padding_mask=~mask)
    memory = normed(z)
    z = normed(table[target] + model.decoder_positions.weight[:9])
    causal = torch.triu(torch.ones(9, 9, dtype=torch.bool), 1)
    for block in model.decoder:
        layer = load(tnn.TransformerDecoderLayer(n, **options), block)
        z = layer(z, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    expected = 0.5 * normed(z) @ table.T
    torch.testing.assert_close(model(source, target, mask), expected, rtol=1e-4, atol=1e-4)


def test_patches_are_rows_of_the_image():
    """A patch matrix that sums one pixel of one channel shows where the pixel came from."""
    model, x = vit(), images(2)
    patches = model._patches(x)
    assert patches.shape == (2, 16, 48)
    side = IMAGE // 4
    for row, column, channel, i, j in ((0, 0, 0, 0, 0), (1, 2, 2, 3, 1), (3, 3, 1, 2, 2)):
        expected = x[:, channel, 4 * row + i, 4 * column + j]
        assert torch.equal(patches[:, side * row + column, 16 * channel + 4 * i + j], expected)


def test_attention_ignores_later_tokens_and_padding():
    model, x = gpt().eval(), ids()
    changed = x.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % VOCAB
    torch.testing.assert_close(model(x)[:, :8], model(changed)[:, :8])
    assert not torch.allclose(model(x)[:, 8:], model(changed)[:, 8:])

    both, target = encoder_decoder().eval(), ids(tokens=9, seed=1)
    mask = (torch.arange(LENGTH) < 8).expand(4, -1)
    torch.testing.assert_close(both(x, target, mask), both(changed, target, mask))
    torch.testing.assert_close(both(x, target, mask), both(x[:, :8], target))
    assert not torch.allclose(both(x, target), both(changed, target))
    torch.testing.assert_close(
        both(x, target, mask), both(x, target, mask.long())
    )  # Hugging Face's convention


# --- initial sizes --------------------------------------------------------------------------------


def test_initial_variances_of_the_vision_transformer():
    """S2 II.1.C, and uniform where it says so."""
    model = vit(256)
    expected = {"patchify": 1 / 48, "positions": 4e-4, "head": 1 / 256}
    block = {
        "attention.query": 0.5,
        "attention.key": 0.5,
        "attention.value": 0.5,
        "attention.out": 1 / 3,
        "mlp.up": 2 / 5,
    }
    expected |= {f"layers.0.{name}": C / 256 for name, C in block.items()} | {
        "layers.0.mlp.down": 8 / 5 / 1024
    }
    for name, variance in expected.items():
        weight = model.get_parameter(f"{name}.weight")
        assert weight.var().item() == pytest.approx(
            variance, rel=5 / math.sqrt(weight.numel() / 2)
        ), name
    uniform = model.get_parameter("layers.0.mlp.up.weight")
    assert uniform.abs().max().item() == pytest.approx(math.sqrt(3 * 2 / 5 / 256), rel=1e-2)
    assert not model.head.bias.any()


def test_language_models_start_at_one_standard_deviation():
    """S2 II.2.C with erratum S2.8; the row of the padding token is zero (footnote 48)."""
    model = encoder_decoder(128, padding=1)
    for name, p in model.named_parameters():
        assert p.std().item() == pytest.approx(0.02, rel=0.05), name
    assert not model.words.weight[1].any()


def test_constants_can_be_passed():
    model = gpt(256, C={"WE": 1.0, "Q": 4.0})
    assert model.words.weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert model.get_parameter("layers.1.attention.query.weight").std().item() == pytest.approx(
        2 / 16, rel=0.05
    )
    assert model.get_parameter("layers.1.attention.key.weight").std().item() == pytest.approx(
        0.02, rel=0.05
    )


# --- use ------------------------------------------------------------------------------------------


def gradients(model: tnn.Module, run, x: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    output = run(*x)
    output.float().square().mean().backward()
    return output.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


def stacks(model: tnn.Module) -> list[tnn.Module]:
    return [module for module in model.modules() if hasattr(module, "checkpoint")]


@pytest.mark.parametrize("name", BUILD)
def test_checkpointing_changes_nothing_but_memory(name):
    model, x = BUILD[name](), inputs(name)
    output, grads = gradients(model, model, x)
    again = BUILD[name](checkpoint=True)
    again.load_state_dict(model.state_dict())
    assert stacks(again)
    assert all(stack.checkpoint for stack in stacks(again))
    torch.testing.assert_close(gradients(again, again, x), (output, grads))


def test_checkpointed_insides_are_computed_twice():
    model = gpt(checkpoint=True)
    calls = []
    model.get_submodule("layers.0.mlp.up").register_forward_hook(lambda *_: calls.append(1))
    gradients(model, model, inputs("gpt"))
    assert len(calls) == 2


COMPILED = """
import torch
import orderone as o1
from support.transformers_small import BUILD, inputs
for name in names:
    for checkpoint in (False, True):
        model, x = BUILD[name](checkpoint=checkpoint, depth=1), inputs(name)
        o1.plan(model, rule="neural-tangent").apply()  # with the multiplier of a tied head
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        results = []
        for run in (model, compiled):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = run(*x)
            output.float().square().mean().backward()
            results.append([output.float(), *(p.grad.clone() for p in model.parameters())])
        assert output.dtype == torch.bfloat16
        for one, two in zip(*results):
            assert (one - two).norm() <= 0.03 * one.norm(), name
        print(name, checkpoint)
"""


def compiled(backend: str, *names: str) -> list[str]:
    """Outside of the run-time type checks of this suite, which no compiler sees through."""
    folder = str(Path(__file__).parents[1])
    arguments = f"sys.path.insert(0, {folder!r})\nbackend, names = {backend!r}, {names!r}\n"
    result = WARM.code(f"import sys\n{arguments}{COMPILED}", timeout=500)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()


def test_compiles_without_a_break_in_mixed_precision():
    assert compiled("eager", "vit_class", "encoder_decoder") == [
        "vit_class False",
        "vit_class True",
        "encoder_decoder False",
        "encoder_decoder True",
    ]


@pytest.mark.slow
def test_models_compile_to_machine_code():
    assert len(compiled("inductor", "vit", "encoder_decoder", "gpt")) == 6


def test_dropout_acts_in_training_only():
    model = gpt(dropout=0.1)
    assert not torch.equal(model(ids()), model(ids()))
    model.eval()
    assert torch.equal(model(ids()), model(ids()))


def test_made_without_memory_and_filled_later():
    with torch.device("meta"):
        model = gpt()
    model.to_empty(device="cpu")
    model.tie_weights()
    assert model.head.weight is model.words.weight
    model.load_state_dict(gpt().state_dict())
    assert model(ids()).isfinite().all()


def test_copies_stay_tied():
    model = copy.deepcopy(encoder_decoder())
    assert model.head.weight is model.words.weight
    assert "rescale=1" in repr(model.head)


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "changes", "code", "argument", "words"),
    [
        (vit, {"heads": 5}, "invalid-argument", "heads", "divisor is 4"),
        (gpt, {"heads": 0}, "invalid-argument", "heads", "number, 1"),
        (
            vit,
            {"image": 18},
            "invalid-argument",
            "image",
            "crop images to 16",
        ),
        (
            vit,
            {"image": 2},
            "invalid-argument",
            "image",
            "crop images to 4",
        ),
        (vit, {"pooling": "max"}, "unknown-name", "pooling", "'max'"),
        (vit, {"pooling": "clas"}, "unknown-name", "pooling", "mean 'class'"),
        (gpt, {"activation": "gelo"}, "unknown-name", "activation", "mean 'gelu'"),
        (
            gpt,
            {"mlp": 0.3},
            "invalid-argument",
            "mlp",
            "0.3",
        ),
        (gpt, {"mlp": -1}, "invalid-argument", "mlp", "at least"),
        (vit, {"mlp": -1}, "invalid-argument", "mlp", "at least"),
        (gpt, {"dropout": 1.5}, "invalid-argument", "dropout", "least 0"),
        (gpt, {"C": {"queries": 1.0}}, "unknown-name", "group in C", ""),
        (gpt, {"C": {"Q": -1.0}}, "invalid-argument", "C['Q']", "least 0"),
        (gpt, {"C": 3}, "invalid-argument", "C", ""),
        (gpt, {"rescale": 0}, "invalid-argument", "rescale", "above 0"),
        (gpt, {"length": 0}, "invalid-argument", "length", ""),
        (gpt, {"bias": "no"}, "wrong-type", "bias", "'no'"),
        (vit, {"checkpoint": 1}, "wrong-type", "checkpoint", ""),
        (gpt, {"tied": False, "rescale": 0.5}, "invalid-argument", "rescale", "expected 1"),
        (encoder_decoder, {"padding": VOCAB}, "invalid-argument", "padding", ""),
    ],
)
def test_wrong_settings_are_explained(build, changes, code, argument, words):
    with refuses(code, argument=argument) as caught:
        build(**changes)
    assert words in str(caught.value)


def test_wrong_inputs_are_explained():
    with refuses("invalid-argument", argument="tokens") as caught:
        gpt()(ids(tokens=13))
    assert "at most 12" in str(caught.value)
    assert "13" in str(caught.value)
    with refuses("invalid-argument", argument="tokens"):
        encoder_decoder()(ids(), ids(tokens=13))
    with refuses("invalid-argument", argument="images") as caught:
        vit()(torch.zeros(2, 3, 16, 20))
    assert "(batch, 3, 16, 16), got (2, 3, 16, 20)" in str(caught.value)
    with refuses("invalid-argument", argument="ids") as caught:
        gpt()(torch.zeros(2, 3))
    assert "torch.float32" in str(caught.value)
    with refuses("invalid-argument", argument="source"):
        encoder_decoder()(ids()[0], ids())
    with refuses("invalid-argument", argument="source_mask") as caught:
        encoder_decoder()(ids(), ids(), torch.ones(4, 11))
    assert "(4, 12)" in str(caught.value)
    with refuses("invalid-argument", argument="target") as caught:
        encoder_decoder()(ids(), ids()[:1])
    assert "4; got 1" in str(caught.value)
    with refuses("invalid-argument", argument="images") as caught:
        vit()(images().to(torch.uint8))
    assert "torch.uint8" in str(caught.value)


@given(
    width=st.integers(-2, 40),
    heads=st.integers(-2, 12),
    mlp=st.sampled_from([0, 1, 2.5, 4, float("nan"), "4", None]),
)
@settings(max_examples=40, deadline=None)
def test_any_sizes_make_a_model_or_a_value_error(width, heads, mlp):
    right = (
        width > 0
        and heads > 0
        and width % heads == 0
        and mlp in (1, 2.5, 4)
        and (mlp * width) % 1 == 0
    )
    with nullcontext() if right else pytest.raises(ValueError, match=r"width|heads|mlp"):
        model = nn.GPT(vocab=7, length=3, width=width, heads=heads, depth=1, mlp=mlp)
        assert model(torch.zeros(1, 3, dtype=torch.long)).isfinite().all()
