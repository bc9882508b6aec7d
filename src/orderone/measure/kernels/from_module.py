"""From a PyTorch model to the kernels of the same model with infinitely many channels.

One forward pass of one example runs under a mode that sees every function of torch. A tensor that
depends on the inputs carries the layers of `theory.kernels` between the inputs and itself:

    linear, addmm, x @ W     Dense(weight_var, bias_var)      weight_var = fan-in times mean of W^2
    conv1d, conv2d, conv3d   Conv(...)                        the same, with channels times window
    embedding                Dense on one-hot inputs
    relu, gelu, tanh, ...    Activation
    layer_norm, rms_norm     LayerNorm, RMSNorm
    batch_norm in eval mode  Scale, while its statistics are those of initialization
    dropout                  Dropout, if the model is in training mode
    x + f(x), f(x) + g(x)    Residual, Sum
    x * number               Scale
    x * y of two branches    Product, if one of them has new weights
    mean over space, pools   AveragePool, LocalAveragePool; flatten: Flatten; one token: Token
    + table of positions     AddPositions;  class token before the others: FirstTokens
    attention                HeadsAttention: scaled_dot_product_attention, MultiheadAttention, or
                             softmax(q k^T) v written out (module `traced_attention`)

Weights count by their variance only. A function without an entry has no limit here, and the error
names it, and the module that called it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from orderone.core.errors import InputError, instance
from orderone.core.inputs import UserInput
from orderone.measure.kernels.examples import Examples, Inputs, read_examples, read_output
from orderone.measure.kernels.traced_attention import Scores, TracedAttention
from orderone.measure.kernels.traced_constants import Constants
from orderone.measure.kernels.traced_values import (
    Node,
    Origin,
    Projection,
    Statistic,
    Value,
    common_start,
    function_name,
    moved,
    natural_labels,
    varying,
    with_channels,
)
from orderone.observe.inventory import unwrap
from orderone.observe.trace import undisturbed
from orderone.theory import kernels
from orderone.torch_compat import tree_leaves, tree_map

Model: TypeAlias = Annotated[nn.Module, UserInput]

SIDES = (32, 28, 16, 8, 64, 224)  # of example images
# Functions of one number that torch has as functions or methods
ELEMENTWISE = {
    *("relu", "gelu", "tanh", "sigmoid", "silu", "softplus", "erf", "abs", "sin", "cos", "exp"),
    *("leaky_relu", "elu", "selu", "celu", "hardtanh", "relu6", "softsign", "mish", "square"),
    *("hardswish", "hardsigmoid", "logsigmoid", "tanhshrink", "hardshrink", "softshrink"),
}
# Names of theory for functions without arguments
NAMED = {"relu", "tanh", "sigmoid", "silu", "erf", "abs", "sin", "selu"}
UNCHANGED = {
    *("contiguous", "clone", "to", "float", "double", "identity", "alias", "detach", "type_as"),
    *("type", "requires_grad", "cpu", "cuda"),
}
# Functions that only move entries
MOVES = {
    *("flatten", "reshape", "view", "squeeze", "unsqueeze", "view_as", "unflatten", "reshape_as"),
    *("transpose", "permute", "movedim", "swapaxes", "swapdims", "moveaxis", "t", "ravel"),
    *("getitem", "chunk", "split", "split_with_sizes", "unbind", "narrow", "select", "expand"),
    *("expand_as", "repeat_interleave", "index_select", "tensor_split", "repeat", "broadcast_to"),
}


# Functions of one tensor and numbers that treat each entry alone
WITH_NUMBERS = {"pow", "add", "sub", "mul", "div", "truediv", "rsub", "neg", "float_power"}
Traced: TypeAlias = Value | Scores | Statistic
NORM_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "batch_norm": (
        *("input", "running_mean", "running_var", "weight", "bias", "training"),
        *("momentum", "eps"),
    ),
}


@dataclass(frozen=True)
class ModuleKernel:
    """The limit of a model: `net` is a `theory.kernels.Sequential`; call it with inputs."""

    net: kernels.Sequential
    table: int | None  # rows of the table that whole numbers are looked up in
    channels_first: bool

    def inputs(self, x: Annotated[Tensor | np.ndarray, UserInput]) -> kernels.Kernel:
        """Return the kernel of inputs as the model takes them: images have channels first."""
        values = x.detach() if isinstance(x, Tensor) else torch.as_tensor(x)
        if self.table is not None:
            values = nn.functional.one_hot(values.long(), self.table).double()
        elif self.channels_first:
            values = values.movedim(1, -1)
        if isinstance(x, np.ndarray):
            return kernels.inputs(values.numpy())
        return kernels.inputs(values)

    def __call__(
        self, x: Annotated[Tensor | np.ndarray | kernels.Kernel, UserInput]
    ) -> kernels.Kernel:
        """Return both kernels of these inputs, or of a kernel of inputs."""
        if isinstance(x, kernels.Kernel):
            return self.net(x)
        return self.net(self.inputs(x))


def kernel_from_module(model: Model, inputs: Inputs | None = None) -> ModuleKernel:
    """Return the limit of infinite width of a model, as layers of `theory.kernels`.

    `inputs` is an example batch; without it, one is made from the first layer. Variances are those
    of the present weights and biases. The tangent kernel is that of the parameterization of
    `theory.kernels`: factors in front of weights of order one.
    """
    model = unwrap(instance(model, nn.Module, "model", "pass a PyTorch model"))
    training = model.training
    with undisturbed(model), torch.no_grad():
        if inputs is not None:
            return _traced(model, read_examples(inputs, model, "inputs"), training)
        failure: Exception | None = None
        for example in _guesses(model):
            try:
                return _traced(model, read_examples(example, model, "inputs"), training)
            except InputError:
                raise
            except Exception as error:  # an input of another size may work
                failure = error
    raise InputError(
        f"inputs: no example batch that the model accepts could be made ({failure}); pass"
        " inputs=batch",
        "needs-example-batch",
        argument="inputs",
    ) from failure


def _traced(model: nn.Module, examples: Examples, training: bool) -> ModuleKernel:
    rows = examples.rows(slice(0, 1))
    first = rows[0]
    names = {id(p): name for name, p in model.named_parameters()}
    mode = Layers(names, training)
    root = Node()
    if first.is_floating_point():
        # (1, features), (1, tokens, features), or an image with channels first
        channels_first = first.dim() > 3 or (first.dim() == 3 and _convolves_first(model))
        features = 1 if channels_first else first.dim() - 1
        labels = natural_labels(first, features)
        mode.keep(Value(first, root, labels, first.shape[features], features))
    else:
        channels_first = False
        mode.keep(Value(first, root, None))
    args, kwargs = examples.call(rows)
    with _paths(model, mode), mode:
        output = model(*args, **kwargs)
    value = mode.values.get(id(read_output(output, None)))
    if not isinstance(value, Value):
        raise InputError(
            "model: expected outputs that depend on the inputs through layers with a limit, got an"
            " output that does not",
            "no-infinite-width",
            argument="model",
        )
    layers = [node.layer for node in value.node.path() if node.layer is not None]
    return ModuleKernel(kernels.Sequential(*layers), mode.table, channels_first)


def _convolves_first(model: nn.Module) -> bool:
    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            return True
        if isinstance(module, nn.Linear):
            return False
    return False


def _guesses(model: nn.Module) -> Iterator[Tensor]:
    """Yield examples that the first layer with parameters accepts."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            like = module.weight
            yield torch.ones(1, module.in_features, dtype=like.dtype)
            yield torch.ones(1, 4, module.in_features, dtype=like.dtype)
            return
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            axes = len(module.kernel_size)
            for side in SIDES:
                shape = (1, module.in_channels, *(side for _ in range(axes)))
                yield torch.ones(shape, dtype=module.weight.dtype)
            return
        if isinstance(module, nn.Embedding):
            yield torch.arange(8).remainder(module.num_embeddings)[None]
            return


