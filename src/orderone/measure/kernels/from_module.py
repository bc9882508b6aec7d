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
    mean over space, pools   AveragePool, LocalAveragePool; flatten: Flatten

Weights count by their variance only. A function without an entry has no limit here, and the error
names it, and the module that called it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from orderone.core.errors import InputError, instance
from orderone.core.inputs import UserInput
from orderone.measure.kernels.examples import Examples, Inputs, read_examples, read_output
from orderone.observe.inventory import unwrap
from orderone.observe.trace import undisturbed
from orderone.theory import kernels
from orderone.torch_compat import tree_leaves

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
UNCHANGED = {"contiguous", "clone", "to", "float", "double", "identity", "alias", "detach"}
RESHAPES = {"flatten", "reshape", "view", "squeeze", "unsqueeze", "view_as", "unflatten"}
PERMUTATIONS = {"transpose", "permute", "movedim", "swapaxes", "moveaxis", "t"}


@dataclass(frozen=True, eq=False)
class Node:
    """A layer and what precedes it; the inputs have neither."""

    before: "Node | None" = None
    layer: kernels.Layer | None = None

    def then(self, layer: kernels.Layer) -> "Node":
        return Node(self, layer)

    def path(self) -> "list[Node]":
        """Return the nodes from the inputs to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.before
        return nodes[::-1]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that depends on the inputs: its node, and the axis of its neurons."""

    tensor: Tensor
    node: Node
    features: int | None  # None for indices into a table


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
    mode = _Layers(names, training)
    root = Node()
    if first.is_floating_point():
        # (1, features), (1, tokens, features), or an image with channels first
        channels_first = first.dim() > 3 or (first.dim() == 3 and _convolves_first(model))
        mode.keep(first, root, 1 if channels_first else first.dim() - 1)
    else:
        channels_first = False
        mode.keep(first, root, None)
    args, kwargs = examples.call(rows)
    with _paths(model, mode), mode:
        output = model(*args, **kwargs)
    value = mode.values.get(id(read_output(output, None)))
    if value is None:
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
def _paths(model: nn.Module, mode: "_Layers") -> Iterator[None]:
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


