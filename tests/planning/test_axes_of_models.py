"""Random combinations of axes and optimizers in unmodified models, against formulas by hand.

Ratios of target to base: r width (hidden size, heads), q inner width of MLP or experts, M experts,
k active experts, S sum of the router's weights, o and i the fan-out and fan-in of a matrix.

    tensor          initial size    Adam, Lion    SGD                    Muon x its factor
    embedding       1               1             r                      (AdamW)
    norms, biases   1               1             o                      (AdamW)
    matrices        i^-1/2          1 / i         o / i                  (o / i)^1/2
    head            1 / r           1 / r         1 / r                  (AdamW)
    experts         i^-1/2          1 / i         (k M)^1/2 o / i        (o / i)^1/2
      last          i^-1/2 / S      1 / (i S)     (k M)^1/2 o / i / S^2  (o / i)^1/2 / S
    router          1 / r           1 / r         (k M)^1/2 / r          (AdamW)

A matrix of which one side alone grows is a readout or an embedding. S is 1 if the model normalizes
the weights of the active experts (Mixtral, DeepSeek-V3, GPT-OSS), and k / M otherwise (OLMoE,
Qwen3-MoE). Sources: Tensor Programs V, table 8, for rectangular matrices; `rules/axes/experts.py`;
Muon: Bernstein & Newhouse. kappa = batch / tokens multiplies rates by its root (SGD: by itself) and
lr x weight_decay by itself, unless another horizon is chosen.
"""

import random
from dataclasses import dataclass
from typing import Any

import pytest

import orderone as o1

transformers = pytest.importorskip("transformers")

MIXTURES = ("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3")
NOT_NORMALIZED = ("qwen3_moe", "olmoe")


@dataclass(frozen=True)
class Sizes:
    width: int = 1
    inner: int = 1
    experts: int = 1
    active: int = 1


@dataclass(frozen=True)
class Case:
    family: str
    optimizer: str
    growth: Sizes
    batch: float
    tokens: float
    horizon: str | None
    decay: str


