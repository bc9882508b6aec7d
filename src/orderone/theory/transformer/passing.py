"""Pass of a stream through stem, blocks and head.

The equations are in `stems`, `blocks` and `heads`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import UserInput
from orderone.theory.transformer.blocks import (
    BlockResult,
    attention_block,
    gated_block,
    mlp_block,
)
from orderone.theory.transformer.heads import head_block
from orderone.theory.transformer.inputs import MaskInput
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
    """Encoder and its inputs.

    The decoder that attends to it decides whether tangent kernels are needed.
    """

    encoder: "Transformer"
    G0: np.ndarray
    tokens: Tokens
    mask: MaskInput = None

    def stream(self, rates: Mapping[str, float] | None, merged: bool) -> Stream:
        """Return the normalized stream after the last block of the encoder."""
        prediction = run(self.encoder, self.G0, self.tokens, self.mask, None, rates, merged)
        return last_normalized(self.encoder, prediction.streams[-1])


MemoryInput: TypeAlias = Annotated[Memory | None, UserInput]


def run(
    model: "Transformer",
    G0: np.ndarray,
    tokens: Tokens,
    mask: MaskInput,
    memory: Memory | None,
    rates: Mapping[str, float] | None,
    merged: bool,
) -> Prediction:
    """Pass the kernel G0 through the model.

    Tangent kernels need `rates`; `merged` adds up their groups, which is faster.
    """
    weights = Weights(model.C, rates or {})
    stream = embedded(model, G0, tokens, weights)
    visible, keys, visible_memory = _sources(model, stream.tokens, mask, memory, rates, merged)
    blocks = _Blocks(model, weights, visible, keys, visible_memory)
    streams = [stream.merged() if merged else stream]
    errors: list[float] = []
    theta_errors: list[float] = []
    variances: list[np.ndarray] = []
    for number, letter in enumerate(model.blocks):
        passed = blocks(letter, number, streams[-1])
        streams.append(_after(passed, model, merged))
        errors.append(passed.error)
        theta_errors.append(passed.theta_error)
        variances.append(_head_variance(passed, stream))
    last = last_normalized(model, streams[-1])
    output, theta = head_block(last, model.head, model.pool, weights)
    return Prediction(
        streams,
        output,
        theta,
        errors,
        theta_errors,
        variances,
        model.eps,
        model.norm_gain,
        plain=model.placement == "pre" and model.skip_gain == 1,
    )


def _after(passed: BlockResult, model: "Transformer", merged: bool) -> Stream:
    after = passed.stream
    if model.placement == "post":
        after = after.normalized(model.eps, model.norm_gain)
    return after.merged() if merged else after


def _head_variance(passed: BlockResult, stream: Stream) -> np.ndarray:
    if passed.head_variance is None:
        return np.zeros_like(stream.G)
    return passed.head_variance


def last_normalized(model: "Transformer", stream: Stream) -> Stream:
    """Return the stream that the head reads; after blocks with post-norm it is normalized."""
    if model.placement == "post":
        return stream
    return stream.normalized(model.eps, model.norm_gain)


def embedded(model: "Transformer", G0: np.ndarray, tokens: Tokens, weights: Weights) -> Stream:
    """Return the stream after the stem."""
    stream = embed(G0, tokens, STEMS[model.stem], weights, model.pool == "class")
    if model.stem_norm:
        return stream.normalized(model.eps, model.norm_gain)
    return stream


def _sources(
    model: "Transformer",
    tokens: Tokens,
    mask: MaskInput,
    memory: Memory | None,
    rates: Mapping[str, float] | None,
    merged: bool,
) -> tuple[np.ndarray, Stream | None, np.ndarray | None]:
    """Return the mask of self-attention, the keys of a memory, and the mask of these."""
    visible = read_mask(mask, tokens, tokens, model.causal)
    if memory is None:
        return visible, None, None
    keys = memory.stream(rates, merged)
    if keys.tokens.sequences != tokens.sequences:
        raise InputError(
            f"memory: expected {tokens.sequences} sequences, as many as in G0, got"
            f" {keys.tokens.sequences}; encode one sequence for each sequence of the decoder",
            argument="memory",
        )
    if memory.mask is None:
        of_keys = None
    else:
        of_keys = np.asarray(memory.mask)
    return visible, keys, read_mask(of_keys, tokens, keys.tokens, causal=False)


@dataclass(frozen=True, eq=False)
class _Blocks:
    model: "Transformer"
    weights: Weights
    visible: np.ndarray
    memory: Stream | None
    visible_memory: np.ndarray | None

    def __call__(self, letter: str, number: int, stream: Stream) -> BlockResult:
        model = self.model
        normalized = stream
        if model.placement == "pre":
            normalized = stream.normalized(model.eps, model.norm_gain)
        stream = stream.times(model.skip_gain)
        if letter == "M":
            return mlp_block(stream, normalized, model.activation, self.weights)
        if letter == "G":
            return gated_block(stream, normalized, model.activation, self.weights)
        keys = normalized
        visible = self.visible
        chosen = model.attention_map()
        if letter == "C":
            keys = self.memory
            visible = self.visible_memory
        assert keys is not None
        assert visible is not None
        return attention_block(
            stream,
            normalized,
            keys,
            visible,
            self.weights,
            model.accuracy,
            model.seed + number,
            model.qk_norm,
            chosen if letter == "A" else None,
            model.temperature,
        )