class _Layers(TorchFunctionMode):
    """Mode that gives each tensor the layers that made it from the inputs."""

    def __init__(self, parameters: Mapping[int, str], training: bool):
        super().__init__()
        self.parameters = parameters
        self.training = training
        self.values: dict[int, Value] = {}
        self.running: list[str] = []
        self.used: set[int] = set()
        self.table: int | None = None

    def keep(self, tensor: Tensor, node: Node, features: int | None) -> None:
        self.values[id(tensor)] = Value(tensor, node, features)

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
        if not operands or not isinstance(result, Tensor):
            made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
            if operands and made:
                raise self._no_limit(func)
            return result
        name = getattr(func, "__name__", str(func)).strip("_")
        if name.startswith("i") and name[1:] in ("add", "mul", "sub"):  # in place
            name = name[1:]
        if name.startswith("r") and name[1:] in ("add", "mul"):
            name = name[1:]
        if name == "get":  # an attribute
            if result.shape == operands[0].tensor.shape:
                self.keep(result, operands[0].node, operands[0].features)
                return result
            raise self._no_limit(func)
        value = self._value(name, func, args, kwargs, operands, result)
        if value is None:
            raise self._no_limit(func)
        self.keep(result, *value)
        return result

    def _no_limit(self, func: Callable[..., object]) -> InputError:
        name = getattr(func, "__name__", str(func)).strip("_")
        where = self.running[-1] if self.running else ""
        return InputError(
            f"model: {name} in the module {where or 'model'!r} has no limit of infinite width here;"
            " kernel_from_module knows linear layers, convolutions, tables, activations, norms,"
            " dropout, pools, and sums",
            "no-infinite-width",
            argument="model",
        )

    def _value(
        self,
        name: str,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        operands: list[Value],
        result: Tensor,
    ) -> tuple[Node, int | None] | None:
        """Return node and axis of neurons of a result; None if it has no limit."""
        x = operands[0]
        if name in ("add", "sub") and len(operands) == 2:
            return self._sum(operands, kwargs)
        if len(operands) != 1:
            return None
        if name == "embedding":
            return self._embedding(args, kwargs, x)
        if x.features is None:
            keeps = name in UNCHANGED and not result.is_floating_point()
            return (x.node, None) if keeps else None
        if name in ("linear", "addmm", "matmul", "mm"):
            return self._dense(name, args, kwargs, x, result)
        if name in ("conv1d", "conv2d", "conv3d"):
            return self._convolution(args, kwargs, x)
        if name in ELEMENTWISE:
            return self._activation(name, func, args, kwargs, x)
        if name in ("layer_norm", "rms_norm", "batch_norm"):
            return self._norm(name, args, kwargs, x)
        if name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
            return self._dropout(name, args, kwargs, x)
        if name in ("mul", "div", "truediv"):
            return self._scaled(name, args, kwargs, x)
        if name in ("mean", "avg_pool1d", "avg_pool2d", "avg_pool3d") or "adaptive_avg" in name:
            return self._pooled(name, args, kwargs, x, result)
        if name in UNCHANGED:
            return x.node, x.features
        if name in RESHAPES:
            return self._reshaped(x, result)
        if name in PERMUTATIONS:
            return self._permuted(x, func, args, kwargs)
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

    def _weighted(self, weight: object, bias: object, fan_in: int) -> tuple[float, float] | None:
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
    ) -> tuple[Node, int | None] | None:
        names = {
            "linear": ("input", "weight", "bias"),
            "addmm": ("bias", "input", "weight"),
        }.get(name, ("input", "weight"))
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        last = x.tensor.dim() - 1
        if given.get("input") is not x.tensor or x.features != last or result.dim() != last + 1:
            return None
        found = self._weighted(given.get("weight"), given.get("bias"), x.tensor.shape[-1])
        if found is None:
            return None
        return x.node.then(kernels.Dense(*found)), last

    def _embedding(
        self, args: Sequence[object], kwargs: dict[str, object], x: Value
    ) -> tuple[Node, int | None] | None:
        given = {**dict(zip(("input", "weight"), args, strict=False)), **kwargs}
        weight = given.get("weight")
        if x.features is not None or not isinstance(weight, Tensor) or self.table is not None:
            return None
        square = self._variance(weight)
        if square is None:
            return None
        self.table = weight.shape[0]
        return x.node.then(kernels.Dense(self.table * square)), x.tensor.dim()

    def _convolution(
        self, args: Sequence[object], kwargs: dict[str, object], x: Value
    ) -> tuple[Node, int | None] | None:
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
        found = self._weighted(weight, given.get("bias"), weight[0].numel())
        if found is None:
            return None
        layer = kernels.Conv(
            window,
            *found,
            stride=_numbers(given.get("stride", 1)),
            padding=_numbers(padding),
            dilation=dilation,
        )
        return x.node.then(layer), 1

    def _activation(
        self,
        name: str,
        func: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
        x: Value,
    ) -> tuple[Node, int | None] | None:
        options = {key: option for key, option in kwargs.items() if key != "inplace"}
        plain = not options and len(args) == 1
        if name in NAMED and (plain or set(kwargs) <= {"inplace"}):
            return x.node.then(kernels.Activation(name)), x.features
        if name == "gelu" and options.get("approximate", "none") == "none":
            return x.node.then(kernels.Activation("gelu")), x.features
        if name == "leaky_relu":
            slope = kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            return x.node.then(kernels.Activation(f"leaky-relu({slope})")), x.features
        rest = args[1:]
        safe = getattr(torch.nn.functional, name, None) or getattr(torch, name)

        def phi(values: np.ndarray) -> np.ndarray:
            found = safe(torch.as_tensor(np.asarray(values, dtype=float)), *rest, **options)
            return found.numpy()

        return x.node.then(kernels.Activation(phi)), x.features

    def _norm(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value
    ) -> tuple[Node, int | None] | None:
        names = {
            "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
            "rms_norm": ("input", "normalized_shape", "weight", "eps"),
            "batch_norm": (
                *("input", "running_mean", "running_var", "weight", "bias", "training"),
                *("momentum", "eps"),
            ),
        }[name]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        gain = self._variance(given.get("weight"))
        shift = self._variance(given.get("bias"))
        if gain is None or shift is None or shift != 0:
            return None
        factor = 1.0 if given.get("weight") is None else gain**0.5
        eps = given.get("eps")
        node = x.node
        if name == "batch_norm":
            mean = given.get("running_mean")
            variance = given.get("running_var")
            if x.features != 1 or not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
                return None
            if bool((mean != 0).any()) or bool((variance != 1).any()):
                return None  # statistics of training
            assert isinstance(eps, float)
            return node.then(kernels.Scale(factor / (1 + eps) ** 0.5)), 1
        shape = given.get("normalized_shape")
        last = x.tensor.dim() - 1
        if x.features != last or not isinstance(shape, Sequence) or len(shape) != 1:
            return None
        if eps is None:
            eps = torch.finfo(x.tensor.dtype).eps
        assert isinstance(eps, float)
        node = node.then(kernels.LayerNorm(eps) if name == "layer_norm" else kernels.RMSNorm(eps))
        if factor != 1:
            node = node.then(kernels.Scale(factor))
        return node, last

    def _dropout(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value
    ) -> tuple[Node, int | None] | None:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        assert isinstance(p, int | float)
        if not self.training or p == 0:
            return x.node, x.features
        if name != "dropout" and x.tensor.dim() > 2:
            return None  # whole channels: pixels share a mask
        return x.node.then(kernels.Dropout(1 - p)), x.features

    def _scaled(
        self, name: str, args: Sequence[object], kwargs: dict[str, object], x: Value
    ) -> tuple[Node, int | None] | None:
        others = [a for a in (*args, *kwargs.values()) if a is not x.tensor]
        if len(others) != 1 or (name != "mul" and args[0] is not x.tensor):
            return None
        number = others[0]
        if isinstance(number, Tensor) and number.numel() == 1 and id(number) not in self.parameters:
            number = number.item()
        if not isinstance(number, int | float):
            return None
        factor = float(number) if name == "mul" else 1 / number
        return x.node.then(kernels.Scale(factor)), x.features

    def _sum(
        self, operands: list[Value], kwargs: dict[str, object]
    ) -> tuple[Node, int | None] | None:
        left, right = operands
        same = left.tensor.shape == right.tensor.shape and left.features == right.features
        if not same or kwargs.get("alpha", 1) != 1 or left.features is None:
            return None
        mine = left.node.path()
        theirs = right.node.path()
        common = 0
        while common < min(len(mine), len(theirs)) and mine[common] is theirs[common]:
            common += 1
        branches: list[list[kernels.Layer]] = []
        for path in (mine, theirs):
            branches.append([node.layer for node in path[common:] if node.layer is not None])
        start = mine[common - 1]
        if not branches[0] or not branches[1]:
            branch = branches[0] or branches[1]
            if not branch:
                return start.then(kernels.Scale(2.0)), left.features
            layer: kernels.Layer = kernels.Residual(*branch)
        else:
            layer = kernels.Sum(*(kernels.Sequential(*branch) for branch in branches))
        return start.then(layer), left.features

    def _pooled(
        self,
        name: str,
        args: Sequence[object],
        kwargs: dict[str, object],
        x: Value,
        result: Tensor,
    ) -> tuple[Node, int | None] | None:
        space = [axis for axis in range(1, x.tensor.dim()) if axis != x.features]
        if name == "mean":
            axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
            chosen = {axis % x.tensor.dim() for axis in _numbers(axes)} if axes is not None else {}
            if not space or chosen != set(space):
                return None
            features = x.features if result.dim() == x.tensor.dim() else 1
            return x.node.then(kernels.AveragePool()), features
        if x.features != 1:
            return None
        if "adaptive" in name:
            if any(size != 1 for size in result.shape[2:]):
                return None
            return x.node.then(kernels.AveragePool()), 1
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
        return x.node.then(layer), 1

    def _reshaped(self, x: Value, result: Tensor) -> tuple[Node, int | None] | None:
        """Return the value of a tensor in another shape: flattened, or with axes of size 1."""
        assert x.features is not None
        old = tuple(x.tensor.shape)
        new = tuple(result.shape)
        neurons = old[x.features]
        pixels = x.tensor.numel() // neurons
        if [size for size in old[1:] if size > 1] == [size for size in new[1:] if size > 1]:
            places = [axis for axis, size in enumerate(new) if size == neurons and axis > 0]
            if len(places) != 1:
                places = [axis for axis in places if axis in (x.features, len(new) - 1)][:1]
            if not places:
                return None
            joins = (kernels.AveragePool, kernels.Flatten)
            if len(old) > 2 == len(new) and not any(
                isinstance(node.layer, joins) for node in x.node.path()
            ):
                return x.node.then(kernels.Flatten()), 1  # an image of one pixel
            return x.node, places[0]
        if new == (1, neurons * pixels):
            return x.node.then(kernels.Flatten()), 1
        if x.features == 1 and new == (1, neurons, pixels):
            return x.node.then(kernels.Positions()), 1
        return None

    def _permuted(
        self,
        x: Value,
        func: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
    ) -> tuple[Node, int | None] | None:
        """Return the value of a tensor with its axes in another order; pixels keep theirs."""
        labels = torch.empty(tuple(range(2, 2 + x.tensor.dim())), device="meta")
        moved = func(*(labels if a is x.tensor else a for a in args), **kwargs)
        assert isinstance(moved, Tensor)
        order = [size - 2 for size in moved.shape]
        space = [axis for axis in order if axis not in (0, x.features)]
        if space != sorted(space) or order[0] != 0 or x.features not in order:
            return None
        return x.node, order.index(x.features)


def _numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    assert isinstance(value, Iterable)
    return tuple(int(number) for number in value)