def model(family: str, sizes: Sizes) -> Any:
    """Return a model whose sizes are multiples of the smallest ones; the head size is 8."""
    width = 16 * sizes.width
    heads = 2 * sizes.width
    inner = 24 * sizes.inner
    experts = 4 * sizes.experts
    common: dict[str, Any] = {
        "vocab_size": 50, "hidden_size": width, "num_hidden_layers": 2,
        "num_attention_heads": heads, "num_key_value_heads": heads,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    routed = {"num_experts_per_tok": 2 * sizes.active}
    options: dict[str, Any]
    if family == "llama":
        options = {"intermediate_size": inner}
    elif family == "mixtral":
        options = {"intermediate_size": inner, "num_local_experts": experts, **routed}
    elif family == "qwen3_moe":
        options = {
            "moe_intermediate_size": inner, "num_experts": experts, "head_dim": 8,
            "norm_topk_prob": False, **routed,
        }  # fmt: skip
    elif family == "olmoe":
        options = {"intermediate_size": inner, "num_experts": experts, **routed}
    elif family == "gpt_oss":
        options = {
            "intermediate_size": inner,
            "num_local_experts": experts,
            "head_dim": 8,
            **routed,
        }
        options["layer_types"] = ["full_attention"] * 2
    else:
        options = {
            "moe_intermediate_size": inner, "n_routed_experts": experts, "n_shared_experts": 1,
            "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "q_lora_rank": 12,
            "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
            **routed,
        }  # fmt: skip
    config = transformers.AutoConfig.for_model(family, **common, **options)
    return transformers.AutoModelForCausalLM.from_config(config)


@dataclass(frozen=True)
class Tensor:
    """Growth of one tensor, as its name says."""

    role: str
    fan_in: float
    fan_out: float
    expert: bool = False
    last: bool = False


def tensor(name: str, growth: Sizes) -> Tensor | None:
    """Return the growth of a tensor; None where ranks, heads or packed rows make it special."""
    r, q = growth.width, growth.inner
    routed = ".experts." in name
    if "shared_experts" in name:
        routed = False
    if "embed_tokens" in name:
        return Tensor("embedding", 1, r)
    if name.startswith("lm_head"):
        return Tensor("readout", r, 1)
    if "norm" in name:
        wide = "q_norm" not in name and "k_norm" not in name and "layernorm" in name
        return Tensor("vector", 1, r) if wide and "a_layernorm" not in name else None
    if "gate.weight" in name or "router.weight" in name:
        return Tensor("readout", r, 1, expert=True)
    if "gate_up_proj" in name or "gate_proj" in name or "up_proj" in name:
        if "bias" in name:
            return Tensor("vector", 1, q, expert=routed)
        return matrix(r, q, expert=routed)
    if "down_proj" in name:
        if "bias" in name:
            return Tensor("vector", 1, r, expert=routed, last=routed)
        return matrix(q, r, expert=routed, last=routed)
    if "self_attn" in name and name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return Tensor("hidden", r, r)
    if name.endswith("o_proj.weight"):
        return Tensor("hidden", r, r)
    if name.endswith("q_a_proj.weight"):  # a rank that stays: the bottleneck is a readout
        return Tensor("readout", r, 1)
    if name.endswith(("q_b_proj.weight", "kv_b_proj.weight")):
        return Tensor("embedding", 1, r)
    return None


def matrix(fan_in: float, fan_out: float, *, expert: bool = False, last: bool = False) -> Tensor:
    """Return a matrix between layers: a readout or embedding if one side alone grows."""
    role = "hidden"
    if fan_in > fan_out == 1:
        role = "readout"
    elif fan_out > fan_in == 1:
        role = "embedding"
    return Tensor(role, fan_in, fan_out, expert=expert, last=last)


def muon_factor(rows: int, columns: int) -> float:
    return max(1.0, rows / columns) ** 0.5


def expected(case: Case, shape: Tensor, ends: tuple[Any, Any], is_muon: bool) -> dict[str, float]:
    growth = case.growth
    total = growth.active / growth.experts if case.family in NOT_NORMALIZED else 1.0
    seen = (growth.active * growth.experts) ** 0.5 if shape.expert else 1.0
    combined = total if shape.last else 1.0
    fan_in, fan_out = shape.fan_in, shape.fan_out
    std = {"hidden": fan_in**-0.5, "readout": 1 / fan_in}.get(shape.role, 1.0) / combined
    if case.optimizer == "sgd":
        lr = fan_out / fan_in * seen / combined**2
    elif is_muon:
        lr = (fan_out / fan_in) ** 0.5 / combined
        base, target = ends
        lr *= muon_factor(*base[-2:]) / muon_factor(*target[-2:])
    else:
        lr = 1 / fan_in / combined
    kappa = case.batch / case.tokens
    more = {"sde": kappa if case.optimizer == "sgd" else kappa**0.5}.get(str(case.horizon), 1.0)
    shrinking = {"sde": kappa}.get(str(case.horizon), 1.0)
    if case.horizon == "power":
        more = case.batch**0.5 * case.tokens**-0.32
        shrinking = case.batch / case.tokens
    decay = shrinking / (lr * more)
    if case.decay == "timescale":
        decay = kappa / (lr * more)
    elif case.decay == "proportional":
        # 1/S is a multiplier that is folded into the tensor, and lr x weight_decay is that without
        # folding: folding divides lr by S (SGD: S^2), so weight_decay gets this factor
        decay = shrinking / more * combined ** (2 if case.optimizer == "sgd" else 1)
    return {"lr": lr * more, "weight_decay": decay, "std": std}


def cases(number: int, seed: int) -> list[Case]:
    draw = random.Random(seed)
    found: list[Case] = []
    while len(found) < number:
        family = draw.choice((*MIXTURES, "llama"))
        experts = draw.choice([1, 2, 4]) if family in MIXTURES else 1
        active = draw.choice([1, 2]) if experts > 1 else 1
        case = Case(
            family=family,
            optimizer=draw.choice(["adamw", "adamw", "sgd", "lion", "muon"]),
            growth=Sizes(draw.choice([1, 2, 4]), draw.choice([1, 2, 4]), experts, active),
            batch=draw.choice([0.5, 1.0, 2.0, 8.0]),
            tokens=draw.choice([0.5, 1.0, 4.0, 25.0]),
            horizon=draw.choice(["sde", "power", None]),
            decay=draw.choice(["independent", "timescale", "proportional"]),
        )
        if case.batch / case.tokens < 10 and (case.optimizer, case.horizon) != ("sgd", "power"):
            found.append(case)
    return found


def compare(case: Case) -> int:
    """Compare all tensors whose formula is known, and return their number."""
    base, target = model(case.family, Sizes()), model(case.family, case.growth)
    plan = o1.plan(
        target,
        base=base,
        optimizer=case.optimizer,
        lr=1e-2,
        weight_decay=0.1,
        batch=(64, 64 * case.batch),
        tokens=(1e8, 1e8 * case.tokens),
        horizon=case.horizon,
        decay=case.decay,
    )
    ends = dict(base.named_parameters()), dict(target.named_parameters())
    compared = 0
    for row in plan.rows:
        shape = tensor(row.name, case.growth)
        if shape is None or not row.trained:
            continue
        shapes = tuple(parameters[row.name].shape for parameters in ends)
        wanted = expected(case, shape, shapes, row.optimizer == "muon")
        assert row.lr == pytest.approx(1e-2 * wanted["lr"], rel=1e-9), row.name
        if row.weight_decay:
            wanted_decay = 0.1 * wanted["weight_decay"]
            assert row.weight_decay == pytest.approx(wanted_decay, rel=1e-9), row.name
        assert row.factors.std == pytest.approx(wanted["std"], rel=1e-9), row.name
        compared += 1
    return compared


@pytest.mark.parametrize("case", cases(16, seed=26), ids=str)
def test_factors_of_unmodified_models(case):
    assert compare(case) >= 15
