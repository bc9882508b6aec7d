"""Tensors of a traced forward pass, with the neuron and token of each of their entries.

Every tensor that depends on the inputs has labels of its shape: token * channels + channel. A
function that only moves entries, such as `view`, `transpose`, `split` or an index, moves the labels
in the same way. So the layout after any number of such functions is read from the labels:

    stream   all tokens in order, and all channels along one axis
    flat     all entries along one axis
    token    the channels of one token
    piece    anything else: heads of queries and keys, slices of a packed projection
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.measure.kernels.neurons import (
    INPUTS,
    OTHERS,
    WITH_WEIGHTS,
    Neurons,
    neurons_after,
)
from orderone.measure.kernels.random_weights import check_rows
from orderone.theory import kernels

# Functions that return the entries of their argument
UNCHANGED = {
    *("contiguous", "clone", "to", "float", "double", "identity", "alias", "detach", "type_as"),
    *("type", "requires_grad", "cpu", "cuda", "data", "half", "bfloat16"),
}


@dataclass(frozen=True)
class Use:
    """Rows of a matrix of weights that a layer has; None for all of them."""

    name: str
    rows: frozenset[int] | None = None

    def overlaps(self, other: "Use") -> bool:
        """Return whether both layers have some of the same weights."""
        if self.name != other.name:
            return False
        return self.rows is None or other.rows is None or bool(self.rows & other.rows)


class Narrow(NamedTuple):
    """Weights or biases of which a neuron is a sum, its excess kurtosis, and its variance."""

    name: str
    excess: float
    variance: float


def narrower(first: Narrow | None, second: Narrow | None) -> Narrow | None:
    """Return the one of which neurons are less Gaussian."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda narrow: abs(narrow.excess))


