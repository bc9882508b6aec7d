"""Attention along other axes than width: queries per key, ranks of compressed keys, QK-norm."""

import math
from typing import Any

import pytest
import torch
import transformers
from support.errors import refuses
from support.mixtures import moe
from torch import nn

import orderone as o1
from orderone.rules.axes import repetition_factors

HEADS = 8


def _model(repetition: int, width: int = 64, family: str = "Llama", **more: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(
        vocab_size=64,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=width // 8,
        num_key_value_heads=width // 8 // repetition,
        head_dim=8,
        **more,
    )
    return getattr(transformers, f"{family}ForCausalLM")(config)


def _plan(model: nn.Module, base: nn.Module, **options: Any) -> o1.Plan:
    return o1.plan(model, base=base, lr=1.0, **options)


ATTENTION = "model.layers.0.self_attn."


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])  # Qwen3 has QK-norm
def test_keys_and_values_that_more_queries_share(family):
    plan = _plan(_model(4, family=family), _model(1, family=family), eps=1.0)
    assert "queries per key x4 (1 -> 4)" in plan.headline
    for name in ("k_proj", "v_proj"):
        row = plan[f"{ATTENTION}{name}.weight"]
        assert (row.lr, row.factors.std, row.eps) == pytest.approx((1, 1, 2))
    others = [row for row in plan.rows if "k_proj" not in row.name and "v_proj" not in row.name]
    assert all(row.factors == o1.rules.Factors() for row in others)


def test_other_optimizers_and_rules():
    key = f"{ATTENTION}k_proj.weight"
    sgd = _plan(_model(4), _model(1), optimizer="sgd")
    assert sgd[key].lr == pytest.approx(1 / 2)
    published = _plan(_model(4), _model(1), repetition_rule="gqa-mup")
    assert published[key].lr == pytest.approx(1 / 2)
    assert published[key].factors.std == pytest.approx(2 / 3)
    none = _plan(_model(4), _model(1), repetition_rule=None, eps=1.0)
    assert (none[key].lr, none[key].eps) == (1, 1)
    with refuses("repetition-without-law", argument="repetition_rule"):
        repetition_factors(1, 4, "sgd", "gqa-mup")


def test_width_and_repetition_grow_together():
    """Keys have the widths of the queries; only their gradient knows the repetition."""
    plan = _plan(_model(2, width=128), _model(1, width=32), eps=1.0)
    key = plan[f"{ATTENTION}k_proj.weight"]
    query = plan[f"{ATTENTION}q_proj.weight"]
    assert (key.role, key.lr, key.factors.std) == (query.role, query.lr, query.factors.std)
    assert key.eps == pytest.approx(query.eps * 2**0.5)  # pyright: ignore[reportOperatorIssue]


def test_compressed_keys_of_latent_attention_keep_their_rank():
    """DeepSeek's latent attention: a fixed rank is a bottleneck, a growing one a width."""
    base = moe("deepseek_v3", 8, width=32)
    fixed = _plan(
        moe("deepseek_v3", 8, width=64, num_attention_heads=8, num_key_value_heads=8), base
    )
    down = f"{ATTENTION}kv_a_proj_with_mqa.weight"
    up = f"{ATTENTION}kv_b_proj.weight"
    assert (fixed[down].role, fixed[down].lr) == ("readout", pytest.approx(1 / 2))
    assert (fixed[up].role, fixed[up].lr) == ("embedding", 1)
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    grown = moe("deepseek_v3", 8, width=64, q_lora_rank=16, kv_lora_rank=16, **heads)
    both = _plan(grown, base)
    assert (both[up].role, both[up].lr) == ("hidden", pytest.approx(1 / 2))


# --- real networks --------------------------------------------------------------------------------


def _sizes(repetition: int, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = _model(repetition)
    ids = torch.randint(3, 64, (8, 16), generator=torch.Generator().manual_seed(0))
    plan = o1.plan(model, base=_model(1), lr=1e-3, weight_decay=0, init="fan-in")
    plan.apply()
    optimizer = plan.optimizer()
    tensors = {n: p for n, p in model.named_parameters() if "_proj.weight" in n and "attn" in n}
    before = {name: p.detach().clone() for name, p in tensors.items()}
    sizes: dict[str, float] = {}
    for step in range(3):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        for name, p in tensors.items():
            if step == 0 and p.grad is not None:
                sizes[f"gradient {name}"] = float(p.grad.norm()) / p.numel() ** 0.5
        optimizer.step()
    for name, p in tensors.items():
        sizes[f"update {name}"] = float((p - before[name]).detach().norm()) / p.numel() ** 0.5
    return sizes


def test_sizes_in_networks_with_more_queries_per_key_are_the_predicted_ones():
    exponents: dict[str, float] = {}
    for seed in range(2):
        small = _sizes(1, seed)
        large = _sizes(8, seed)
        for key, size in small.items():
            exponent = math.log(large[key] / size) / math.log(8)
            exponents[key] = exponents.get(key, 0.0) + exponent / 2
    for key, exponent in exponents.items():
        shared = "k_proj" in key or "v_proj" in key
        expected = 0.5 if shared and key.startswith("gradient") else 0.0
        assert exponent == pytest.approx(expected, abs=0.1), (key, exponent)


def test_the_check_passes_along_the_repetition():
    ids = torch.randint(3, 64, (8, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    check = o1.coord_check(
        _model, repetitions=[1, 2, 4, 8], lr=1e-3, batches=batch, seeds=2, steps=2
    )
    assert check.passed, str(check)
    with refuses("axis-not-found", argument="repetitions"):
        o1.coord_check(lambda _: _model(2), repetitions=[1, 2], lr=1e-3, batches=batch)


@pytest.mark.parametrize("power", [1.0, -1.0])
def test_a_wrong_power_of_the_repetition_fails(power):
    """Adam's rate of keys and values does not depend on the queries that share them."""
    ids = torch.randint(3, 64, (8, 16), generator=torch.Generator().manual_seed(0))

    def build(repetition: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = _model(repetition)
        shared = [p for name, p in model.named_parameters() if "k_proj" in name or "v_proj" in name]
        kept = {id(p) for p in shared}
        others = [p for p in model.parameters() if id(p) not in kept]
        faulty = {"params": shared, "lr": 1e-3 * repetition**power}
        return model, torch.optim.AdamW([faulty, {"params": others}], lr=1e-3)

    batch = {"input_ids": ids, "labels": ids}
    check = o1.coord_check(
        build, repetitions=[1, 2, 4, 8], lr=1e-3, batches=batch, seeds=2, steps=2
    )
    assert check.verdict == "FAIL"
