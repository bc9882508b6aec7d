"""Empirical kernels of Hugging Face models, called with keyword arguments."""

import pytest
import torch
from test_empirical import brute
from torch import nn

import orderone as o1
from orderone.measure.kernels import ntk_costs

transformers = pytest.importorskip("transformers")


def gpt2(**changes: object) -> nn.Module:
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 13, "n_positions": 8}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **changes)
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).double()


def bert() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        vocab_size=13,
        max_position_embeddings=8,
        num_labels=3,
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config).double()


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=12,
        vocab_size=13,
        max_position_embeddings=8,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).double()


def tokens(mask: bool = True) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 13, (3, 4), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids}
    if mask:
        batch["attention_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
    return batch


@pytest.mark.parametrize("build", [gpt2, bert, llama])
def test_logits_of_a_model(build):
    model = build()
    batch = tokens()
    expected = brute(model, batch, read=lambda o: o.logits)
    trace = expected.diagonal(dim1=2, dim2=3).sum(-1)
    found = o1.empirical_ntk(model.train(), batch)
    # Llama normalizes in single precision
    torch.testing.assert_close(found, trace, rtol=1e-6, atol=1e-6)
    assert model.training


def test_last_token():
    model = gpt2()
    batch = tokens(mask=False)
    expected = brute(model, batch, read=lambda o: o.logits[:, -1])
    found = o1.empirical_ntk(model, batch, outputs="all", select=lambda o: o.logits[:, -1])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    index = o1.empirical_ntk(model, batch, outputs=(-1, 5))
    torch.testing.assert_close(index, expected[:, :, 5, 5], rtol=1e-9, atol=1e-9)


def test_labels_do_not_make_the_loss_an_output():
    model = gpt2()
    batch = tokens(mask=False)
    with_labels = {**batch, "labels": batch["input_ids"]}
    found = o1.empirical_nngp(model, with_labels)
    torch.testing.assert_close(found, o1.empirical_nngp(model, batch))
    assert ntk_costs(model, with_labels).method == ntk_costs(model, batch).method
