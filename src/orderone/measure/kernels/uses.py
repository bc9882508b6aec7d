"""Uses of parameters in a forward pass, and the Jacobian of the outputs that follows from each.

    linear         z_t = W a_t + b       dz/dW = sum_t delta_t a_t^T,   dz/db = sum_t delta_t
    convolution    the same, with the patches of the input as a_t
    lookup         z_t = W[i_t]          dz/dW = sum_t onehot(i_t) delta_t^T
    gain, shift    z   = g x + b         dz/dg = sum_t delta_t x_t,     dz/db = sum_t delta_t

delta_t is the derivative of an output with respect to z_t; t runs over tokens or positions of one
example. So a Jacobian is known from its factors, which are much smaller than itself: activations
that the forward pass has, and derivatives with respect to activations.

Functions of torch that use a parameter in one of these ways are in `READERS`. A parameter that any
other function uses has no factors here (`Survey.others`), and `jacobians` differentiates with
respect to the parameter itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.measure.kernels.factors import Factor, Indices, Jacobian
from orderone.torch_compat import tree_leaves, tree_map

Arguments: TypeAlias = Mapping[str, object]
# from what was read in the forward pass, (b, ...), and delta, (b, outputs, ...), to the Jacobian
Derivative: TypeAlias = Callable[[Tensor | None, Tensor], Jacobian]
Preparation: TypeAlias = Callable[[Tensor], Tensor]


class Use(NamedTuple):
    """One use of a parameter by a function that makes z."""

    parameter: Tensor
    read: Tensor | None  # the tensor that the Jacobian needs beside delta
    derivative: Derivative
    prepare: Preparation | None = None  # work on `read` that all outputs share


Reader: TypeAlias = Callable[[Arguments], list[Use] | None]


# --- products -------------------------------------------------------------------------------------


def _rows(x: Tensor, axes: int) -> Tensor:
    """Return (b, outputs, t, features) of a tensor with `axes` axes before those of an example."""
    lead = x.shape[:axes]
    return x.reshape(lead[0], lead[1] if axes == 2 else 1, -1, x.shape[-1])


def _weight_out_in(read: Tensor | None, delta: Tensor) -> Jacobian:
    """W (out, in), z = a W^T."""
    assert read is not None
    return Jacobian(Factor(_rows(delta, 2)), Factor(_rows(read, 1)))


def _weight_in_out(read: Tensor | None, delta: Tensor) -> Jacobian:
    """W (in, out), z = a W."""
    assert read is not None
    return Jacobian(Factor(_rows(read, 1)), Factor(_rows(delta, 2)))


def _weight_left(read: Tensor | None, delta: Tensor) -> Jacobian:
    """W (out, in), z = W a: rows of a and z are the features."""
    assert read is not None
    return _weight_out_in(read.mT, delta.mT)


def _shift(shape: torch.Size, sign: int = 1) -> Derivative:
    def derivative(read: Tensor | None, delta: Tensor) -> Jacobian:
        return Jacobian.explicit(sign * summed_to(delta, shape), shape)

    return derivative


def _gain(shape: torch.Size) -> Derivative:
    def derivative(read: Tensor | None, delta: Tensor) -> Jacobian:
        assert read is not None
        missing = delta.dim() - 1 - read.dim()  # axes along which the other factor is repeated
        read = read.reshape(read.shape[0], 1, *(1 for _ in range(missing)), *read.shape[1:])
        return Jacobian.explicit(_summed_product(delta, read, shape), shape)

    return derivative


def summed_to(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum values, (b, outputs, ...), over the axes along which a tensor of `shape` is repeated."""
    axes = values.dim() - 2
    padded = (1,) * (axes - len(shape)) + tuple(shape)
    repeated = [axis + 2 for axis in range(axes) if padded[axis] == 1]
    if repeated:
        values = values.sum(repeated, keepdim=True)
    return values.reshape(*values.shape[:2], *shape)