@dataclass(frozen=True, eq=False)
class Node:
    """A layer and what precedes it; the inputs have neither."""

    before: "Node | None" = None
    layer: kernels.Layer | None = None
    uses: frozenset[Use] = frozenset()  # weights of this layer, and of its branches
    narrow: Narrow | None = None  # why neurons are not quite Gaussian
    neurons: Neurons = INPUTS  # Gaussian ones may still be `narrow`

    def then(
        self, layer: kernels.Layer, uses: Iterable[Use] = (), narrow: Narrow | None = None
    ) -> "Node":
        if narrow is None and not isinstance(layer, WITH_WEIGHTS + OTHERS):
            narrow = self.narrow
        neurons = neurons_after([layer], self.neurons)
        return Node(self, layer, frozenset(uses), narrow, neurons)

    def path(self) -> "list[Node]":
        """Return the nodes from the inputs to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.before
        return nodes[::-1]


@dataclass(frozen=True, eq=False)
class Projection:
    """Weights that made a tensor, one row of (outputs, inputs) for each of its channels."""

    source: Node
    weight: Tensor
    bias: Tensor | None
    name: str

    def layer(self, channels: Tensor) -> kernels.Dense:
        """Return the Dense layer of some channels."""
        check_rows(self.weight[channels], self.name)
        rows = self.weight[channels].detach().double()
        bias = 0.0
        if self.bias is not None:
            bias = float(self.bias[channels].detach().double().square().mean())
        return kernels.Dense(self.weight.shape[1] * float(rows.square().mean()), bias)


@dataclass(frozen=True, eq=False)
class Origin:
    """A node, and the function of its neurons that a tensor shows, as (0.5 x) (1 + tanh(x))."""

    node: Node
    function: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Statistic:
    """Mean square of the channels of a stream plus eps, its root, or the inverse of its root."""

    tensor: Tensor
    of: "Value"
    eps: float = 0.0
    form: str = "square"  # "square", "root" or "inverse"


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that depends on the inputs."""

    tensor: Tensor
    node: Node
    labels: Tensor | None  # None for indices into a table
    channels: int = 0
    features: int | None = None  # axis of the channels of a stream
    projection: Projection | None = None
    origin: Origin | None = None
    count: int | None = None  # tokens of the node, of which a piece may show some; None: all

    @property
    def all_tokens(self) -> int:
        """Return the number of tokens of the node."""
        assert self.labels is not None
        return self.count or int(self.labels.max()) // self.channels + 1

    @property
    def source(self) -> Origin:
        """Return the node whose neurons this is a function of, and the function."""
        return self.origin or Origin(self.node, lambda x: x)

    @property
    def token_axes(self) -> list[int]:
        """Return the axes of a stream along which tokens differ, or would."""
        assert self.labels is not None
        axes, _ = varying(self.labels, self.channels)
        return axes

    @property
    def tokens(self) -> Tensor:
        """Return the token of each entry of a stream, without the axis of channels."""
        assert self.labels is not None
        assert self.features is not None
        return (self.labels // self.channels).select(self.features, 0)


def natural_labels(tensor: Tensor, features: int) -> Tensor:
    """Return labels of a stream whose first axis is that of examples, with tokens in order."""
    shape = [size for axis, size in enumerate(tensor.shape) if axis not in (0, features)]
    count = 1
    for size in shape:
        count *= size
    tokens = torch.arange(count, device=tensor.device).reshape(1, *shape)
    return with_channels(tokens, features, tensor.shape[features])


def with_channels(tokens: Tensor, features: int, channels: int) -> Tensor:
    """Return labels from the tokens, with an axis of channels added at `features`."""
    shape = [1] * (tokens.dim() + 1)
    shape[features] = channels
    neurons = torch.arange(channels, device=tokens.device).reshape(shape)
    return tokens.unsqueeze(features) * channels + neurons


def natural(tensor: Tensor, node: Node, features: int) -> Value:
    """Return a stream whose first axis is that of examples, with tokens in order."""
    return Value(tensor, node, natural_labels(tensor, features), tensor.shape[features], features)


def after(x: Value, tensor: Tensor, *layers: kernels.Layer) -> Value | None:
    """Return a stream in the layout of `x`, after layers that keep it."""
    if tensor.shape != x.tensor.shape:
        return None
    if not layers:
        return replace(x, tensor=tensor)
    node = x.node
    for layer in layers:
        node = node.then(layer)
    return Value(tensor, node, x.labels, x.channels, x.features)


def own_labels(x: Value) -> tuple[Tensor, int]:
    """Return the labels of a piece with its channels numbered anew, and their number."""
    assert x.labels is not None
    _, channels = (x.labels % x.channels).unique(return_inverse=True)
    size = int(channels.max()) + 1
    return x.labels // x.channels * size + channels, size


def same_neurons(left: Value, right: Value) -> bool:
    """Return whether two tensors have the same neurons of the same tokens at the same places."""
    if left.labels is None or right.labels is None:
        return False
    return torch.equal(left.labels, right.labels)


def same_layout(left: Value, right: Value) -> bool:
    """Return whether two streams have the same tokens at the same places."""
    if left.labels is None or right.labels is None or left.features is None:
        return False
    same = left.tensor.shape == right.tensor.shape and left.features == right.features
    return same and bool((left.tokens == right.tokens).all())


def varying(labels: Tensor, channels: int) -> tuple[list[int], list[int]]:
    """Return the axes along which tokens differ, and those along which channels differ."""
    tokens = labels // channels
    neurons = labels % channels
    token_axes = []
    channel_axes = []
    for axis in range(labels.dim()):
        if labels.shape[axis] < 2:
            continue
        if bool((tokens != tokens.narrow(axis, 0, 1)).any()):
            token_axes.append(axis)
        if bool((neurons != neurons.narrow(axis, 0, 1)).any()):
            channel_axes.append(axis)
    return token_axes, channel_axes


def moved(x: Value, tensor: Tensor, labels: Tensor) -> Value | None:
    """Return the value of a tensor whose entries are entries of `x`; None if it has no layout."""
    assert x.labels is not None
    channels = x.channels
    count = x.all_tokens
    token_axes, channel_axes = varying(labels, channels)
    tokens = labels // channels
    both = set(token_axes) & set(channel_axes)
    everything = labels.numel() == count * channels and len(labels.unique()) == labels.numel()
    if labels.dim() <= 2 and everything and count * channels > 1:
        one_pixel = count == 1 and x.tensor.dim() > 2 and not _joined(x.node)
        if both or one_pixel or (channels == 1 and count > 1 and x.features is not None):
            last = labels.dim() - 1
            node = x.node.then(kernels.Flatten())
            size = labels.shape[last]
            flat = torch.arange(size, device=labels.device).reshape(labels.shape)
            return Value(tensor, node, flat, size, last)
    piece = Value(tensor, x.node, labels, channels, None, x.projection, count=count)
    if both:
        return piece
    features = _features(x, labels, channel_axes)
    if features is None:
        return piece
    order = tokens.select(features, 0).reshape(-1)
    if len(order) == count and bool((order == torch.arange(count, device=order.device)).all()):
        node = x.node
        if x.features is not None and len(x.token_axes) > 1 and len(token_axes) == 1:
            node = node.then(kernels.Positions())
        return _stream(tensor, x, node, labels, features)
    if len(order) == 1 and count > 1 and labels.dim() <= 2 and labels.shape[features] == channels:
        node = x.node.then(kernels.Token(int(order[0])))
        return Value(tensor, node, labels % channels, channels, features)
    return piece


def _stream(tensor: Tensor, x: Value, node: Node, labels: Tensor, features: int) -> Value | None:
    """Return a stream, of all channels or of a slice of a projection."""
    neurons = (labels % x.channels).movedim(features, 0).reshape(labels.shape[features], -1)[:, 0]
    if len(neurons) == x.channels and len(neurons.unique()) == x.channels:
        whole = x.projection
        if whole is not None and bool((neurons.diff() != 1).any()):
            whole = None
        return Value(tensor, node, labels, x.channels, features, whole)
    return Value(tensor, node, labels, x.channels, None, x.projection)


def _features(x: Value, labels: Tensor, channel_axes: list[int]) -> int | None:
    """Return the axis of channels, if there is one."""
    if len(channel_axes) == 1:
        return channel_axes[0]
    if channel_axes or x.channels > 1:
        return None
    # one channel: any axis of size 1 behind the examples could be it
    places = [axis for axis in range(1, labels.dim()) if labels.shape[axis] == 1]
    if x.features == 1 and 1 in places:
        return 1
    return places[-1] if places else None


def _joined(node: Node) -> bool:
    joins = (kernels.AveragePool, kernels.Flatten, kernels.Token)
    return any(isinstance(each.layer, joins) for each in node.path())


def function_name(func: object) -> str:
    """Return the name of a function of torch, without marks of methods and in-place forms.

    Attributes are read by a function `__get__`; their name is that of the attribute, such as "mT".
    """
    name = getattr(func, "__name__", str(func)).strip("_")
    if name == "get":
        return getattr(getattr(func, "__self__", None), "__name__", name)
    if name.startswith(("i", "r")) and name[1:] in ("add", "mul", "sub"):
        return name[1:]
    return name


@dataclass(frozen=True, eq=False)
class Branches:
    """The last node that some paths have in common, and the layers of each path after it."""

    start: Node
    layers: list[list[kernels.Layer]]
    uses: frozenset[Use]

    def joined(self, layer: kernels.Layer) -> Node:
        """Return the node of a layer that has these branches."""
        return self.start.then(layer, self.uses)


def branches_of(nodes: Sequence[Node]) -> Branches:
    """Return the branches that end at some nodes; refuse those that share weights."""
    paths = [node.path() for node in nodes]
    common = 0
    while all(common < len(path) and path[common] is paths[0][common] for path in paths):
        common += 1
    layers: list[list[kernels.Layer]] = []
    total: set[Use] = set()
    for path in paths:
        layers.append([node.layer for node in path[common:] if node.layer is not None])
        uses: set[Use] = set()
        for node in path[common:]:
            uses |= node.uses
        for use in uses:
            if any(use.overlaps(other) for other in total):
                raise InputError(
                    f"model: two branches that meet have both passed {use.name!r}, so that they"
                    " are not independent; give each branch weights of its own",
                    "no-infinite-width",
                    argument="model",
                )
        total |= uses
    return Branches(paths[0][common - 1], layers, frozenset(total))
