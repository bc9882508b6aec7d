"""Sizes of gradients in random networks, layer by layer, and their agreement for two inputs.

    g_aa^l     = 1/N^2 sum_ij (dE_a/dW^l_ij)^2                  S1 (8)
    g_ab^l     = 1/N^2 sum_ij dE_a/dW^l_ij dE_b/dW^l_ij         S1 (8) without its bars
    abs_g_ab^l = |g_ab^l|                                       S1 (8) as printed
    l1_g_ab^l  = 1/N^2 sum_ij |dE_a/dW^l_ij dE_b/dW^l_ij|    S1 section 4.1, there g_ab with a tilde

W^l is the weight of layer l, and N^2 the number of its entries. E_a and E_b are the losses of two
inputs with the same weights and different dropout masks. Gradients come from backpropagation; mean
and standard deviation are over networks, each with fresh weights and fresh masks. Erratum S1.4:
theory predicts the mean of g_ab with its sign. Where the sign varies, E|g_ab| is a noise floor of
relative size N^{-1/2}, which decays as g_aa does; it does not estimate |E g_ab|. Erratum S1.8: the
loss is the sum of squares.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from orderone.core.errors import InputError, instance, with_code
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, UserInput
from orderone.measure import records
from orderone.observe.batch_errors import naming_batch

QUANTITIES = ("g_aa", "g_ab", "abs_g_ab", "l1_g_ab")
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# weights of all networks in memory at once: some hundred megabytes, gradients included
WEIGHTS_AT_ONCE = 2**22

# name of the weight -> name of its module, in the order of the forward pass
Layers: TypeAlias = Mapping[str, str]
Build: TypeAlias = Annotated[Callable[[], nn.Module], UserInput]
Loss: TypeAlias = Annotated[Callable[..., Tensor], UserInput]
Inputs: TypeAlias = Annotated[Tensor | ArrayLike, UserInput]


def sum_of_squares(outputs: object) -> Tensor:
    """Return the loss E with delta^L = 2 z^L: S1 section 4.1, erratum S1.8."""
    remedy = "pass a loss that takes what the network returns"
    return instance(outputs, Tensor, "outputs", remedy).square().sum()


def gradient_metrics(
    build: Build,
    inputs_a: Inputs,
    inputs_b: Inputs,
    *,
    loss: Loss = sum_of_squares,
    instances: Count = 256,
    seed: Count = 0,
    batch: Count | None = None,
) -> pd.DataFrame:
    """Measure the gradients of random networks, layer by layer.

    The result has one row for each layer and each of `QUANTITIES`: layer, module, quantity, mean,
    std, se (of the mean).

    `build()` returns a new network; torch is seeded before each call. Everything that differs
    between two networks must be a parameter or a buffer, and random numbers of a forward pass must
    come from torch. Layers are the linear and convolutional modules, numbered from 1 in the order
    of their calls.

    `inputs_a` and `inputs_b` are one input each if they have one axis; otherwise their first axis
    counts pairs. A network gets one input at a time, as a batch of one, and `loss` takes its
    output. Each pair has other masks, and a network's values are averaged over its pairs before
    `std` is computed: x.expand(1000, -1) averages over masks.

    `batch` is the number of pairs of gradients in memory at once; the default is as many as fit
    into some hundred megabytes.
    """
    instances = count(instances, "instances", least=2)
    seed = count(seed, "seed", least=0)
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(instances, np.uint64)]
    pairs = _pairs(inputs_a, inputs_b)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        first, second = _networks(build, seeds[:2])
        like = next(first.parameters(), pairs)
        pairs = pairs.to(like.device)
        if pairs.is_floating_point():  # tokens stay integers
            pairs = pairs.to(like)
        with naming_batch("inputs", pairs[0, :1], first):
            layers = _layers(first, pairs[0, :1], loss)
        _check_two_draws(first, second, layers)
        size = sum(first.get_parameter(name).numel() for name in layers)
        at_once = max(1, WEIGHTS_AT_ONCE // size)
        if batch is not None:
            at_once = count(batch, "batch")
        each = max(1, at_once // pairs.shape[1])
        networks = (_networks(build, seeds[i : i + each]) for i in range(0, instances, each))
        values = _measure(networks, layers, pairs, loss, at_once)
    return _frame(list(layers.values()), values.cpu().numpy())


def _measure(
    networks: Iterable[list[nn.Module]], layers: Layers, pairs: Tensor, loss: Loss, at_once: int
) -> Tensor:
    """Return the quantities: (networks, layers, quantities)."""
    values = []
    vmappable = True
    for group in networks:
        if vmappable:
            try:
                values.append(_together(group, layers, pairs, loss, at_once))
                continue
            # torch.func raises it for control flow on values, some in-place writes, ...
            except RuntimeError as error:
                vmappable = False
                reason = str(error).partition("\n")[0]
                warning = f"networks are measured one by one, since vmap failed: {reason}"
                warnings.warn(with_code(warning, "vmap-failed"), stacklevel=3)
        values.append(torch.stack([_alone(network, layers, pairs, loss) for network in group]))
    return torch.cat(values)


def _together(
    networks: list[nn.Module], layers: Layers, pairs: Tensor, loss: Loss, at_once: int
) -> Tensor:
    state = _stacked(networks)
    weights = {name: state.pop(name) for name in layers}

    def error(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor) -> Tensor:
        return loss(functional_call(networks[0], {**weights, **rest}, (x[None],))).reshape(())

    def pair(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor) -> Tensor:
        gradients_a = grad(error)(weights, rest, x[0])
        gradients_b = grad(error)(weights, rest, x[1])
        return _metrics(tuple(gradients_a.values()), tuple(gradients_b.values()))

    each_pair = vmap(pair, in_dims=(None, None, 1), randomness="different", chunk_size=at_once)
    each_network = vmap(each_pair, in_dims=(0, 0, None), randomness="different")
    return each_network(weights, state, pairs).mean(1)


def _alone(network: nn.Module, layers: Layers, pairs: Tensor, loss: Loss) -> Tensor:
    weights = [network.get_parameter(name).requires_grad_() for name in layers]

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            loss(network(x[None])).reshape(()), weights, materialize_grads=True
        )

    metrics = []
    for a, b in zip(*pairs, strict=True):
        metrics.append(_metrics(gradients(a), gradients(b)))
    return torch.stack(metrics).mean(0)


def _metrics(gradients_a: Sequence[Tensor], gradients_b: Sequence[Tensor]) -> Tensor:
    """Return the quantities of one pair: (layers, quantities)."""
    rows = []
    for a, b in zip(gradients_a, gradients_b, strict=True):
        a = a.double()
        b = b.double()  # in deep networks the squares leave the range of single precision
        product = a * b
        rows.append(
            torch.stack(
                [a.square().mean(), product.mean(), product.mean().abs(), product.abs().mean()]
            )
        )
    return torch.stack(rows)


def _networks(build: Build, seeds: Sequence[int]) -> list[nn.Module]:
    if isinstance(build, nn.Module) or not callable(build):
        message = (
            f"build: expected a function that returns a new network, got {build!r}; pass lambda:"
            " Net(...)"
        )
        raise InputError(message, "wrong-type", argument="build")
    networks = []
    for seed in seeds:
        torch.manual_seed(seed)
        networks.append(instance(build(), nn.Module, "build()", "return a network from it"))
    return networks


def _stacked(networks: list[nn.Module]) -> dict[str, Tensor]:
    """Stack parameters and buffers of all networks."""
    members: dict[str, list[Tensor]] = {}
    for network in networks:
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            members.setdefault(name, []).append(tensor.detach())
    return {name: torch.stack(tensors) for name, tensors in members.items()}


def _pairs(inputs_a: Inputs, inputs_b: Inputs) -> Tensor:
    """Return the pairs of inputs: (2, pairs, ...)."""
    try:
        a = torch.as_tensor(inputs_a)
        b = torch.as_tensor(inputs_b)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"inputs_a and inputs_b: expected tensors, got something else ({error})"
        raise InputError(message, "wrong-type", argument="inputs_a") from error
    if a.shape != b.shape or a.numel() == 0 or a.dim() == 0:
        message = (
            "inputs_a and inputs_b: expected one input each, or equally many along a first axis,"
            f" got shapes {tuple(a.shape)} and {tuple(b.shape)}; repeat the shorter one with expand"
        )
        raise InputError(message, argument="inputs_b")
    both = torch.stack([a, b.to(a.device)])
    if a.dim() == 1:
        return both[:, None]
    return both


def _layers(network: nn.Module, x: Tensor, loss: Loss) -> Layers:
    """Return the weights in the order of use; one of several layers is listed under the first."""
    parameters = {id(parameter): name for name, parameter in network.named_parameters()}
    layers: dict[str, str] = {}
    for module, weight in _calls(network, x, loss):
        if id(weight) not in parameters:
            message = (
                f"build: expected layers whose weights are parameters, but the one of {module!r} is"
                " computed from others; remove the parametrization (weight_norm, spectral_norm,"
                " pruning)"
            )
            raise InputError(message, "unsupported-networks", argument="build")
        layers.setdefault(parameters[id(weight)], module)
    if not layers:
        kinds = ", ".join(kind.__name__ for kind in LAYERS)
        message = (
            f"build: expected a network that calls some of {kinds}, got {network!r}, which calls"
            " none"
        )
        raise InputError(message, "unsupported-networks", argument="build")
    return layers


def _calls(network: nn.Module, x: Tensor, loss: Loss) -> list[tuple[str, Tensor]]:
    """Return (module, weight) of each layer that one forward pass calls."""
    called: list[nn.Module] = []
    names = {module: name for name, module in network.named_modules() if isinstance(module, LAYERS)}
    hooks = []
    for module in names:
        hooks.append(module.register_forward_pre_hook(lambda module, _: called.append(module)))
    error: object = loss
    if callable(loss):
        error = loss(network(x))
    for hook in hooks:
        hook.remove()
    if not isinstance(error, Tensor) or error.numel() != 1:
        message = (
            f"loss: expected a function that returns a tensor with one number, got {error!r}; add"
            " up the losses of all outputs"
        )
        raise InputError(message, "wrong-type", argument="loss")
    return [(names[module], module.weight) for module in called if isinstance(module, LAYERS)]


def _check_two_draws(first: nn.Module, second: nn.Module, layers: Layers) -> None:
    """Raise an InputError unless two networks have the same shapes and different weights."""
    state = _stacked([first])
    other_state = _stacked([second])
    shapes = {name: tuple(tensor.shape[1:]) for name, tensor in state.items()}
    other_shapes = {name: tuple(tensor.shape[1:]) for name, tensor in other_state.items()}
    if shapes != other_shapes:
        message = (
            f"build: expected networks of one architecture, got two: {shapes} and {other_shapes}"
        )
        raise InputError(message, "unsupported-networks", argument="build")
    if all(torch.equal(state[name], other_state[name]) for name in layers):
        message = (
            "build: expected fresh initial values from every call, but two networks have the same"
            " values; build the network inside the function, and do not seed torch there"
        )
        raise InputError(message, "equal-networks", argument="build")


def _frame(modules: list[str], values: np.ndarray) -> pd.DataFrame:
    rows = []
    for layer, module in enumerate(modules, 1):
        for quantity in QUANTITIES:
            rows.append((layer, module, quantity))
    std = values.std(0, ddof=1).ravel()
    table = records.table(rows, ["layer", "module", "quantity"], records.VERSIONS)
    frame = table.assign(mean=values.mean(0).ravel(), std=std, se=std / len(values) ** 0.5)
    frame.attrs["units"] = {"mean, std, se": "over networks, in the units of S1 (8)"}
    return frame
