"""The Llama of the studies: unmodified, feed-forward width 3 x width, bytes as tokens."""

import torch
import transformers
from torch import nn

VOCAB = 256


def llama(width: int, depth: int, *, head: int, length: int, device: str) -> nn.Module:
    """Return a `LlamaForCausalLM` on the device; the number of heads grows with the width."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=depth,
        num_attention_heads=width // head,
        num_key_value_heads=width // head,
        head_dim=head,
        max_position_embeddings=length,
        use_cache=False,
    )
    with torch.device(device):
        return transformers.LlamaForCausalLM(config)


def llama_parameters(width: int, depth: int) -> int:
    """Return the number of parameters: matrices and gains of layers, embedding, readout, gain."""
    per_layer = 13 * width**2 + 2 * width
    return depth * per_layer + 2 * VOCAB * width + width