def _summed_product(delta: Tensor, read: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `summed_to(delta * read, shape)`, without the product where axes agree."""
    axes = delta.dim() - 2
    padded = (1,) * (axes - len(shape)) + tuple(shape)
    if delta.shape[2:] != read.shape[2:] or len(padded) > axes:
        return summed_to(delta * read, shape)
    letters = "cdefghijklm"[:axes]
    kept = "".join(c for c, size in zip(letters, padded, strict=True) if size != 1)
    summed = torch.einsum(f"bo{letters},bo{letters}->bo{kept}", delta, read.expand_as(delta))
    return summed.reshape(*summed.shape[:2], *shape)


def _linear(arguments: Arguments) -> list[Use] | None:
    weight = arguments["weight"]
    inputs = arguments["input"]
    bias = arguments.get("bias")
    if not isinstance(inputs, Tensor) or not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    uses = [Use(weight, inputs, _weight_out_in)]
    if isinstance(bias, Tensor):
        uses.append(Use(bias, None, _shift(bias.shape)))
    return uses


def _matmul(arguments: Arguments) -> list[Use] | None:
    left = arguments["self"]
    right = arguments["other"]
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return None
    uses = []
    if right.dim() == 2:
        uses.append(Use(right, left, _weight_in_out))
    if left.dim() == 2 and right.dim() >= 2:
        uses.append(Use(left, right, _weight_left))
    return uses


def _addmm(arguments: Arguments) -> list[Use] | None:
    if arguments.get("beta", 1) != 1 or arguments.get("alpha", 1) != 1:
        return None
    uses = _matmul({"self": arguments["mat1"], "other": arguments["mat2"]})
    bias = arguments["self"]
    if uses is None or not isinstance(bias, Tensor):
        return None
    return [*uses, Use(bias, None, _shift(bias.shape))]


# --- convolutions ---------------------------------------------------------------------------------


class _Window(NamedTuple):
    """Numbers of a convolution, one per axis of space."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]


def _patches(x: Tensor, window: _Window) -> Tensor:
    """Return the patches that each position sees, (b, positions, channels, *kernel)."""
    pads = [amount for pair in reversed(window.padding) for amount in pair]
    x = functional.pad(x, pads)
    axes = len(window.kernel)
    for axis in range(axes):
        step = window.dilation[axis]
        length = (window.kernel[axis] - 1) * step + 1
        x = x.unfold(2 + axis, length, window.stride[axis])[..., ::step]
    places = range(2, 2 + axes)
    kernel = range(2 + axes, 2 + 2 * axes)
    x = x.permute(0, *places, 1, *kernel)
    return x.flatten(1, axes)


def _convolution(arguments: Arguments) -> list[Use] | None:
    inputs = arguments["input"]
    weight = arguments["weight"]
    bias = arguments.get("bias")
    groups = arguments.get("groups", 1)
    if not isinstance(inputs, Tensor) or not isinstance(weight, Tensor):
        return None
    axes = weight.dim() - 2
    kernel = tuple(weight.shape[2:])
    stride = _each(arguments.get("stride", 1), axes)
    dilation = _each(arguments.get("dilation", 1), axes)
    padding = _padding(arguments.get("padding", 0), kernel, dilation)
    window = _Window(kernel, stride, padding, dilation)
    assert isinstance(groups, int)

    def prepare(read: Tensor) -> Tensor:
        read = read.reshape(-1, *read.shape[-axes - 1 :])  # without the axis of a batch of one
        return _patches(read, window).contiguous()  # (b, t, channels, *kernel)

    def derivative(read: Tensor | None, delta: Tensor) -> Jacobian:
        assert read is not None
        delta = delta.reshape(*delta.shape[:2], -1, *delta.shape[-axes - 1 :])[:, :, 0]
        delta = delta.flatten(3).mT  # (b, outputs, t, channels)
        if groups == 1:
            return Jacobian(Factor(delta), Factor(read.flatten(2).unsqueeze(1)))
        rows = delta.unflatten(3, (groups, -1))
        columns = read.unflatten(2, (groups, -1)).flatten(3)
        values = torch.einsum("botgm,btgn->bogmn", rows, columns)
        return Jacobian.explicit(values.flatten(2), weight.shape)

    def bias_derivative(read: Tensor | None, delta: Tensor) -> Jacobian:
        assert isinstance(bias, Tensor)
        summed = summed_to(delta, (*bias.shape, *(1 for _ in range(axes))))
        return Jacobian.explicit(summed.flatten(2), bias.shape)

    uses = [Use(weight, inputs, derivative, prepare)]
    if isinstance(bias, Tensor):
        uses.append(Use(bias, None, bias_derivative))
    return uses


def _each(value: object, axes: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * axes
    assert isinstance(value, Iterable)
    values = tuple(value)
    return values * axes if len(values) == 1 else values


def _padding(
    value: object, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if value == "valid":
        return ((0, 0),) * len(kernel)
    if value == "same":
        totals = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((amount, amount) for amount in _each(value, len(kernel)))


# --- lookups, gains and shifts --------------------------------------------------------------------


def _embedding(arguments: Arguments) -> list[Use] | None:
    weight = arguments["weight"]
    inputs = arguments["input"]
    padding = arguments.get("padding_idx")
    if not isinstance(weight, Tensor) or not isinstance(inputs, Tensor):
        return None
    if arguments.get("max_norm") is not None:
        return None
    rows = weight.shape[0]

    def derivative(read: Tensor | None, delta: Tensor) -> Jacobian:
        assert read is not None
        indices = read.reshape(read.shape[0], 1, -1)
        delta = _rows(delta, 2)
        if isinstance(padding, int):  # this row is not trained
            known = indices != padding % rows
            delta = delta * known.unsqueeze(-1)
        return Jacobian(Indices(indices, rows), Factor(delta))

    return [Use(weight, inputs, derivative)]


def _norm(function: Callable[..., Tensor], channels: bool) -> Reader:
    """Return the reader of a normalization; `channels`: gains belong to axis 1 of the input."""

    def reader(arguments: Arguments) -> list[Use] | None:
        inputs = arguments["input"]
        assert isinstance(inputs, Tensor)
        if arguments.get("training"):
            return None
        weight = arguments.get("weight")
        bias = arguments.get("bias")
        axes_after = inputs.dim() - 2 if channels else 0
        uses = []
        if isinstance(weight, Tensor):
            plain = {k: v for k, v in arguments.items() if k not in ("weight", "bias")}
            shape = torch.Size((*weight.shape, *(1 for _ in range(axes_after))))
            uses.append(Use(weight, function(**plain).detach(), _flat(_gain(shape), weight.shape)))
        if isinstance(bias, Tensor):
            shape = torch.Size((*bias.shape, *(1 for _ in range(axes_after))))
            uses.append(Use(bias, None, _flat(_shift(shape), bias.shape)))
        return uses

    return reader


def _flat(derivative: Derivative, shape: torch.Size) -> Derivative:
    def reshaped(read: Tensor | None, delta: Tensor) -> Jacobian:
        jacobian = derivative(read, delta)
        return Jacobian.explicit(jacobian.values(), shape)

    return reshaped


def _product(arguments: Arguments) -> list[Use] | None:
    left = arguments["self"]
    right = arguments["other"]
    uses = []
    for parameter, other in ((left, right), (right, left)):
        if not isinstance(parameter, Tensor):
            continue
        if isinstance(other, bool | int | float):
            other = torch.full((), float(other), dtype=parameter.dtype, device=parameter.device)
        if not isinstance(other, Tensor):
            return None
        uses.append(Use(parameter, other, _gain(parameter.shape)))
    return uses


def _sum(second: int) -> Reader:
    """Return the reader of self + second * other."""

    def reader(arguments: Arguments) -> list[Use] | None:
        if arguments.get("alpha", 1) != 1:
            return None
        uses = []
        for name, sign in (("self", 1), ("other", second)):
            parameter = arguments[name]
            if isinstance(parameter, Tensor):
                uses.append(Use(parameter, None, _shift(parameter.shape, sign)))
        return uses

    return reader


# --- table of functions ---------------------------------------------------------------------------

_PAIR = ("self", "other")
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
READERS: dict[Callable[..., object], tuple[tuple[str, ...], Reader]] = {
    functional.linear: (("input", "weight", "bias"), _linear),
    torch.matmul: (_PAIR, _matmul),
    torch.Tensor.matmul: (_PAIR, _matmul),
    torch.mm: (_PAIR, _matmul),
    torch.Tensor.mm: (_PAIR, _matmul),
    torch.addmm: (("self", "mat1", "mat2"), _addmm),
    torch.Tensor.addmm: (("self", "mat1", "mat2"), _addmm),
    torch.conv1d: (_CONVOLUTION, _convolution),
    torch.conv2d: (_CONVOLUTION, _convolution),
    torch.conv3d: (_CONVOLUTION, _convolution),
    functional.embedding: (
        ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
        _embedding,
    ),
    functional.layer_norm: (
        ("input", "normalized_shape", "weight", "bias", "eps"),
        _norm(functional.layer_norm, channels=False),
    ),
    functional.rms_norm: (
        ("input", "normalized_shape", "weight", "eps"),
        _norm(functional.rms_norm, channels=False),
    ),
    functional.group_norm: (
        ("input", "num_groups", "weight", "bias", "eps"),
        _norm(functional.group_norm, channels=True),
    ),
    functional.batch_norm: (
        (
            *("input", "running_mean", "running_var", "weight", "bias"),
            *("training", "momentum", "eps"),
        ),
        _norm(functional.batch_norm, channels=True),
    ),
    torch.mul: (_PAIR, _product),
    torch.Tensor.mul: (_PAIR, _product),
    torch.add: (_PAIR, _sum(1)),
    torch.Tensor.add: (_PAIR, _sum(1)),
    torch.sub: (_PAIR, _sum(-1)),
    torch.Tensor.sub: (_PAIR, _sum(-1)),
}


def uses_of(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    parameters: Mapping[int, str],
) -> list[Use] | None:
    """Return the uses of parameters in a call; None if one of them has no reader here."""
    found = READERS.get(function)
    if found is None or "out" in kwargs:
        return None
    names, reader = found
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    if "mat2" in arguments and "self" not in arguments:  # torch.addmm(input=...)
        return None
    if function in (torch.mm, torch.Tensor.mm) and "mat2" in arguments:
        return None
    uses = reader(arguments)
    if uses is None:
        return None
    uses = [use for use in uses if id(use.parameter) in parameters]
    present = {id(x) for x in tree_leaves((args, dict(kwargs))) if id(x) in parameters}
    if {id(use.parameter) for use in uses} != present or len(uses) != len(present):
        return None  # one of them is used in another way, or twice
    return uses


class Call(NamedTuple):
    """A use without its tensors."""

    name: str
    derivative: Derivative
    prepare: Preparation | None


# --- modes ----------------------------------------------------------------------------------------


class Survey(TorchFunctionMode):
    """Mode that finds the parameters without factors: some function uses them in another way."""

    def __init__(self, parameters: Mapping[int, str]):
        super().__init__()
        self.parameters = parameters  # names by the id of the tensor
        self.others: set[str] = set()
        self.used: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        names = {self.parameters.get(id(x)) for x in tree_leaves((args, dict(kwargs)))} - {None}
        if names and any(isinstance(x, Tensor) for x in tree_leaves(result)):
            known = {str(name) for name in names}
            self.used |= known
            if uses_of(func, args, kwargs, self.parameters) is None:
                self.others |= known
        return result


class Taps(TorchFunctionMode):
    """Mode that makes the derivatives with respect to z available.

    Every z that a parameter makes becomes z + tap; `tap(z)` returns a tensor of zeros. The
    parameter itself is a constant, so that a backward pass spends no time on it.
    """

    def __init__(self, parameters: Mapping[int, str], tap: Callable[[Tensor], Tensor]):
        super().__init__()
        self.parameters = parameters
        self.tap = tap
        self.reads: list[Tensor | None] = []
        self.calls: list[list[Call]] = []  # one per tap, in order

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        if not any(id(x) in self.parameters for x in leaves):
            return func(*args, **kwargs)
        uses = uses_of(func, args, kwargs, self.parameters)
        if uses is None:
            result = func(*args, **kwargs)
            if any(isinstance(x, Tensor) for x in tree_leaves(result)):
                raise UnexpectedUseError(
                    {self.parameters[id(x)] for x in leaves if id(x) in self.parameters}
                )
            return result
        constants = tree_map(self._constant, args)
        z = func(*constants, **{name: self._constant(x) for name, x in kwargs.items()})
        assert isinstance(z, Tensor)
        call: list[Call] = []
        for use in uses:
            name = self.parameters[id(use.parameter)]
            call.append(Call(name, use.derivative, use.prepare))
            self.reads.append(None if use.read is None else use.read.detach())
        self.calls.append(call)
        return z + self.tap(z)

    def _constant(self, x: object) -> object:
        if isinstance(x, nn.Parameter) and id(x) in self.parameters:
            return x.detach()
        return x


class UnexpectedUseError(Exception):
    """A parameter is used in a way that an earlier pass did not show."""

    def __init__(self, names: set[str]):
        super().__init__(names)
        self.names = names