@contextmanager
def _paths(model: nn.Module, mode: "Layers") -> Iterator[None]:
    """Let the mode know which module runs."""
    handles = []
    for name, module in model.named_modules():

        def enter(*_: object, name: str = name) -> None:
            mode.running.append(name)

        def leave(*_: object) -> None:
            mode.running.pop()

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# --- the mode -------------------------------------------------------------------------------------


class Layers(TorchFunctionMode):
    """Mode that gives each tensor the layers that made it from the inputs."""

    def __init__(self, parameters: Mapping[int, str], training: bool):
        super().__init__()
        self.parameters = parameters
        self.training = training
        self.values: dict[int, Traced] = {}
        self.running: list[str] = []
        self.used: set[int] = set()
        self.table: int | None = None
        self.slices: dict[int, dict[frozenset[int], Node]] = {}
        self.constants: Constants = Constants(parameters)
        self.attention: TracedAttention = TracedAttention(self, training)

    def keep(self, value: Traced) -> None:
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
        result = func(*args, **kwargs)
        name = function_name(func)
        if not operands:
            if isinstance(result, Tensor):
                self.constants.follow(name, func, args, kwargs, result)
            return result
        if name == "getattr" or (name == "get" and not isinstance(result, Tensor)):
            return result
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if not made:
            return result
        found = self._values(name, func, args, kwargs, operands, result)
        if found is None:
            raise self.no_limit(func)
        for value in found:
            self.keep(value)
        return result

    def no_limit(self, func: Callable[..., object]) -> InputError:
        """Return the error that names a function and the module that called it."""
        where = self.running[-1] if self.running else ""
        return InputError(
            f"model: {function_name(func)} in the module {where or 'model'!r} has no limit of"
            " infinite width here; kernel_from_module knows linear layers, convolutions, tables,"
            " activations, norms, dropout, pools, softmax attention, sums and products of branches",
            "no-infinite-width",
            argument="model",
        )

    def _values(
        self,
        name: str,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        operands: list[Traced],
        result: object,
    ) -> Sequence[Traced] | None:
        """Return the values of all tensors that a function returned; None if it has no limit."""
        if name == "multi_head_attention_forward":
            return self.attention.multi_head(func, args, kwargs, result)
        if any(isinstance(operand, Scores) for operand in operands):
            return self.attention.of_scores(name, args, kwargs, operands, result)
        if any(isinstance(operand, Statistic) for operand in operands):
            return self._of_statistic(name, args, kwargs, operands, result)
        values = [operand for operand in operands if isinstance(operand, Value)]
        if name == "scaled_dot_product_attention":
            return self.attention.fused(args, kwargs, result)
        if len(values) == 2 and name in ("matmul", "bmm", "einsum"):
            return self.attention.scores(name, args, values, result)
        x = values[0]
        if len(values) == 1 and x.labels is not None:
            if name in UNCHANGED or name == "get":
                return self._unchanged(x, result)
            if name in MOVES:
                return self._moved(x, func, args, kwargs, result)
            if name == "cat":
                return self._extended(args, kwargs, x, result)
        if not isinstance(result, Tensor):
            return None
        if len(values) == 1 and name == "mean" and x.origin is not None:
            statistic = _mean_square(args, kwargs, x, result)
            if statistic is not None:
                return [statistic]
        if len(values) == 1 and name in ("layer_norm", "rms_norm") and x.features is None:
            value = self._norm_of_heads(name, args, kwargs, x, result)
        else:
            streams = [self.stream(value) for value in values]
            value = self._value(name, func, args, kwargs, streams, result)
        return None if value is None else [value]

    def _unchanged(self, x: Value, result: object) -> Sequence[Traced] | None:
        if not isinstance(result, Tensor) or result.shape != x.tensor.shape:
            return None
        return [replace(x, tensor=result)]

    def _moved(
        self,
        x: Value,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        result: object,
    ) -> Sequence[Traced] | None:
        """Return the values of tensors that have the entries of `x` in another arrangement."""
        arguments = tree_map(lambda leaf: x.labels if leaf is x.tensor else leaf, (args, kwargs))
        labels = tree_leaves(func(*arguments[0], **arguments[1]))
        tensors = tree_leaves(result)
        found: list[Traced] = []
        for tensor, label in zip(tensors, labels, strict=True):
            value = moved(x, tensor, label.contiguous())  # so that any later view is possible
            if value is None:
                return None
            found.append(value)
        return found

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
            slices[chosen] = x.projection.source.then(x.projection.layer(rows))
        return slices[chosen]

    def _value(
        self,
        name: str,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        operands: list[Value],
        result: Tensor,
    ) -> Value | None:
        """Return the value of a result; None if it has no limit."""
        x = operands[0]
        if len(operands) == 2:
            joined = self._function_of_one(name, func, args, kwargs, operands, result)
            if joined is not None:
                return joined
            if name in ("add", "sub"):
                return self._sum(operands, kwargs, result)
            return self._product(operands, result) if name == "mul" else None
        if len(operands) != 1:
            return None
        if name == "embedding":
            return self._embedding(args, kwargs, x, result)
        if x.labels is None:
            keeps = not result.is_floating_point() and result.numel() == x.tensor.numel()
            same = name in UNCHANGED or (name in MOVES and result.shape[-1:] == x.tensor.shape[-1:])
            return Value(result, x.node, None) if keeps and same else None
        if x.features is None:
            return None
        if name in ("linear", "addmm", "matmul", "mm"):
            return self._dense(name, args, kwargs, x, result)
        if name in ("conv1d", "conv2d", "conv3d"):
            return self._convolution(args, kwargs, x, result)
        if name in ELEMENTWISE:
            return self._activation(name, func, args, kwargs, x, result)
        if name in ("layer_norm", "rms_norm", "batch_norm"):
            return self._norm(name, args, kwargs, x, result)
        if name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
            return self._dropout(name, args, kwargs, x, result)
        if name in ("mul", "div", "truediv"):
            scaled = self._scaled(name, args, kwargs, x, result)
            if scaled is not None:
                return scaled
        if name in WITH_NUMBERS and _numbers_only(x.tensor, args, kwargs):
            return self._function(func, args, kwargs, [x], result)
        if name in ("add", "sub"):
            return self._with_positions(args, kwargs, x, result)
        if name in ("mean", "avg_pool1d", "avg_pool2d", "avg_pool3d") or "adaptive_avg" in name:
            return self._pooled(name, args, kwargs, x, result)
        return None

    def _variance(self, parameter: object) -> float | None:
        """Return the mean square of a parameter that is used for the first time."""
        if parameter is None:
            return 0.0
        if not isinstance(parameter, Tensor) or id(parameter) not in self.parameters:
            return None
        if id(parameter) in self.used:
            raise InputError(
                f"model: the parameter {self.parameters[id(parameter)]!r} is used twice, so that"
                " layers are not independent; give each layer weights of its own",
                "no-infinite-width",
                argument="model",
            )
        self.used.add(id(parameter))
        return float(parameter.detach().double().square().mean())

    def weighted(self, weight: object, bias: object, fan_in: int) -> tuple[float, float] | None:
        weight_square = self._variance(weight)
        bias_square = self._variance(bias)
        if weight_square is None or bias_square is None:
            return None
        return fan_in * weight_square, bias_square

    def _dense(
        self,
        name: str,
        args: Sequence[object],
        kwargs: dict[str, object],
        x: Value,
        result: Tensor,
    ) -> Value | None:
        names = {
            "linear": ("input", "weight", "bias"),
            "addmm": ("bias", "input", "weight"),
        }.get(name, ("input", "weight"))
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        last = x.tensor.dim() - 1
        if given.get("input") is not x.tensor or x.features != last or result.dim() != last + 1:
            return None
        weight = given.get("weight")
        transposed = False
        if isinstance(weight, Tensor) and id(weight) not in self.parameters:
            original = self.constants.transposed(weight)
            transposed = original is not None
            weight = weight if original is None else original
        layer = self.weighted(weight, given.get("bias"), x.tensor.shape[-1])
        if layer is None or not isinstance(weight, Tensor):
            return None
        rows = weight if (name == "linear") != transposed else weight.T
        bias = given.get("bias")
        projection = Projection(x.node, rows, bias if isinstance(bias, Tensor) else None)
        labels = with_channels(x.tokens, last, result.shape[-1])
        node = x.node.then(kernels.Dense(*layer))
        return Value(result, node, labels, result.shape[-1], last, projection)

    def _embedding(
        self, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        given = {**dict(zip(("input", "weight"), args, strict=False)), **kwargs}
        weight = given.get("weight")
        if x.labels is not None or not isinstance(weight, Tensor) or self.table is not None:
            return None
        square = self._variance(weight)
        if square is None:
            return None
        self.table = weight.shape[0]
        node = x.node.then(kernels.Dense(self.table * square))
        return self._natural(result, node, result.dim() - 1)

    def _natural(self, result: Tensor, node: Node, features: int) -> Value:
        labels = natural_labels(result, features)
        return Value(result, node, labels, result.shape[features], features)

    def _after(self, x: Value, result: Tensor, *layers: kernels.Layer) -> Value | None:
        """Return a stream in the layout of `x`, after layers that keep it."""
        if result.shape != x.tensor.shape:
            return None
        if not layers:
            return replace(x, tensor=result)
        node = x.node
        for layer in layers:
            node = node.then(layer)
        return Value(result, node, x.labels, x.channels, x.features)

    def _convolution(
        self, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        weight = given.get("weight")
        padding = given.get("padding", 0)
        if x.features != 1 or given.get("groups", 1) != 1 or not isinstance(weight, Tensor):
            return None
        window = tuple(weight.shape[2:])
        dilation = _numbers(given.get("dilation", 1))
        if padding == "valid":
            padding = 0
        elif padding == "same":
            full = dilation if len(dilation) == len(window) else dilation * len(window)
            totals = [gap * (size - 1) for gap, size in zip(full, window, strict=True)]
            if any(total % 2 for total in totals):
                return None
            padding = tuple(total // 2 for total in totals)
        variances = self.weighted(weight, given.get("bias"), weight[0].numel())
        if variances is None:
            return None
        layer = kernels.Conv(
            window,
            *variances,
            stride=_numbers(given.get("stride", 1)),
            padding=_numbers(padding),
            dilation=dilation,
        )
        return self._natural(result, x.node.then(layer), 1)

    def _activation(
        self,
        name: str,
        func: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
        x: Value,
        result: Tensor,
    ) -> Value | None:
        options = {key: option for key, option in kwargs.items() if key != "inplace"}
        plain = not options and len(args) == 1
        layer: kernels.Layer | None = None
        if name in NAMED and (plain or set(kwargs) <= {"inplace"}):
            layer = kernels.Activation(name)
        elif name == "gelu" and options.get("approximate", "none") == "none":
            layer = kernels.Activation("gelu")
        elif name == "leaky_relu":
            slope = kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            layer = kernels.Activation(f"leaky-relu({slope})")
        safe = getattr(torch.nn.functional, name, None) or getattr(torch, name)
        composed = self._function(safe, args, options, [x], result)
        if layer is None or x.origin is not None or composed is None:
            return composed
        return replace(composed, node=x.node.then(layer))

    def _function(
        self,
        func: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        operands: list[Value],
        result: Tensor,
    ) -> Value | None:
        """Return an activation, whose argument is the last node that is not one."""
        x = operands[0]
        source = x.source
        if result.shape != x.tensor.shape:
            return None

        def function(values: Tensor) -> Tensor:
            def swap(leaf: object) -> object:
                for operand in operands:
                    if leaf is operand.tensor:
                        return operand.source.function(values)
                return leaf

            arguments = tree_map(swap, (tuple(args), dict(kwargs)))
            found = func(*arguments[0], **arguments[1])
            assert isinstance(found, Tensor)
            return found

        def phi(values: np.ndarray) -> np.ndarray:
            return function(torch.as_tensor(np.asarray(values, dtype=float))).numpy()

        node = source.node.then(kernels.Activation(phi))
        origin = Origin(source.node, function)
        return Value(result, node, x.labels, x.channels, x.features, None, origin)

    def _function_of_one(
        self,
        name: str,
        func: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
        operands: list[Value],
        result: Tensor,
    ) -> Value | None:
        """Return a sum or product of two functions of the same neurons, as x * sigmoid(x)."""
        left, right = operands
        if name not in ("add", "sub", "mul") or not _same_layout(left, right):
            return None
        if left.source.node is not right.source.node:
            return None
        if name != "mul" and left.origin is None and right.origin is None:
            return None
        return self._function(func, args, kwargs, operands, result)

    def _of_statistic(
        self,
        name: str,
        args: Sequence[object],
        kwargs: dict[str, object],
        operands: Sequence[Traced],
        result: object,
    ) -> Sequence[Traced] | None:
        """Return the steps of an RMS norm that is written out: + eps, rsqrt, times the stream."""
        statistic = next(each for each in operands if isinstance(each, Statistic))
        if not isinstance(result, Tensor):
            return None
        if len(operands) == 1:
            numbers = [a for a in (*args, *kwargs.values()) if isinstance(a, int | float)]
            if name == "add" and len(numbers) == 1 and not statistic.inverse:
                return [replace(statistic, tensor=result, eps=statistic.eps + numbers[0])]
            if name == "rsqrt" and not statistic.inverse:
                return [replace(statistic, tensor=result, inverse=True)]
            return [replace(statistic, tensor=result)] if name in UNCHANGED else None
        others = [each for each in operands if isinstance(each, Value)]
        same = len(others) == 1 and others[0].node is statistic.of.node
        if name != "mul" or not same or not statistic.inverse:
            return None
        value = self._after(others[0], result, kernels.RMSNorm(statistic.eps))
        return None if value is None else [value]

    def _norm(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        given = {**dict(zip(NORM_ARGUMENTS[name], args, strict=False)), **kwargs}
        gain = self._variance(given.get("weight"))
        shift = self._variance(given.get("bias"))
        if gain is None or shift is None or shift != 0:
            return None
        factor = 1.0 if given.get("weight") is None else gain**0.5
        eps = given.get("eps")
        if name == "batch_norm":
            mean = given.get("running_mean")
            variance = given.get("running_var")
            if x.features != 1 or not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
                return None
            if bool((mean != 0).any()) or bool((variance != 1).any()):
                return None  # statistics of training
            assert isinstance(eps, float)
            return self._after(x, result, kernels.Scale(factor / (1 + eps) ** 0.5))
        shape = given.get("normalized_shape")
        last = x.tensor.dim() - 1
        if x.features != last or not isinstance(shape, Sequence) or len(shape) != 1:
            return None
        return self._after(x, result, *_norm_layers(name, eps, factor, x.tensor))

    def _norm_of_heads(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        """Return queries or keys after a norm of each head."""
        given = {**dict(zip(NORM_ARGUMENTS[name], args, strict=False)), **kwargs}
        gain = self._variance(given.get("weight"))
        shift = self._variance(given.get("bias"))
        shape = given.get("normalized_shape")
        if gain is None or shift is None or shift != 0 or x.labels is None:
            return None
        token_axes, channel_axes = varying(x.labels, x.channels)
        last = x.tensor.dim() - 1
        if last not in channel_axes or last in token_axes or not isinstance(shape, Sequence):
            return None
        if len(shape) != 1:
            return None
        node = self.node_of(x)
        factor = 1.0 if given.get("weight") is None else gain**0.5
        for layer in _norm_layers(name, given.get("eps"), factor, x.tensor):
            node = node.then(layer)
        # channels of this piece only, numbered anew
        _, labels = (x.labels % x.channels).unique(return_inverse=True)
        size = int(labels.max()) + 1
        return Value(result, node, x.labels // x.channels * size + labels, size)

    def _dropout(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        assert isinstance(p, int | float)
        if not self.training or p == 0:
            return self._after(x, result)
        if name != "dropout" and x.tensor.dim() > 2:
            return None  # whole channels: pixels share a mask
        return self._after(x, result, kernels.Dropout(1 - p))

    def _scaled(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        factor = self.factor(name, args, kwargs, x.tensor)
        if factor is None:
            return self._gained(name, args, kwargs, x, result)
        value = self._after(x, result, kernels.Scale(factor))
        if value is None:
            return None
        source = x.source

        def scaled(values: Tensor) -> Tensor:
            return factor * source.function(values)

        return replace(value, origin=Origin(source.node, scaled))

    def _gained(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        """Return a stream times the gains of its channels, which count by their mean square."""
        others = [a for a in (*args, *kwargs.values()) if a is not x.tensor]
        if name != "mul" or len(others) != 1 or x.features != x.tensor.dim() - 1:
            return None
        gain = others[0]
        if not isinstance(gain, Tensor) or gain.dim() != 1 or gain.numel() != x.channels:
            return None
        square = self._variance(gain)
        return None if square is None else self._after(x, result, kernels.Scale(square**0.5))

    def factor(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], tensor: Tensor
    ) -> float | None:
        """Return the number by which a tensor is multiplied; None if it is no number."""
        others = [a for a in (*args, *kwargs.values()) if a is not tensor]
        if len(others) != 1 or (name != "mul" and args[0] is not tensor):
            return None
        number = others[0]
        if isinstance(number, Tensor) and number.numel() == 1 and id(number) not in self.parameters:
            number = number.item()
        if not isinstance(number, int | float) or (name != "mul" and number == 0):
            return None
        return float(number) if name == "mul" else 1 / number

    def _branches(
        self, left: Value, right: Value
    ) -> tuple[Node, list[kernels.Layer], list[kernels.Layer]]:
        """Return the last node that both have passed, and the layers of each after it."""
        start, branches = common_start([left.node, right.node])
        return start, branches[0], branches[1]

    def _sum(
        self, operands: list[Value], kwargs: dict[str, object], result: Tensor
    ) -> Value | None:
        left, right = operands
        if not _same_layout(left, right) or kwargs.get("alpha", 1) != 1:
            return None
        start, first, second = self._branches(left, right)
        if not first or not second:
            branch = first or second
            layer: kernels.Layer = kernels.Residual(*branch) if branch else kernels.Scale(2.0)
        else:
            layer = kernels.Sum(kernels.Sequential(*first), kernels.Sequential(*second))
        return Value(result, start.then(layer), left.labels, left.channels, left.features)

    def _product(self, operands: list[Value], result: Tensor) -> Value | None:
        left, right = operands
        if not _same_layout(left, right):
            return None
        start, first, second = self._branches(left, right)
        layer = kernels.Product(kernels.Sequential(*first), kernels.Sequential(*second))
        return Value(result, start.then(layer), left.labels, left.channels, left.features)

    def _with_positions(
        self, args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
    ) -> Value | None:
        """Return a stream plus numbers that do not depend on the inputs."""
        others = [a for a in (*args, *kwargs.values()) if a is not x.tensor]
        if len(others) != 1 or not isinstance(others[0], Tensor) or result.shape != x.tensor.shape:
            return None
        added = self.constants.covariance(others[0], x, self._variance)
        if added is None:
            return None
        P, trained = added
        if not P.any():
            return self._after(x, result)
        if len(P) == 1:
            return None  # single points: no layer adds a bias without weights
        return self._after(x, result, kernels.AddPositions(P, trained))

    def _extended(
        self, args: Sequence[object], kwargs: dict[str, object], x: Value, result: object
    ) -> Sequence[Traced] | None:
        """Return a stream with a trained token before the others."""
        given = {**dict(zip(("tensors", "dim"), args, strict=False)), **kwargs}
        tensors = given.get("tensors")
        axis = given.get("dim", 0)
        assert isinstance(tensors, Sequence)
        assert isinstance(axis, int)
        if len(tensors) != 2 or tensors[1] is not x.tensor or not isinstance(result, Tensor):
            return None
        axis %= x.tensor.dim()
        if x.features is None or x.token_axes not in ([axis], []) or axis == x.features:
            return None
        rows = self.constants.rows(tensors[0], x.features, self._variance)
        if rows is None or rows.shape[0] != tensors[0].shape[axis]:
            return None
        node = x.node.then(kernels.FirstTokens(rows))
        return [self._natural(result, node, x.features)]

    def _pooled(
        self,
        name: str,
        args: Sequence[object],
        kwargs: dict[str, object],
        x: Value,
        result: Tensor,
    ) -> Value | None:
        assert x.features is not None
        space = [axis for axis in range(1, x.tensor.dim()) if axis != x.features]
        if name == "mean":
            axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
            chosen = {axis % x.tensor.dim() for axis in _numbers(axes)} if axes is not None else {}
            if not space or chosen != set(space):
                return None
            features = x.features if result.dim() == x.tensor.dim() else result.dim() - 1
            return self._natural(result, x.node.then(kernels.AveragePool()), features)
        if x.features != 1:
            return None
        if "adaptive" in name:
            if any(size != 1 for size in result.shape[2:]):
                return None
            return self._natural(result, x.node.then(kernels.AveragePool()), 1)
        options = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
        given = {**dict(zip(options, args, strict=False)), **kwargs}
        if given.get("ceil_mode") or given.get("divisor_override") is not None:
            return None
        window = _numbers(given["kernel_size"])
        stride = given.get("stride")
        layer = kernels.LocalAveragePool(
            window,
            _numbers(stride) if stride else window,
            _numbers(given.get("padding", 0)),
            bool(given.get("count_include_pad", True)),
        )
        return self._natural(result, x.node.then(layer), 1)


def _numbers_only(tensor: Tensor, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return whether all arguments but the tensor are numbers."""
    others = [a for a in (*args, *kwargs.values()) if a is not tensor]
    return all(isinstance(other, int | float) for other in others)


def _mean_square(
    args: Sequence[object], kwargs: dict[str, object], x: Value, result: Tensor
) -> Statistic | None:
    """Return the mean square over channels, if `x` is a square."""
    axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
    last = x.tensor.dim() - 1
    if x.origin is None or x.features != last or axes not in (-1, last, [-1], (-1,)):
        return None
    points = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
    squares = x.origin.function(points)
    if result.shape[-1] != 1 or not torch.equal(squares, points**2):
        return None
    return Statistic(result, Value(x.tensor, x.origin.node, x.labels, x.channels, last))


def _same_layout(left: Value, right: Value) -> bool:
    if left.labels is None or right.labels is None or left.features is None:
        return False
    same = left.tensor.shape == right.tensor.shape and left.features == right.features
    return same and bool((left.tokens == right.tokens).all())


def _norm_layers(name: str, eps: object, factor: float, x: Tensor) -> list[kernels.Layer]:
    number = torch.finfo(x.dtype).eps if eps is None else eps
    assert isinstance(number, float)
    norm = kernels.LayerNorm(number) if name == "layer_norm" else kernels.RMSNorm(number)
    return [norm] if factor == 1 else [norm, kernels.Scale(factor)]


def _numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    assert isinstance(value, Iterable)
    return tuple(int(number) for number in value)
