"""Writes down the steps of a forward pass, operation by operation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from orderone.observe.trace.facts import Constant, Use
from orderone.observe.trace.values import (
    Level,
    Operation,
    Step,
    Value,
    derived,
    is_spread,
    memory,
    picked,
    place_of,
    read_number,
    seen_through,
    tensors_in,
)
from orderone.torch_compat import TorchDispatchMode, operator_schema

# the operands of each contraction (bias, left, right) and the dimensions in which left and right
# are summed
_CONTRACTIONS: dict[str, tuple[str | None, str, str, int, int]] = {
    "mm": (None, "self", "mat2", -1, -2),
    "addmm": ("self", "mat1", "mat2", -1, -2),
    "bmm": (None, "self", "mat2", -1, -2),
    "baddbmm": ("self", "batch1", "batch2", -1, -2),
    "matmul": (None, "self", "other", -1, -2),
    "mv": (None, "self", "vec", -1, -1),
    "addmv": ("self", "mat", "vec", -1, -1),
    "dot": (None, "self", "tensor", -1, -1),
    "linear": ("bias", "input", "weight", -1, -1),
    "_grouped_mm": ("bias", "self", "mat2", -1, -2),
}
_LOOKUPS = {
    *("embedding", "_embedding_bag", "_embedding_bag_forward_only"),
    *("index", "index_select", "gather", "take"),
}
_SOFTMAXES = {"_softmax", "_safe_softmax", "softmax"}
_ROOTS = {"rsqrt", "sqrt", "linalg_vector_norm", "norm", "std"}
_OVERWRITES = {"copy", "fill", "zero"}
# linear in their floating operands, or selections of them; views need no entry, their memory tells
# them
_LINEAR = {
    *(
        "clone",
        "_to_copy",
        "copy",
        "cat",
        "stack",
        "neg",
        "rsub",
        "where",
        "masked_fill",
        "sum",
        "mean",
        "cumsum",
    ),
    *(
        "index",
        "index_select",
        "gather",
        "take",
        "index_add",
        "index_put",
        "_index_put_impl",
        "index_copy",
    ),
    *(
        "scatter",
        "scatter_add",
        "masked_scatter",
        "slice_scatter",
        "select_scatter",
        "native_dropout",
        "repeat",
    ),
    *(
        "constant_pad_nd",
        "roll",
        "flip",
        "tril",
        "triu",
        "repeat_interleave",
        "im2col",
        "col2im",
        "pixel_shuffle",
    ),
    *(
        "pixel_unshuffle",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
    ),
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "nan_to_num"),
}


class Recorder(TorchDispatchMode):
    """Writes down the steps of a forward pass."""

    def __init__(self, parameters: Mapping[str, Tensor], inputs: Any):
        super().__init__()
        self.steps: list[Step] = []
        self.uses: dict[str, dict[Use, None]] = {name: {} for name in parameters}
        self.scaled_parameters: list[Constant] = []
        self.paused = False
        self.values: dict[int, Value] = {}  # by the id of the tensor
        self.sharing: dict[int, list[Value]] = {}  # by the memory the tensor is in
        for name, parameter in parameters.items():
            axes = tuple((axis,) for axis in range(parameter.ndim))
            self._keep(Value(parameter, Level.PARAMETER, weights={name: axes}))
        for tensor in tensors_in(inputs):
            self._keep(self._made(Step("stop", fed=True), [], tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        schema = operator_schema(func).arguments
        given = {a.name: a.default_value for a in schema if a.has_default_value()}
        given |= dict(zip((a.name for a in schema), args, strict=False)) | kwargs
        written = tensors_in(
            [
                given.get(a.name)
                for a in schema
                if a.alias_info is not None and a.alias_info.is_write
            ]
        )
        name = operator_schema(func).name.removeprefix("aten::")
        name = name[:-1] if written and name.endswith("_") else name
        if name in _OVERWRITES:
            given.pop("self", None)
        operands = [self._value(x) for x in tensors_in(given)]
        out = func(*args, **kwargs)
        self.record(Operation(name, given, operands, tensors_in(out)), written)
        return out

    # Tensors

    def _keep(self, value: Value) -> None:
        self.values[id(value.tensor)] = value
        neighbours = self.sharing.setdefault(memory(value.tensor), [])
        neighbours[:] = [v for v in neighbours if v.tensor is not value.tensor] + [value]

    def _value(self, tensor: Tensor) -> Value:
        if id(tensor) not in self.values:
            owner = self._owner(
                tensor
            )  # a parameter's .data is made without a dispatched operation
            weights = seen_through(tensor, owner) if owner else {}
            level = Level.PARAMETER if owner else Level.CONSTANT
            self._keep(Value(tensor, level, weights=weights, owner=owner))
        return self.values[id(tensor)]

    def _owner(self, tensor: Tensor) -> Value | None:
        """The parameter, or the copy of one, whose memory `tensor` is in."""
        return next(
            (v.owner or v for v in self.sharing.get(memory(tensor), ()) if v.is_weight), None
        )

    def record(self, operation: Operation, written: Sequence[Tensor] = ()) -> None:
        new = [x for x in operation.results if all(x is not w for w in written)]
        if not [*written, *new] or not (operation.live or written):
            return
        if operation.live:
            step = self._step(operation)
            made = self._made(step, operation.live, [*written, *new][0])
        else:
            step = Step("stop")
            made = Value(written[0])  # a constant was written over it
        for tensor in (*written, *new):
            value = replace(made, tensor=tensor)
            if made.is_weight:
                value.owner = self._owner(tensor)
                value.weights = step.weights or derived(operation, tensor, value.owner)
                value.spread = is_spread(operation, tensor)
            if any(tensor is w for w in written):
                self._rewrite_around(value)
            self._keep(value)

    def _rewrite_around(self, new: Value) -> None:
        """Writing into a view changes the larger tensors in the same memory, but not the views next
        to it."""
        for value in self.sharing.get(memory(new.tensor), ()):
            if value.is_weight or new.step is None or value.tensor is new.tensor:
                continue
            if place_of(value.tensor) == place_of(new.tensor):
                value.level = new.level
                value.step = new.step
            elif value.tensor.numel() > new.tensor.numel():
                both = [v for v in (value, new) if v.is_input]
                merged = self._made(Step("pass", both), both, value.tensor)
                value.level = merged.level
                value.step = merged.step

    # Steps

    def _made(self, step: Step, operands: Iterable[Value], tensor: Tensor) -> Value:
        """The value that `step` makes out of `operands`."""
        operands = [*operands, *step.flow]
        parents = [self.steps[v.step] for v in operands if v.step is not None]
        if step.kind == "weights":
            level = Level.PARAMETER
        else:
            learned = step.uses or any(v.level >= Level.PARAMETER for v in operands)
            level = Level.ACTIVATION if learned else Level.DATA
        if step.kind == "weights" and not parents:
            return Value(tensor, level)
        for parent in parents:
            step.ancestors |= parent.ancestors
            step.fed |= parent.fed
        step.ancestors |= 1 << len(self.steps)
        step.parents = tuple(v.step for v in step.flow if v.step is not None)
        for name, use in step.uses:
            self.uses[name][use] = None
        self.steps.append(step)
        return Value(tensor, level, len(self.steps) - 1)

    def _step(self, operation: Operation) -> Step:
        name = operation.name
        if name in _CONTRACTIONS:
            return self._contraction(operation)
        if name.endswith("convolution"):
            return self._convolution(operation)
        if name.endswith(("layer_norm", "rms_norm", "group_norm")) or "batch_norm" in name:
            return self._norm(operation)
        if name in _LOOKUPS and self._table(operation).is_weight:
            return self._lookup(operation)
        if name in ("mul", "div") and operation.given.get("rounding_mode") is None:
            return self._scaling(operation)
        if name in ("add", "sub"):
            return self._sum(operation)
        if "scaled_dot_product" in name:
            return self._attention(operation)
        return self._elsewhere(operation)

    def _optional(self, operation: Operation, name: str | None) -> Value | None:
        given = operation.given.get(name) if name else None
        if isinstance(given, Tensor):
            return self._value(given)
        return None

    def _contraction(self, operation: Operation) -> Step:
        """alpha left.right + beta bias, in as many steps as it takes."""
        bias_name, left, right, left_dim, right_dim = _CONTRACTIONS[operation.name]
        left = self._value(operation.given[left])
        right = self._value(operation.given[right])
        bias = self._optional(operation, bias_name)
        alpha = operation.given.get("alpha", 1)
        beta = operation.given.get("beta", 1)
        step = multiplied(left, right, left_dim, right_dim if right.tensor.ndim > 1 else -1)
        if alpha == 1 and (bias is None or step.kind == "weights"):
            return step
        if alpha == 1 and bias is not None and bias.is_weight and step.kind == "matrix":
            step.uses += bias.used("shift")
            return step
        product = self._times(self._made(step, [left, right], operation.results[0]), alpha)
        if bias is None or beta == 0 or bias.level == Level.CONSTANT:
            return Step("pass", [product])
        if bias.is_weight:
            return Step("shift", [product], bias.used("shift"))
        return Step("add", [self._times(bias, beta), product])

    def _times(self, value: Value, factor: int | float) -> Value:
        if factor == 1 or not value.is_input:
            return value
        return self._made(Step("constant", [value], factor=float(factor)), [value], value.tensor)

    def _convolution(self, operation: Operation) -> Step:
        weight = self._value(operation.given["weight"])
        bias = self._optional(operation, "bias")
        if not weight.is_weight:
            return self._elsewhere(operation)
        channels = 0 if operation.given.get("transposed") else 1
        dims = [channels, *range(2, weight.tensor.ndim)]
        uses = weight.summed("convolution", dims) + (bias.used("shift") if bias else [])
        return Step("convolution", operation.inputs, uses)

    def _norm(self, operation: Operation) -> Step:
        gain = self._optional(operation, "weight")
        shift = self._optional(operation, "bias")
        uses = (gain.used("gain") if gain else []) + (shift.used("shift") if shift else [])
        return Step("norm" if uses else "normalized", operation.inputs, uses)

    def _table(self, operation: Operation) -> Value:
        return self._value(operation.given["weight" if "embedding" in operation.name else "self"])

    def _lookup(self, operation: Operation) -> Step:
        """By integers. Picking whole matrices (each token's experts) is no lookup: they are yet to
        be used."""
        table = self._table(operation)
        if operation.name != "index":
            return Step("lookup", uses=table.used("lookup"))
        indices = operation.given["indices"]
        at = [d for d, index in enumerate(indices) if index is not None]
        rest = [d for d, size in enumerate(table.tensor.shape) if d not in at and size > 1]
        if len(rest) < 2 and not any(indices[d].dtype in (torch.bool, torch.uint8) for d in at):
            return Step("lookup", uses=table.used("lookup"))
        return Step(
            "weights",
            weights={name: picked(dims, at, indices) for name, dims in table.weights.items()},
        )

    def _scaling(self, operation: Operation) -> Step:
        left = operation.given["self"]
        right = operation.given["other"]
        if self._is_number(right):
            value = self._value(left)
            number = read_number(right)
        elif self._is_number(left) and operation.name == "mul":
            value = self._value(right)
            number = read_number(left)
        else:
            return self._elementwise_product(operation, self._value(left), self._value(right))
        if not value.is_float:
            return self._elsewhere(operation)
        factor = number if operation.name == "mul" or not number else 1 / number
        if value.is_weight:
            self.scaled_parameters.append(Constant(factor, tuple(value.weights), ()))
            return Step("weights")
        return Step("constant", [value], factor=factor)

    def _is_number(self, x: Any) -> bool:
        if not isinstance(x, Tensor):
            return isinstance(x, int | float)
        return x.numel() == 1 and self._value(x).level == Level.CONSTANT and not x.is_complex()

    def _elementwise_product(self, operation: Operation, left: Value, right: Value) -> Step:
        weights = [v for v in (left, right) if v.is_weight]
        inputs = [v for v in (left, right) if v.is_input]
        if not inputs:
            return Step("weights")
        if operation.name == "div" and not left.is_input:
            return self._elsewhere(operation)
        if weights:
            kind = "norm" if self._comes_normalized(inputs[0]) else "gain"
            return Step(kind, inputs, [use for v in weights for use in v.used("gain")])
        if len(inputs) == 2 and any(self._is_statistic(v) for v in inputs):
            return Step("normalized", [v for v in inputs if not self._is_statistic(v)])
        learned = [v for v in inputs if v.level == Level.ACTIVATION]
        if len(learned) == 2:
            return Step("product", learned[:1] if operation.name == "div" else learned)
        return Step("weighting", learned or inputs)

    def _is_statistic(self, value: Value) -> bool:
        return value.step is not None and self.steps[value.step].statistic

    def _comes_normalized(self, value: Value) -> bool:
        if value.step is None:
            return False
        step = self.steps[value.step]
        while step.kind in ("pass", "constant") and len(step.parents) == 1:
            step = self.steps[step.parents[0]]
        return step.kind == "normalized"

    def _sum(self, operation: Operation) -> Step:
        terms = [
            self._value(x)
            for x in (operation.given["self"], operation.given["other"])
            if isinstance(x, Tensor)
        ]
        inputs = [v for v in terms if v.is_input]
        if len(terms) < 2 or not inputs or not all(v.is_float for v in inputs):
            return self._elsewhere(operation)
        uses = [use for v in terms for use in v.used("shift")]
        terms[1] = self._times(terms[1], operation.given.get("alpha", 1))
        inputs = [v for v in terms if v.is_input]
        return Step("shift" if uses else "add" if len(inputs) == 2 else "pass", inputs, uses)

    def _attention(self, operation: Operation) -> Step:
        query, key, value = (
            self._value(operation.given[name]) for name in ("query", "key", "value")
        )
        head_size = query.tensor.shape[-1]
        scale = operation.given.get("scale")
        step = Step("attention", [value] if value.is_input else [], operation.other_uses)
        step.factor = head_size**-0.5 if scale is None else float(scale)
        if query.step is not None and key.step is not None:
            step.product = (query.step, key.step, head_size)
        return step

    def _elsewhere(self, operation: Operation) -> Step:
        name = operation.name
        live = operation.live
        inputs = operation.inputs
        if all(v.is_weight for v in live):
            return Step("weights")
        if "rnn" in name or name in ("lstm", "gru"):
            weights = [v for v in live if v.is_weight]
            uses = [
                use
                for v in weights
                for use in (v.summed("matrix", [1]) if v.tensor.ndim > 1 else v.used("shift"))
            ]
            return Step("stop", inputs, uses)
        is_view = any(memory(v.tensor) == memory(x) for v in live for x in operation.results)
        if name in _LINEAR or name in ("add", "sub") or is_view:
            kind = "pass"
        else:
            kind = "stop"
        if name in _SOFTMAXES:
            kind = "softmax"
        elif name == "tanh":
            kind = "softcap"
        rooted = name in _ROOTS or (
            name == "pow" and operation.given.get("exponent") in (0.5, -0.5)
        )
        kept = kind == "pass" or name in ("reciprocal", "clamp", "clamp_min", "maximum")
        statistic = rooted or (kept and len(inputs) == 1 and self._is_statistic(inputs[0]))
        return Step(kind, inputs, operation.other_uses, statistic=statistic)


class WholeAttention(TorchFunctionMode):
    """scaled_dot_product_attention as one operation; what it is made of differs from device to
    device."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        operands = [self.recorder._value(x) for x in tensors_in(given)]
        self.recorder.paused = True
        try:
            out = func(*args, **kwargs)
        finally:
            self.recorder.paused = False
        self.recorder.record(Operation("scaled_dot_product_attention", given, operands, [out]))
        return out


def multiplied(left: Value, right: Value, left_dim: int, right_dim: int) -> Step:
    sides = [(left, left_dim, right), (right, right_dim, left)]
    weights = [
        (v, dim)
        for v, dim, other in sides
        if v.is_weight and (not other.is_weight or other.spread > v.spread)
    ]
    if left.is_weight and right.is_weight and not weights:  # a product of parameters, as in W + B A
        return Step("weights", weights=dict.fromkeys((*left.weights, *right.weights)))
    inputs = [v for v in (left, right) if v.is_input]
    if weights:
        [(weight, dim)] = weights
        spread = [use for v in (left, right) if v is not weight for use in v.used("other")]
        return Step("matrix", inputs, weight.summed("matrix", [dim]) + spread)
    if left.level == right.level == Level.ACTIVATION:
        step = Step("contraction", inputs)
        if left.step is not None and right.step is not None:
            step.product = (left.step, right.step, left.tensor.shape[left_dim])
        return step
    return Step("weighting", [v for v in inputs if v.level == Level.ACTIVATION] or inputs)
