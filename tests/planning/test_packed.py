"""Absolute mode: matrices that are packed in one tensor learn as separate ones, and tables by their
width."""

from typing import Any

import pytest
import torch
from torch import nn

import orderone as o1

WIDTH, INNER = 32, 96
SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}
RULES = ("mup", "neural-tangent", "hybrid", "maximal-update")


def phi3(keys=4):
    from transformers import Phi3Config, Phi3ForCausalLM

    return Phi3ForCausalLM(
        Phi3Config(num_key_value_heads=keys, pad_token_id=0, rms_norm_eps=1e-6, **SIZES)
    )


def llama(keys=4):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=keys, **SIZES))


def rows(model, rule="maximal-update", optimizer="adamw"):
    """Return values by the last words of their names."""
    found = o1.plan(
        model, base="absolute", rule=rule, optimizer=optimizer, lr=1.0, probe=False
    ).rows
    return {".".join(row.name.split(".")[-2:]): row for row in found}


def rate(model, name, **options):
    return rows(model, **options)[name].lr


# --- the same network, packed and unpacked --------------------------------------------------------


def unpacked(state):
    """Return the tensors of Phi-3 under the names of Llama."""
    found = {}
    for name, x in state.items():
        if "qkv_proj" in name:
            found |= {
                name.replace("qkv", part): y for part, y in zip("qkv", x.chunk(3), strict=True)
            }
        elif "gate_up_proj" in name:
            found |= {
                name.replace("gate_up", part): y
                for part, y in zip(("gate", "up"), x.chunk(2), strict=True)
            }
        else:
            found[name] = x
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("rule", RULES)
def test_a_packed_network_trains_as_the_unpacked_one(rule, optimizer):
    torch.manual_seed(0)
    packed, plain = phi3().double(), llama().double()
    plans = [
        o1.plan(m, base="absolute", rule=rule, optimizer=optimizer, lr=0.02, probe=False)
        for m in (packed, plain)
    ]
    for plan in plans:
        plan.apply()
    plain.load_state_dict({name: x.clone() for name, x in unpacked(packed.state_dict()).items()})
    ids, losses = torch.randint(48, (4, 12)), []
    steps = [plan.optimizer() for plan in plans]
    for _ in range(4):
        found = [m(input_ids=ids, labels=ids).loss for m in (packed, plain)]
        for loss, step in zip(found, steps, strict=True):
            step.zero_grad()
            loss.backward()
            step.step()
        losses.append(torch.stack(found).detach())
    seen = torch.stack(losses)
    assert torch.allclose(seen[:, 0], seen[:, 1], rtol=1e-9)
    assert (seen[0] - seen[-1]).abs().min() > 1e-4  # it did train


@pytest.mark.parametrize("rule", RULES)
def test_sizes_at_initialization_are_those_of_the_unpacked_network(rule):
    packed, plain = rows(phi3(1), rule), rows(llama(1), rule)
    assert packed["gate_up_proj.weight"].init_std == plain["gate_proj.weight"].init_std
    assert packed["qkv_proj.weight"].init_std == plain["q_proj.weight"].init_std
    for name in ("down_proj.weight", "o_proj.weight"):
        assert (packed[name].role, packed[name].init_std, packed[name].lr) == (
            "hidden",
            plain[name].init_std,
            plain[name].lr,
        )


@pytest.mark.parametrize("keys", [1, 2, 4])
def test_with_fewer_keys_the_queries_count(keys):
    assert rate(phi3(keys), "qkv_proj.weight") == pytest.approx(rate(llama(keys), "q_proj.weight"))


# --- other packed projections ---------------------------------------------------------------------


def falcon(**options):
    from transformers import FalconConfig, FalconForCausalLM

    return FalconForCausalLM(
        FalconConfig(
            vocab_size=48,
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=4,
            bias=True,
            **options,
        )
    )


def neox():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=48, n_embd=WIDTH, n_layer=1, n_head=4, n_positions=16)
    )


def modernbert():
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    tokens = dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0
    )
    return ModernBertForMaskedLM(ModernBertConfig(**SIZES, **tokens))


class Reader(nn.Module):
    def __init__(self, core):
        super().__init__()
        self.words, self.core, self.head = nn.Embedding(48, WIDTH), core, nn.Linear(WIDTH, 48)


class Gated(nn.Module):
    """A network whose names give no hints."""

    def __init__(self, width=WIDTH, inner=INNER, bias=True):
        super().__init__()
        self.a, self.b = nn.Linear(width, 2 * inner, bias=bias), nn.Linear(inner, width, bias=bias)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)


QKV = 1 / WIDTH  # n^(s/2) / (fan_in sqrt(fan_out)) with s = 1 and one matrix of queries
GATE = WIDTH**0.5 / (WIDTH * INNER**0.5)


