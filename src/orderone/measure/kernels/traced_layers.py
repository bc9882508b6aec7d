"""Mode that gives each tensor of a forward pass the layers that made it from the inputs.

`Layers` sees every function of torch. Functions that only move entries move the labels of their
operand; for all others, a function of a `traced_` module returns the value of the result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from orderone.core.errors import InputError
from orderone.measure.kernels import traced_functions as functions
from orderone.measure.kernels import traced_norms as norms
from orderone.measure.kernels import traced_pools as pools
from orderone.measure.kernels import traced_sums as sums
from orderone.measure.kernels import traced_weights as weights
from orderone.measure.kernels.traced_attention import Scores, TracedAttention
from orderone.measure.kernels.traced_call import Call
from orderone.measure.kernels.traced_constants import Constants
from orderone.measure.kernels.traced_values import (
    UNCHANGED,
    Node,
    Statistic,
    Use,
    Value,
    function_name,
    moved,
    varying,
    with_channels,
)
from orderone.observe.tensor_facts import version
from orderone.torch_compat import tree_leaves, tree_map

# Functions that only move entries
MOVES = {
    *("flatten", "reshape", "view", "squeeze", "unsqueeze", "view_as", "unflatten", "reshape_as"),
    *("transpose", "permute", "movedim", "swapaxes", "swapdims", "moveaxis", "t", "ravel"),
    *("getitem", "chunk", "split", "split_with_sizes", "unbind", "narrow", "select", "expand"),
    *("expand_as", "repeat_interleave", "index_select", "tensor_split", "repeat", "broadcast_to"),
    *("T", "mT", "H", "mH"),
}
# Functions that take only a shape or a type from their second tensor
LIKE_ANOTHER = {"expand_as", "view_as", "reshape_as", "type_as"}
# Functions that return numbers of Python, write into a tensor, or change its gradient
UNSEEN = {
    *("item", "tolist", "numpy", "array", "bool", "int", "float", "index", "complex", "dlpack"),
    *("setitem", "is_nonzero", "equal", "allclose", "set_data", "set", "register_hook"),
}
CASTS = {"bool", "int", "float", "complex"}  # names of methods as well
# Functions that draw random numbers; those of dropout are known
RANDOM = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal"),
    *("bernoulli", "multinomial", "poisson", "uniform", "random", "exponential", "log_normal"),
}
Traced: TypeAlias = Value | Scores | Statistic


class Layers(TorchFunctionMode):
    """Mode that gives each tensor the layers that made it from the inputs."""

    def __init__(self, parameters: Mapping[int, str]):
        super().__init__()
        self.values: dict[int, Traced] = {}
        self.versions: dict[int, int] = {}
        self.running: list[str] = []
        self.numbers: list[Tensor] = []
        self.table: int | None = None
        self.empty_rows: tuple[int, ...] = ()
        self.slices: dict[int, dict[frozenset[int], Node]] = {}
        self.weights: weights.Weights = weights.Weights(parameters)
        self.constants: Constants = Constants(parameters)
        self.attention: TracedAttention = TracedAttention(self)

    def keep(self, value: Traced) -> None:
        self.versions[id(value.tensor)] = version(value.tensor)
        self.values[id(value.tensor)] = value

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        operands = [self.values[id(x)] for x in leaves if id(x) in self.values]
        name = function_name(func)
        self._check_unchanged(operands, func)
        if name in RANDOM:
            raise self.no_limit(func)
        if operands and (_leaves_torch(func) or kwargs.get("out") is not None):
            raise self.no_limit(func)
        if name == "batch_norm" and operands:
            norms.check_statistics(args, kwargs)
        result = func(*args, **kwargs)
        if not operands:
            if isinstance(result, Tensor):
                self.constants.follow(name, func, args, kwargs, result)
            return result
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if not made:
            return result
        found = self._found(Call(name, func, args, kwargs, result), operands)
        if found is None:
            raise self.no_limit(func)
        has_gradient = any(operand.tensor.requires_grad for operand in operands)
        if has_gradient and not all(value.tensor.requires_grad for value in found):
            raise self.no_limit(func, " (it cuts gradients, or is called without them)")
        for value in found:
            self.keep(value)
        return result

    def _found(self, call: Call, operands: list[Traced]) -> Sequence[Traced] | None:
        """Return the values of a call; errors of the layers name the function and the module."""
        try:
            return self._values(call, operands)
        except InputError as error:
            if error.code != "needs-dense-layer":
                raise
            raise self.no_limit(call.func, f" ({error})") from error

    def _check_unchanged(self, operands: list[Traced], func: Callable[..., object]) -> None:
        """Refuse tensors that were written to after they were made."""
        for operand in operands:
            if version(operand.tensor) != self.versions[id(operand.tensor)]:
                raise self.no_limit(func, " (its argument was changed in place)")

    def read(self, tensor: object) -> None:
        """Note a tensor whose numbers the limit depends on; they must not depend on the inputs."""
        if isinstance(tensor, Tensor) and tensor not in self.weights:
            self.numbers.append(tensor.detach().clone())

    def no_limit(self, func: Callable[..., object], reason: str = "") -> InputError:
        """Return the error that names a function and the module that called it."""
        where = self.running[-1] if self.running else ""
        return InputError(
            f"model: {function_name(func)} in the module {where or 'model'!r} has no limit of"
            f" infinite width here{reason}; kernel_from_module knows linear layers, convolutions,"
            " tables, activations, norms, dropout, pools, softmax attention, sums and products of"
            " branches",
            "no-infinite-width",
            argument="model",
        )

    def _values(self, call: Call, operands: list[Traced]) -> Sequence[Traced] | None:
        """Return the values of all tensors that a function returned; None if it has no limit."""
        name = call.name
        if name == "multi_head_attention_forward":
            return self.attention.multi_head(call)
        if any(isinstance(operand, Scores) for operand in operands):
            return self.attention.of_scores(call, operands)
        if any(isinstance(operand, Statistic) for operand in operands):
            return norms.of_statistic(call, operands)
        values = [operand for operand in operands if isinstance(operand, Value)]
        if name in LIKE_ANOTHER:
            values = values[:1]
        if name == "scaled_dot_product_attention":
            return self.attention.fused(call)
        if len(values) == 2 and name in ("matmul", "bmm", "einsum"):
            return self.attention.scores(call, values)
        x = values[0]
        if len(values) == 1 and x.labels is not None:
            if name in UNCHANGED:
                return self._unchanged(x, call.result)
            if name in MOVES:
                return self._moved(x, call)
            if name == "cat":
                return sums.with_first_tokens(self, call, x)
        if not isinstance(call.result, Tensor):
            return None
        if len(values) == 1 and name == "mean" and x.origin is not None:
            statistic = norms.mean_square(call, x)
            if statistic is not None:
                return [statistic]
        if len(values) == 1 and name == "glu":
            value = self._gated(call, x)
        elif len(values) == 1 and name in ("layer_norm", "rms_norm") and x.features is None:
            value = norms.norm_of_heads(self, call, x)
        else:
            value = self._value(call, [self.stream(value) for value in values])
        return None if value is None else [value]

    def _unchanged(self, x: Value, result: object) -> Sequence[Traced] | None:
        if not isinstance(result, Tensor) or result.shape != x.tensor.shape:
            return None
        return [replace(x, tensor=result)]

    def _moved(self, x: Value, call: Call) -> Sequence[Traced] | None:
        """Return the values of tensors that have the entries of `x` in another arrangement."""

        def swap(leaf: object) -> object:
            return x.labels if leaf is x.tensor else leaf

        arguments = tree_map(swap, (call.args, call.kwargs))
        labels = tree_leaves(call.func(*arguments[0], **arguments[1]))
        found: list[Traced] = []
        for tensor, label in zip(tree_leaves(call.result), labels, strict=True):
            value = moved(x, tensor, label.contiguous())  # so that any later view is possible
            if value is None:
                return None
            found.append(value)
        return found

    def _gated(self, call: Call, x: Value) -> Value | None:
        """Return the first half of the channels times the sigmoid of the second."""
        if x.labels is None:
            return None
        axis = call.option("dim", -1)
        assert isinstance(axis, int)
        halves = []
        labels = x.labels.chunk(2, axis)
        for tensor, label in zip(x.tensor.chunk(2, axis), labels, strict=True):
            half = moved(x, tensor, label.contiguous())
            if half is None:
                return None
            halves.append(self.stream(half))
        first, second = halves
        if first.features is None or second.features is None:
            return None
        opened = torch.sigmoid(second.tensor)
        sigmoid = Call("sigmoid", torch.sigmoid, (second.tensor,), {}, opened)
        gate = functions.activation(sigmoid, second)
        return None if gate is None else sums.multiplied([first, gate], call.tensor)

    def stream(self, x: Value) -> Value:
        """Return a slice of a projection as a stream of its own; other values as they are."""
        if x.labels is None or x.features is not None or x.projection is None:
            return x
        token_axes, channel_axes = varying(x.labels, x.channels)
        if len(channel_axes) != 1 or set(token_axes) & set(channel_axes):
            return x
        features = channel_axes[0]
        tokens = (x.labels // x.channels).select(features, 0)
        order = tokens.reshape(-1)
        if not bool((order == torch.arange(len(order), device=order.device)).all()):
            return x
        size = x.labels.shape[features]
        labels = with_channels(tokens, features, size)
        return Value(x.tensor, self.node_of(x), labels, size, features)

    def node_of(self, x: Value) -> Node:
        """Return the node of a value; a slice of a projection has weights of its own."""
        assert x.labels is not None
        rows = (x.labels % x.channels).unique()
        if len(rows) == x.channels:
            return x.node
        if x.projection is None:
            raise InputError(
                "model: a part of the neurons of a layer is used, after"
                f" {type(x.node.layer).__name__}; only slices of a linear layer have a limit here",
                "no-infinite-width",
                argument="model",
            )
        slices = self.slices.setdefault(id(x.projection), {})
        chosen = frozenset(rows.tolist())
        for others in slices:
            if others != chosen and others & chosen:
                raise InputError(
                    "model: slices of one linear layer overlap, so that they are not independent",
                    "no-infinite-width",
                    argument="model",
                )
        if chosen not in slices:
            use = Use(x.projection.name, chosen)
            slices[chosen] = x.projection.source.then(x.projection.layer(rows), [use])
        return slices[chosen]

    def _value(self, call: Call, operands: list[Value]) -> Value | None:
        """Return the value of a result; None if it has no limit."""
        name = call.name
        if len(operands) == 2:
            joined = functions.function_of_one(call, operands)
            if joined is not None:
                return joined
            if name in ("add", "sub"):
                return sums.added(call, operands)
            if name == "mul":
                return sums.multiplied(operands, call.tensor)
            return None
        if len(operands) != 1:
            return None
        x = operands[0]
        if name == "embedding":
            return weights.embedding(self, call, x)
        if x.labels is None:
            return _indices(call, x)
        if x.features is None:
            if name in ("mul", "div", "truediv"):
                return functions.scaled(self, call, x)
            return None
        return self._of_stream(call, x)

    def _of_stream(self, call: Call, x: Value) -> Value | None:
        """Return the value of a function of one stream."""
        name = call.name
        if name in weights.DENSE:
            return weights.dense(self, call, x)
        if name in weights.CONVOLUTIONS:
            return weights.convolution(self, call, x)
        if name in functions.ELEMENTWISE:
            return functions.activation(call, x)
        if name in norms.ARGUMENTS:
            return norms.norm(self, call, x)
        if name in norms.DROPOUTS:
            return norms.dropout(call, x)
        if name in ("mul", "div", "truediv"):
            scaled = functions.scaled(self, call, x)
            if scaled is not None:
                return scaled
        if name in functions.WITH_NUMBERS and call.has_only_numbers(x.tensor):
            return functions.with_numbers(call, x)
        if name in ("add", "sub"):
            return sums.with_positions(self, call, x)
        if pools.is_pool(name):
            return pools.pooled(call, x)
        return None


def _leaves_torch(func: Callable[..., object]) -> bool:
    """Return whether a function returns numbers of Python, or writes into a tensor.

    `__float__` is such a function; `float` makes a tensor.
    """
    name = function_name(func)
    is_special = getattr(func, "__name__", "").startswith("__")
    return name in UNSEEN and (is_special or name not in CASTS)


def _indices(call: Call, x: Value) -> Value | None:
    """Return whole numbers of the inputs in another shape, before a table is read."""
    result = call.tensor
    keeps = not result.is_floating_point() and result.numel() == x.tensor.numel()
    moves = call.name in MOVES and result.shape[-1:] == x.tensor.shape[-1:]
    same = call.name in UNCHANGED or moves
    if keeps and same:
        return Value(result, x.node, None)
    return None
