"""Kernels of a PyTorch model with infinitely many channels.

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

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, instance
from orderone.core.inputs import UserInput
from orderone.measure.kernels.depth_scales import DepthScales, depth_scales
from orderone.measure.kernels.examples import Examples, Inputs, read_examples, read_output
from orderone.measure.kernels.stored_tensors import without_new_tensors
from orderone.measure.kernels.traced_layers import Layers
from orderone.measure.kernels.traced_values import Node, Value, natural_labels
from orderone.observe.batch_errors import naming_batch
from orderone.observe.inventory import unwrap
from orderone.observe.trace import undisturbed
from orderone.theory import kernels

Model: TypeAlias = Annotated[nn.Module, UserInput]

SIDES = (32, 28, 16, 8, 64, 224)  # of example images


@dataclass(frozen=True)
class ModuleKernel:
    """The limit of a model: `net` is a `theory.kernels.Sequential`; call it with inputs."""

    net: kernels.Sequential
    table: int | None  # rows of the table that whole numbers are looked up in
    channels_first: bool
    shape: tuple[int, ...] = ()  # of one example
    empty_rows: tuple[int, ...] = ()  # of the table: tokens that are zero, such as padding
    left_out: tuple[str, ...] = ()  # trained gains and shifts, which the tangent kernel omits

    def inputs(self, x: Annotated[Tensor | np.ndarray, UserInput]) -> kernels.Kernel:
        """Return the kernel of inputs as the model takes them: images have channels first."""
        if isinstance(x, Tensor):
            values = x.detach()
        else:
            values = torch.as_tensor(x)
        if self.table is not None:
            values = nn.functional.one_hot(values.long(), self.table).double()
            values[..., list(self.empty_rows)] = 0
        elif self.channels_first:
            values = values.movedim(1, -1)
        if isinstance(x, np.ndarray):
            return kernels.inputs(values.numpy())
        return kernels.inputs(values)

    def depth_scales(self) -> list[DepthScales]:
        """Return depth scales and suggested variances of the activations and their weights."""
        return depth_scales(self.net.layers)

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
    of the present weights and biases, which must be random, as at the start of a training. The
    tangent kernel is that of the parameterization of `theory.kernels`: factors in front of weights
    of order one. It contains all weights and biases, but not the gains and shifts of norms, whose
    names are in `left_out`. Dropout counts if the model is in training mode.
    """
    model = unwrap(instance(model, nn.Module, "model", "pass a PyTorch model"))
    training = {module: module.training for module in model.modules()}
    with without_new_tensors(model), undisturbed(model), torch.enable_grad():
        for module, mode in training.items():
            module.training = mode
        if inputs is not None:
            examples = read_examples(inputs, model, "inputs")
            with naming_batch("inputs", inputs, model):
                return _traced(model, examples)
        failure: Exception | None = None
        for example in _guesses(model):
            try:
                return _traced(model, read_examples(example, model, "inputs"))
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


def _traced(model: nn.Module, examples: Examples) -> ModuleKernel:
    """Return the limit; of three axes, the channels of a convolution are the second or the last."""
    first = examples.rows(slice(0, 1))[0]
    channels_first = False
    if first.is_floating_point():
        channels_first = first.dim() > 3 or (first.dim() == 3 and _convolves_first(model))
    try:
        return _traced_as(model, examples, channels_first)
    except InputError:
        if first.dim() != 3 or not channels_first:
            raise
        with suppress(InputError):
            return _traced_as(model, examples, channels_first=False)
        raise


def _traced_as(model: nn.Module, examples: Examples, channels_first: bool) -> ModuleKernel:
    rows = examples.rows(slice(0, 1))
    first = rows[0]
    features: int | None = None
    if first.is_floating_point():
        # (1, features), (1, tokens, features), or an image with channels first
        features = 1 if channels_first else first.dim() - 1
    mode, output = _run(model, examples, rows, features)
    if mode.numbers:
        other = (_other_input(first), *rows[1:])
        again, _ = _run(model, examples, other, features)
        _check_constants(mode, again)
    value = mode.values.get(id(output))
    if not isinstance(value, Value):
        raise InputError(
            "model: expected outputs that depend on the inputs through layers with a limit, got an"
            " output that does not",
            "no-infinite-width",
            argument="model",
        )
    mode.weights.check(mode.slices)
    layers = [node.layer for node in value.node.path() if node.layer is not None]
    net = kernels.Sequential(*layers)
    shape = tuple(first.shape[1:])
    gains = tuple(mode.weights.gains)
    return ModuleKernel(net, mode.table, channels_first, shape, mode.empty_rows, gains)


def _run(
    model: nn.Module,
    examples: Examples,
    rows: tuple[Tensor, ...],
    features: int | None,
) -> tuple[Layers, Tensor]:
    """Return the mode after a forward pass of one example, and the output."""
    first = rows[0]
    mode = Layers({id(p): name for name, p in model.named_parameters()})
    if features is None:
        mode.keep(Value(first, Node(), None))
    else:
        labels = natural_labels(first, features)
        mode.keep(Value(first, Node(), labels, first.shape[features], features))
    args, kwargs = examples.call(rows)
    with _paths(model, mode), mode:
        output = model(*args, **kwargs)
    return mode, read_output(output, None)


def _other_input(x: Tensor) -> Tensor:
    """Return an input of the same shape with other numbers; indices stay within a table."""
    if x.is_floating_point():
        return 1.3 * x.flip(-1) + 0.1
    return torch.where(x > 0, x - 1, x + 1)


def _check_constants(mode: Layers, again: Layers) -> None:
    """Refuse numbers that differ between two inputs, although no function was seen to make them.

    Functions that the mode does not see are those of numpy and of compiled code, among others.
    """
    pairs = zip(mode.numbers, again.numbers, strict=False)
    same = len(mode.numbers) == len(again.numbers)
    if same and all(torch.equal(first, second) for first, second in pairs):
        return
    raise InputError(
        "model: numbers that are added to a stream, multiply it, or mask its scores change with the"
        " inputs through functions that cannot be followed, such as those of numpy or torch.vmap;"
        " write them with functions of torch",
        "no-infinite-width",
        argument="model",
    )


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
