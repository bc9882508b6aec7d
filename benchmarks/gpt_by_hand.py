"""Training step of many GPTs, written by hand with batched products.

A reference for `benchmarks/stacked.py`: what a person would write for this one architecture
(`orderone.nn.GPT` without biases, gains and dropout), compiled by torch.compile with static shapes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.nn import GPT
from orderone.nn.transformer.blocks import EncoderBlock

BETAS = (0.9, 0.999)
EPS = 1e-8
DECAY = 1e-2


class ByHand:
    """`step()` trains all members with AdamW on one batch, and returns their losses (K,)."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        rates: Sequence[float],
        batch: tuple[Tensor, Tensor],
        precision: torch.dtype | None,
        compile: bool,
    ):
        first = models[0]
        assert isinstance(first, GPT)
        self.depth = len(first.layers)
        block = first.layers[0]
        assert isinstance(block, EncoderBlock)
        self.heads: int = block.attention.heads
        self.ids, self.targets = batch
        self.precision = precision or torch.float32
        self.weights: dict[str, Tensor] = {}
        for name, _ in first.named_parameters():
            members = [model.get_parameter(name).detach() for model in models]
            self.weights[name] = torch.stack(members).requires_grad_()
        self.first = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.second = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        device = self.ids.device
        self.rates = torch.tensor(rates, device=device)
        self.t = torch.zeros((), dtype=torch.float64, device=device)
        self._losses: Callable[..., Tensor] = self.losses
        self._update: Callable[..., None] = update
        if compile:
            self._losses = torch.compile(self.losses, dynamic=False)
            self._update = torch.compile(update, dynamic=False)

    def step(self) -> Tensor:
        losses = self._losses(self.weights, self.ids, self.targets)
        gradients = torch.autograd.grad(losses.sum(), list(self.weights.values()))
        with torch.no_grad():
            self.t += 1
            sizes = torch.stack([1 - beta**self.t for beta in BETAS]).float()
            states = zip(self.first.values(), self.second.values(), strict=True)
            for w, g, (m, v) in zip(self.weights.values(), gradients, states, strict=True):
                column = self.rates.view(-1, *[1] * (w.dim() - 1))
                self._update(w, g, m, v, column, sizes)
        return losses.detach()

    def losses(self, weights: dict[str, Tensor], ids: Tensor, targets: Tensor) -> Tensor:
        members, sequences, length = ids.shape
        words = weights["words.weight"]
        offset = torch.arange(members, device=ids.device) * words.shape[1]
        x = functional.embedding(ids + offset.view(-1, 1, 1), words.flatten(0, 1))
        x = x + weights["positions.weight"][:, None, :length]
        x = x.view(members, sequences * length, -1)
        for k in range(self.depth):
            layer = f"layers.{k}"
            h = normed(x)
            queries, keys, values = (
                self._heads(self._times(h, weights[f"{layer}.attention.{name}.weight"]), sequences)
                for name in ("query", "key", "value")
            )
            read = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            read = read.transpose(1, 2).reshape(members, sequences * length, -1)
            x = x + self._times(read, weights[f"{layer}.attention.out.weight"])
            h = self._times(normed(x), weights[f"{layer}.mlp.up.weight"])
            x = x + self._times(functional.gelu(h), weights[f"{layer}.mlp.down.weight"])
        logits = self._times(normed(x), words).float()
        each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return each.view(members, -1).mean(1)

    def _times(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(x.to(self.precision), weight.to(self.precision).mT)

    def _heads(self, x: Tensor, sequences: int) -> Tensor:
        """Return (K N, C) of all tokens as (sequences of all members, heads, tokens, head size)."""
        members, tokens, _ = x.shape
        shape = (members * sequences, tokens // sequences, self.heads, -1)
        return x.view(shape).transpose(1, 2)


def normed(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def update(w: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: Tensor, sizes: Tensor) -> None:
    """Make a step of AdamW in place."""
    m.lerp_(g, 1 - BETAS[0])
    v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
    step = lr / sizes[0] * m / ((v / sizes[1]).sqrt() + EPS)
    w.mul_(1 - lr * DECAY).sub_(step)
