"""A stream on its way through stem, blocks and head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orderone.theory.transformer.blocks import Passed, attention_block, mlp_block
from orderone.theory.transformer.heads import head_block
from orderone.theory.transformer.prediction import Prediction
from orderone.theory.transformer.stems import STEMS, embed
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.views import read_mask
from orderone.theory.transformer.weights import Weights

if TYPE_CHECKING:
    from orderone.theory.transformer.model import Transformer


@dataclass(frozen=True, eq=False)
class Memory:
    """An encoder and its inputs. The decoder that attends to it decides whether tangent kernels are
    needed."""

    encoder: "Transformer"
    G0: np.ndarray
    tokens: Tokens
    mask: Any = None

    def stream(self, rates: Mapping[str, float] | None, merged: bool) -> Stream:
        found = run(self.encoder, self.G0, self.tokens, self.mask, None, rates, merged)
        return found.streams[-1].normalized(self.encoder.eps)


def run(
    model: "Transformer",
    G0: np.ndarray,
    tokens: Tokens,
    mask: Any,
    memory: Memory | None,
    rates: Mapping[str, float] | None,
    merged: bool,
) -> Prediction:
    """Tangent kernels come with `rates` only; `merged` adds up their groups, which is faster."""
    weights = Weights(model.C, rates or {})
    stream = embedded(model, G0, tokens, weights)
    blocks = _Blocks(model, weights, *_sources(model, stream.tokens, mask, memory, rates, merged))
    streams = [stream.merged() if merged else stream]
    passed = []
    for number, letter in enumerate(model.blocks):
        passed.append(blocks(letter, number, streams[-1]))
        streams.append(passed[-1].stream.merged() if merged else passed[-1].stream)
    output, theta = head_block(streams[-1].normalized(model.eps), model.head, model.pool, weights)
    nothing = np.zeros_like(stream.G)
    variances = [nothing if each.head_variance is None else each.head_variance for each in passed]
    errors = [each.error for each in passed]
    theta_errors = [each.theta_error for each in passed]
    return Prediction(streams, output, theta, errors, theta_errors, variances, model.eps)


def embedded(model: "Transformer", G0: np.ndarray, tokens: Tokens, weights: Weights) -> Stream:
    """The stream behind the stem."""
    stream = embed(G0, tokens, STEMS[model.stem], weights, model.pool == "class")
    if model.stem_norm:
        return stream.normalized(model.eps)
    return stream


def _sources(
    model: "Transformer",
    tokens: Tokens,
    mask: Any,
    memory: Memory | None,
    rates: Mapping[str, float] | None,
    merged: bool,
) -> tuple[np.ndarray, Stream | None, np.ndarray | None]:
    """What queries see: of their own stream, and of a memory."""
    own = read_mask(mask, tokens, tokens, model.causal)
    if memory is None:
        return own, None, None
    keys = memory.stream(rates, merged)
    if keys.tokens.sequences != tokens.sequences:
        raise ValueError(
            f"memory: expected {tokens.sequences} sequences, as many as G0 has, got"
            f" {keys.tokens.sequences}; encode one sequence for each one that is decoded"
        )
    of_keys = None if memory.mask is None else np.asarray(memory.mask)
    return own, keys, read_mask(of_keys, tokens, keys.tokens, causal=False)


@dataclass(frozen=True, eq=False)
class _Blocks:
    model: "Transformer"
    weights: Weights
    visible: np.ndarray
    memory: Stream | None
    seen_of_memory: np.ndarray | None

    def __call__(self, letter: str, number: int, stream: Stream) -> Passed:
        model, normalized = self.model, stream.normalized(self.model.eps)
        if letter == "M":
            return mlp_block(stream, normalized, model.activation, self.weights)
        keys, visible = (
            (normalized, self.visible) if letter == "A" else (self.memory, self.seen_of_memory)
        )
        assert keys is not None
        assert visible is not None
        return attention_block(
            stream, normalized, keys, visible, self.weights, model.accuracy, model.seed + number
        )
