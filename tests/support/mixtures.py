"""Mixtures of experts and adapters by hand, in every form in which models store them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

INPUTS = 8
OUTPUTS = 4


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Fused(nn.Module):
    """All experts in tensors of three axes, under names that do not say so."""

    def __init__(self, width: int, hidden: int, experts: int):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(experts, hidden, width) * width**-0.5)
        self.b1 = nn.Parameter(torch.zeros(experts, hidden))
        self.w2 = nn.Parameter(torch.randn(experts, width, hidden) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all experts: tokens, experts, width."""
        hidden = torch.einsum("tn,ehn->teh", x, self.w1) + self.b1
        return torch.einsum("teh,enh->ten", torch.relu(hidden), self.w2)


class Mixture(nn.Module):
    """One block: `form` is list, dict or fused; `weights` is top, all or sigmoid, or choice, where
    experts choose tokens, or capacity, where they drop those that are too many."""

    def __init__(self, width: int, hidden: int, experts: int, active: int, form: str, weights: str):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)  # as in Hugging Face's models
        self.active = active
        self.weights = weights
        if form == "fused":
            self.moe = Fused(width, hidden, experts)
        elif form == "dict":
            named = {f"expert_{i}": Expert(width, hidden) for i in range(experts)}
            self.moe = nn.ModuleDict(named)
        else:
            self.moe = nn.ModuleList(Expert(width, hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        top, chosen = logits.topk(self.active, dim=-1)
        if self.weights == "top":
            weights = top.softmax(-1)
        elif self.weights == "sigmoid":
            weights = top.sigmoid()
        else:
            weights = logits.softmax(-1).gather(-1, chosen)
        mask = torch.zeros_like(logits).scatter(-1, chosen, weights)
        capacity = max(1, len(x) * self.active // logits.shape[-1])
        if self.weights == "choice":
            shares = logits.softmax(-1)
            best, tokens = shares.topk(capacity, dim=0)
            mask = torch.zeros_like(shares).scatter(0, tokens, best)
        elif self.weights == "capacity":
            mask = mask * ((mask > 0).cumsum(0) <= capacity)
        if isinstance(self.moe, Fused):
            outputs = self.moe(x)
        else:
            experts = self.moe.values() if isinstance(self.moe, nn.ModuleDict) else self.moe
            outputs = torch.stack([expert(x) for expert in experts], 1)
        return torch.einsum("te,ten->tn", mask, outputs)


class MixtureNet(nn.Module):
    """A residual block with a mixture of experts, between two matrices."""

    def __init__(
        self,
        experts: int = 8,
        active: int = 2,
        width: int = 16,
        hidden: int = 24,
        form: str = "list",
        weights: str = "top",
    ):
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "mix": Mixture(width, hidden, experts, active, form, weights),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            x = x + layer["mix"](layer["norm"](x))
        return self.head(x)


class Adapter(nn.Module):
    """W x + alpha r^-gamma B A x with a frozen W; `random` names the matrix that starts random."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, gamma: float, random: str):
        super().__init__()
        self.frozen = linear.requires_grad_(False)
        self.left = nn.Parameter(torch.zeros(rank, linear.in_features))
        self.right = nn.Parameter(torch.zeros(linear.out_features, rank))
        if random == "A":
            nn.init.normal_(self.left, std=linear.in_features**-0.5)
        else:
            nn.init.normal_(self.right)
        self.scaling = alpha * rank**-gamma

    def forward(self, x: Tensor) -> Tensor:
        low = functional.linear(x, self.left)
        return self.frozen(x) + self.scaling * functional.linear(low, self.right)


def adapted_mlp(
    rank: int,
    gamma: float = 1.0,
    alpha: float = 4.0,
    random: str = "A",
    width: int = 48,
    **settings: Any,
) -> nn.Sequential:
    """Return a frozen network with one adapter."""
    layers = nn.Sequential(
        nn.Linear(INPUTS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, OUTPUTS),
    ).requires_grad_(False)
    middle = layers[2]
    assert isinstance(middle, nn.Linear)
    layers[2] = Adapter(middle, rank, alpha, gamma, random, **settings)
    return layers


def moe(
    family: str, experts: int = 8, active: int = 2, width: int = 32, hidden: int = 32, **more: Any
) -> nn.Module:
    """Return a small Hugging Face model with this number of experts."""
    import transformers

    config: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts_per_tok": active,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "use_cache": False,
    }
    number = {"mixtral": "num_local_experts", "gpt_oss": "num_local_experts"}
    config[number.get(family, "num_experts")] = experts
    if family == "deepseek_v3":
        config |= {
            "n_routed_experts": experts,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "moe_intermediate_size": hidden,
            "num_key_value_heads": 4,
        }
    if family in ("qwen3_moe", "gpt_oss"):
        config |= {"head_dim": 8, "moe_intermediate_size": hidden}
    config |= more
    classes = {
        "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
        "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
        "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
        "gpt_oss": ("GptOssConfig", "GptOssForCausalLM"),
        "olmoe": ("OlmoeConfig", "OlmoeForCausalLM"),
    }
    config_name, model_name = classes[family]
    return getattr(transformers, model_name)(getattr(transformers, config_name)(**config))