@pytest.mark.parametrize(
    ("build", "weight", "matrix", "bias"),
    [
        (lambda: falcon(multi_query=True), "query_key_value", QKV, 1.0),
        (
            lambda: falcon(num_kv_heads=2, new_decoder_architecture=True),
            "query_key_value",
            QKV,
            1.0,
        ),
        (neox, "query_key_value", QKV, 1.0),
        (gpt2, "c_attn", QKV, 1.0),
        (modernbert, "Wqkv", QKV, None),
        (modernbert, "Wi", GATE, None),
        (lambda: Reader(Gated()), "a", GATE, (WIDTH / INNER) ** 0.5),
        (
            lambda: Reader(Gated(inner=WIDTH // 2)),
            "a",
            2**0.5 / WIDTH,
            2**0.5,
        ),  # packed, as wide as the stream
        (lambda: Reader(nn.LSTM(WIDTH, WIDTH)), "core.weight_hh_l0", QKV, None),
        (lambda: Reader(nn.GRU(WIDTH, WIDTH)), "core.weight_ih_l0", QKV, None),
    ],
)
def test_each_matrix_counts_by_itself(build, weight, matrix, bias):
    found = rows(build())
    name = weight if "." in weight else f"{weight}.weight"
    assert found[name].role == "hidden"
    assert found[name].lr == pytest.approx(matrix)
    if bias is not None:
        assert found[f"{weight}.bias"].lr == pytest.approx(bias)


def test_attention_of_torch():
    found = rows(Reader(nn.TransformerEncoderLayer(WIDTH, 4, INNER)))
    assert found["self_attn.in_proj_weight"].lr == pytest.approx(QKV)
    assert found["self_attn.in_proj_bias"].lr == pytest.approx(1.0)
    assert found["linear1.weight"].lr == pytest.approx(GATE)


def test_a_fan_out_that_one_matrix_reads_is_one_matrix():
    found = rows(Reader(Plain()))
    assert found["a.weight"].lr == pytest.approx(WIDTH**0.5 / (WIDTH * (2 * WIDTH) ** 0.5))
    found = rows(
        nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 32))
    )
    assert found["4.weight"].role == "readout"
    assert found["4.weight"].lr == pytest.approx(1 / (16 * 32**0.5))


# --- tables that are narrower than the stream -----------------------------------------------------


def albert(narrow):
    from transformers import AlbertConfig, AlbertForMaskedLM

    return AlbertForMaskedLM(AlbertConfig(embedding_size=narrow, **SIZES))


def opt(narrow):
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {key: value for key, value in SIZES.items() if key != "intermediate_size"}
    return OPTForCausalLM(OPTConfig(word_embed_proj_dim=narrow, ffn_dim=INNER, **sizes))


@pytest.mark.parametrize("narrow", [8, 16, WIDTH])
def test_a_narrow_table_learns_as_a_wide_one(narrow):
    found = rows(albert(narrow))
    for name in ("word_embeddings.weight", "position_embeddings.weight", "LayerNorm.bias"):
        assert found[name].lr == pytest.approx(1.0), name
    assert found["embedding_hidden_mapping_in.weight"].lr == pytest.approx(1 / narrow)
    assert found["dense.weight"].lr == pytest.approx(1 / WIDTH)  # back to the table's width
    assert found["query.weight"].lr == pytest.approx(1 / WIDTH)
    found = rows(opt(narrow))
    assert found["embed_tokens.weight"].lr == pytest.approx(1.0)
    if narrow != WIDTH:
        assert found["project_in.weight"].lr == pytest.approx(1 / narrow)
        assert found["project_out.weight"].lr == pytest.approx(1 / WIDTH)


def moved(narrow):
    """Return by how much one step changes rows of the table, and the output of the layer before the
    head for aligned inputs."""
    torch.manual_seed(0)
    model = albert(narrow).double()
    plan = o1.plan(model, rule="maximal-update", lr=1e-3, weight_decay=0.0, eps=1e-30, probe=False)
    plan.apply()
    weights = (model.albert.embeddings.word_embeddings.weight, model.predictions.dense.weight)
    before = [w.detach().clone() for w in weights]
    step, ids = plan.optimizer(), torch.arange(96).view(6, 16) % 48
    model(input_ids=ids, labels=ids.flip(0)).loss.backward()
    step.step()
    rows, columns = (w.detach() - start for w, start in zip(weights, before, strict=True))
    return torch.stack([rows.square().mean().sqrt(), columns.abs().sum(1).mean()]) / 1e-3


def test_one_step_changes_tables_and_heads_alike_for_every_width_of_the_table():
    wide = moved(WIDTH)
    assert torch.allclose(wide, torch.ones(2).double(), rtol=0.02)
    for narrow in (4, 8, 16):
        assert torch.allclose(moved(narrow), wide, rtol=0.02)
