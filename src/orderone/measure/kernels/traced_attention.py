"""Attention in a traced forward pass, fused or written out.

    scores = q k^T       queries and keys are pieces: channels of a head along the summed axis
    * number, / number   the scale of the scores
    + mask, masked_fill  keys that are hidden, where numbers are below -1000
    softmax, @ v         HeadsAttention, whose heads are the channels of the result

Queries, keys and values are branches from the last tensor that all three have passed.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.measure.kernels.traced_call import Call
from orderone.measure.kernels.traced_functions import factor
from orderone.measure.kernels.traced_norms import drops
from orderone.measure.kernels.traced_values import (
    UNCHANGED,
    Node,
    Projection,
    Use,
    Value,
    branches_of,
    varying,
    with_channels,
)
from orderone.theory import kernels
from orderone.theory.transformer import HeadsAttention

if TYPE_CHECKING:
    from orderone.measure.kernels.traced_layers import Layers

HIDDEN = -1000.0  # scores below this are masks
SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # of MultiheadAttention


@dataclass(frozen=True, eq=False)
class Scores:
    """Products of queries and keys, (..., queries, keys), before or after the softmax."""

    tensor: Tensor
    queries: Value
    keys: Value
    scale: float = 1.0
    visible: Tensor | None = None  # (queries, keys), None for all
    softened: bool = False


class TracedAttention:
    """Values of the functions of attention."""

    def __init__(self, trace: "Layers") -> None:
        self.trace = trace

    # --- written out

    def scores(self, call: Call, operands: list[Value]) -> Sequence[Value | Scores] | None:
        """Return the scores of a product of queries and keys."""
        left, right = operands
        result = call.result
        if not isinstance(result, Tensor):
            return None
        tensors = [left.tensor, right.tensor]
        if call.name == "einsum":
            product = _as_product(call.args, tensors, [left.labels, right.labels])
            if product is None or product.order[-2:] != [result.dim() - 2, result.dim() - 1]:
                return None
            queries, keys = product.first, product.second
        elif call.args[0] is left.tensor and left.labels is not None and right.labels is not None:
            queries, keys = left.labels, right.labels.transpose(-2, -1)
        else:
            return None
        q = replace(left, labels=queries, count=left.all_tokens)
        k = replace(right, labels=keys, count=right.all_tokens)
        if _is_heads(q) and _is_heads(k):
            return [Scores(result, q, k)]
        return None

    def of_scores(self, call: Call, operands: Sequence[object]) -> Sequence[Value | Scores] | None:
        """Return what follows from scores: scaled, masked, softened, or multiplied by values."""
        scores = next(operand for operand in operands if isinstance(operand, Scores))
        name = call.name
        result = call.result
        if not isinstance(result, Tensor):
            return None
        if len(operands) == 2:
            return self._times_values(call, scores, operands[1], result)
        if len(operands) != 1 or result.shape != scores.tensor.shape:
            return None
        after = replace(scores, tensor=result)
        if name in UNCHANGED:
            return [after]
        if name == "dropout":
            p = call.option("p", 0.5)
            return None if p and drops(call) else [after]
        if name == "softmax":
            axis = call.option("dim")
            last = axis in (-1, result.dim() - 1)
            if last and not scores.softened:
                return [replace(after, softened=True)]
            return None
        if scores.softened:
            return None
        if name in ("mul", "div", "truediv"):
            number = factor(self.trace, call, scores.tensor)
            if number is None:
                return None
            return [replace(after, scale=scores.scale * number)]
        if name in ("add", "masked_fill", "where"):
            return self._masked(scores, after, result)
        return None

    def _times_values(
        self, call: Call, scores: Scores, values: object, result: Tensor
    ) -> Sequence[Value | Scores] | None:
        if not isinstance(values, Value) or not scores.softened or values.labels is None:
            return None
        labels = values.labels
        order = list(range(result.dim()))
        if call.name == "einsum":
            product = _as_product(call.args, [scores.tensor, values.tensor], [None, labels])
            if product is None:
                return None
            labels = product.second
            order = product.order
        elif call.name not in ("matmul", "bmm") or call.args[0] is not scores.tensor:
            return None
        heads = replace(values, labels=labels, count=values.all_tokens)
        return self._attended(scores, heads, result, order)

    def _masked(
        self, scores: Scores, after: Scores, result: Tensor
    ) -> Sequence[Value | Scores] | None:
        """Return scores with hidden keys; other numbers that were added have no limit here."""
        hidden = result < HIDDEN
        self.trace.read(hidden)
        same = (result == scores.tensor) | hidden
        if not bool(same.all()):
            return None
        flat = hidden.reshape(-1, *hidden.shape[-2:])
        if bool((flat != flat[:1]).any()):
            return None  # heads with different masks
        visible = ~flat[0]
        if scores.visible is not None:
            visible = visible & scores.visible
        return [replace(after, visible=visible)]

    def _attended(
        self, scores: Scores, values: Value, result: Tensor, order: list[int]
    ) -> Sequence[Value | Scores] | None:
        """Return the heads of the attended values.

        Axis i of (..., tokens, channels) is the axis order[i] of the result.
        """
        assert scores.queries.labels is not None
        if not _is_heads(values):
            return None
        size = scores.queries.labels.shape[-1]
        nodes = []
        for piece in (scores.queries, scores.keys, values):
            nodes.append(self.trace.node_of(piece))
        node = self._node(nodes, scores.scale**2 * size, scores.visible)
        return [_heads(result, node, order)]

    def _node(self, nodes: list[Node], strength: float, visible: Tensor | None) -> Node:
        branches = branches_of(nodes)
        if not all(branches.layers):
            raise InputError(
                "model: queries, keys and values of an attention are the same tensor, or share"
                " weights; each needs a linear layer of its own",
                "no-infinite-width",
                argument="model",
            )
        queries, keys, values = (kernels.Sequential(*branch) for branch in branches.layers)
        mask: np.ndarray | None = None
        causal = False
        if visible is not None and not bool(visible.all()):
            pairs = visible.cpu().numpy()
            causal = bool((pairs == np.tri(*pairs.shape, dtype=bool)).all())
            mask = None if causal else pairs
        return branches.joined(HeadsAttention(queries, keys, values, strength, causal, mask))

    # --- fused

    def fused(self, call: Call) -> Sequence[Value | Scores] | None:
        """Return the result of `scaled_dot_product_attention`."""
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = call.given(*names)
        result = call.result
        pieces = [self.trace.values.get(id(given.get(name))) for name in names[:3]]
        if not isinstance(result, Tensor) or given.get("dropout_p"):
            return None
        heads: list[Value] = []
        for piece in pieces:
            if not isinstance(piece, Value) or not _is_heads(piece):
                return None
            heads.append(piece)
        queries, keys, _ = heads
        size = queries.tensor.shape[-1]
        scale = given.get("scale")
        number = size**-0.5 if scale is None else scale
        assert isinstance(number, float | int)
        tokens = (queries.tensor.shape[-2], keys.tensor.shape[-2])
        self.trace.read(given.get("attn_mask"))
        visible = _visible(given.get("attn_mask"), tokens, queries.tensor.device)
        if visible is None:
            return None
        if given.get("is_causal"):
            visible = visible.tril()
        nodes = [self.trace.node_of(piece) for piece in heads]
        node = self._node(nodes, number**2 * size, visible)
        return [_heads(result, node, list(range(result.dim())))]

    def multi_head(self, call: Call) -> Sequence[Value | Scores] | None:
        """Return the output of `multi_head_attention_forward`, the function of MultiheadAttention.

        Inputs are (tokens, 1, channels).
        """
        given = inspect.signature(call.func).bind(*call.args, **call.kwargs).arguments
        inputs = [self.trace.values.get(id(given[name])) for name in ("query", "key", "value")]
        streams = [x for x in inputs if isinstance(x, Value) and x.features == x.tensor.dim() - 1]
        odd = ("bias_k", "bias_v", "static_k", "static_v", "key_padding_mask")
        unknown = any(given.get(name) is not None for name in odd) or given.get("add_zero_attn")
        dropped = given.get("training", True) and given.get("dropout_p")
        if len(streams) != 3 or unknown or dropped:
            return None
        assert isinstance(call.result, tuple)
        output = call.result[0]
        width = given["embed_dim_to_check"]
        heads = given["num_heads"]
        tokens = (streams[0].tensor.shape[0], streams[1].tensor.shape[0])
        self.trace.read(given.get("attn_mask"))
        visible = _visible(given.get("attn_mask"), tokens, output.device)
        if visible is None:
            return None
        self._note_projections(given)
        nodes = []
        for number, x in enumerate(streams):
            projection = self._projected(given, number, width)
            every = torch.arange(width, device=projection.weight.device)
            nodes.append(x.node.then(projection.layer(every), [Use(projection.name)]))
        # scores are divided by sqrt(channels of a head)
        node = self._node(nodes, 1.0, visible)
        last = self.trace.weights.variances(
            given["out_proj_weight"], given.get("out_proj_bias"), width
        )
        if last is None or heads < 1:
            return None
        x = streams[0]
        labels = with_channels(x.tokens, x.tensor.dim() - 1, width)
        out = Use(self.trace.weights.names[id(given["out_proj_weight"])])
        node = node.then(kernels.Dense(*last), [out])
        return [Value(output, node, labels, width, x.tensor.dim() - 1)]

    def _note_projections(self, given: Mapping[str, object]) -> None:
        """Check the weights and biases of queries, keys and values like those of other layers."""
        names = ["in_proj_weight"]
        if given.get("use_separate_proj_weight"):
            names = list(SEPARATE)
        for name in (*names, "in_proj_bias"):
            if self.trace.weights.variance(given.get(name)) is None:
                raise self.trace.no_limit(
                    torch.nn.functional.multi_head_attention_forward,
                    f" (its {name} is no parameter)",
                )

    def _projected(self, given: Mapping[str, object], number: int, width: int) -> Projection:
        """Return the weights of queries, keys or values."""
        rows = slice(number * width, (number + 1) * width)
        bias = given.get("in_proj_bias")
        whole = given.get("in_proj_weight")
        if given.get("use_separate_proj_weight"):
            whole = given.get(SEPARATE[number])
        assert isinstance(whole, Tensor)
        name = self.trace.weights.names[id(whole)]
        if given.get("use_separate_proj_weight"):
            weight = whole
        else:
            weight = whole[rows]
            name = f"{name} rows {rows.start} to {rows.stop}"
        if isinstance(bias, Tensor):
            part = bias[rows]
        else:
            part = None
        return Projection(Node(), weight, part, name)


def _is_heads(x: Value) -> bool:
    """Return whether x is (..., all tokens in order, channels), with equal tokens elsewhere."""
    labels = x.labels
    channels = x.channels
    if labels is None or labels.dim() < 2:
        return False
    last = labels.dim() - 1
    token_axes, channel_axes = varying(labels, channels)
    if last in token_axes or (last not in channel_axes and labels.shape[last] > 1):
        return False
    if any(axis != last - 1 for axis in token_axes):
        return False
    tokens = (labels // channels).select(last, 0).reshape(-1, labels.shape[last - 1])[0]
    if len(tokens) != x.all_tokens:
        return False
    return bool((tokens == torch.arange(len(tokens), device=tokens.device)).all())


def _heads(result: Tensor, node: Node, order: list[int]) -> Value:
    """Return attended values, whose channels are numbered head by head."""
    *heads, tokens, size = (result.shape[axis] for axis in order)
    count = 1
    for number in heads:
        count *= number
    channels = count * size
    neurons = torch.arange(channels, device=result.device).reshape(*heads, 1, size)
    token = torch.arange(tokens, device=result.device).reshape(tokens, 1)
    labels = (token * channels + neurons).permute([order.index(i) for i in range(len(order))])
    features = order[-1] if count == 1 else None
    return Value(result, node, labels.contiguous(), channels, features)


def _visible(mask: object, tokens: tuple[int, int], device: torch.device) -> Tensor | None:
    """Return (queries, keys) of booleans; None for masks that differ between heads or add terms."""
    if mask is None:
        return torch.ones(tokens, dtype=torch.bool, device=device)
    assert isinstance(mask, Tensor)
    visible = mask
    if mask.is_floating_point():
        visible = mask > HIDDEN
        if bool((mask[visible] != 0).any()):
            return None
    flat = visible.broadcast_to(*visible.shape[:-2], *tokens).reshape(-1, *tokens)
    if bool((flat != flat[:1]).any()):
        return None
    return flat[0]


@dataclass(frozen=True, eq=False)
class _Product:
    """Operands of einsum, with the letters of rows, columns and the summed letter last.

    The first is (..., rows, summed). The second is (..., columns, summed), as keys, or
    (..., summed, columns), as values. Axis i of (..., rows, columns) is the axis order[i] of the
    result.
    """

    first: Tensor
    second: Tensor
    order: list[int]


def _as_product(
    args: Sequence[object], tensors: Sequence[Tensor], labels: Sequence[Tensor | None]
) -> _Product | None:
    """Return the labels of einsum's operands as a product of matrices.

    The first labels are None for attention weights; then the second operand are values.
    """
    equation = args[0]
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    left, out = equation.replace(" ", "").split("->")
    terms = left.split(",")
    if len(terms) != 2 or len(args) != 3:
        return None
    swapped = args[1] is tensors[1]
    first, second = terms[::-1] if swapped else terms
    summed = (set(first) & set(second)) - set(out)
    rows = [letter for letter in first if letter not in second]
    columns = [letter for letter in second if letter not in first]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1:
        return None
    inner = summed.pop()
    shared = [letter for letter in out if letter in first and letter in second]
    of_second = [*shared, columns[0], inner]
    if labels[0] is None:
        of_second = [*shared, inner, columns[0]]
    assert labels[1] is not None
    moved_second = labels[1].permute([second.index(letter) for letter in of_second])
    moved_first = torch.empty(0)
    if labels[0] is not None:
        of_first = [*shared, rows[0], inner]
        moved_first = labels[0].permute([first.index(letter) for letter in of_first])
    order = [out.index(letter) for letter in (*shared, rows[0], columns[0])]
    return _Product(moved_first, moved_second, order)
