"""Kinds of example batches for Hugging Face models: a tensor alone, and tensors without values."""

from typing import Any

import pytest
import torch
from torch import nn

import orderone as o1
from orderone.observe.trace import trace
from orderone.planning import traced_pair


def llama(width: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "vocab_size": 64}
    config = transformers.LlamaConfig(
        **sizes, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("inputs_device", ["cpu", "meta"])
def test_a_tensor_of_tokens_gives_the_plan_of_a_dictionary(device: str, inputs_device: str) -> None:
    with torch.device(device):
        model = llama(64)
        base = llama(32)
    tokens = torch.zeros(2, 8, dtype=torch.long, device=inputs_device)
    by_name = o1.plan(model, base=base, lr=1e-2, inputs={"input_ids": tokens.to(inputs_device)})
    alone = o1.plan(model, base=base, lr=1e-2, inputs=tokens)
    assert alone.rows == by_name.rows
    assert alone.rows == o1.plan(model, base=base, lr=1e-2).rows


def test_the_first_batch_that_runs_is_traced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[object] = []

    def counted(model: nn.Module, inputs: Any) -> Any:
        traced.append(inputs)
        return trace(model, inputs)

    monkeypatch.setattr(traced_pair, "trace", counted)
    tokens = torch.zeros(2, 8, dtype=torch.long)
    o1.plan(llama(64), base=llama(32), lr=1e-2, inputs={"input_ids": tokens})
    assert len(traced) == 3  # once to see that it runs, then the small and the large instance
    assert all(inputs is traced[0] for inputs in traced)


def test_a_tensor_for_a_model_that_was_changed_after_it_was_built() -> None:
    """Such as a model with adapters, which its configuration does not describe."""
    models: list[Any] = [llama(64), llama(32)]
    for changed, width in zip(models, (64, 32), strict=True):
        changed.model.norm = nn.LayerNorm(width)
    model, base = models
    tokens = torch.zeros(2, 8, dtype=torch.long)
    alone = o1.plan(model, base=base, lr=1e-2, inputs=tokens)
    assert alone.rows == o1.plan(model, base=base, lr=1e-2, inputs={"input_ids": tokens}).rows
