"""How large the gradients of random networks are, layer by layer, and how well those of two inputs
agree.

    g_aa^l     = 1/N^2 sum_ij (dE_a/dW^l_ij)^2                  S1 (8)
    g_ab^l     = 1/N^2 sum_ij dE_a/dW^l_ij dE_b/dW^l_ij         S1 (8) without its bars
    abs_g_ab^l = |g_ab^l|                                       S1 (8) as printed
    l1_g_ab^l  = 1/N^2 sum_ij |dE_a/dW^l_ij dE_b/dW^l_ij|    S1 section 4.1, there g_ab with a tilde

W^l is the weight of layer l and 1/N^2 one over the number of its entries; E_a and E_b are the
losses of two inputs that meet the same weights, each under dropout masks of its own. Every gradient
is a real one, from backpropagation; mean and standard deviation are over networks, each with fresh
weights and fresh masks. Erratum S1.4: theory speaks of the mean of g_ab with its sign. Where the
sign varies, E|g_ab| is a noise floor of relative size N^{-1/2}, which decays as g_aa does; it does
not estimate |E g_ab|. Erratum S1.8: the loss is the sum of squares.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, UserInput
from orderone.measure import records

QUANTITIES = ("g_aa", "g_ab", "abs_g_ab", "l1_g_ab")
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# of all networks that are held at once: some hundred megabytes, gradients included
WEIGHTS_HELD = 2**22

# name of the weight -> name of its module, in the order of the forward pass
Layers: TypeAlias = Mapping[str, str]
Build: TypeAlias = Annotated[Callable[[], nn.Module], UserInput]
Loss: TypeAlias = Annotated[Callable[..., Tensor], UserInput]
Inputs: TypeAlias = Annotated[Tensor | ArrayLike, UserInput]


def sum_of_squares(outputs: object) -> Tensor:
    """Return the loss E with delta^L = 2 z^L: S1 section 4.1, erratum S1.8."""
    remedy = "give a loss that takes what the network returns"
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
    """One row for each layer and each of `QUANTITIES`: layer, module, quantity, mean, std, se (of
    the mean).

    `build()` returns a new network; torch is seeded before each call. Whatever differs between two
    networks must be a parameter or a buffer, and what is random in a forward pass must come from
    torch. Layers are the linear and convolutional modules in the order in which the forward pass
    calls them; 1 is the first.

    `inputs_a` and `inputs_b` are one input each if they have one axis; otherwise their first axis
    counts pairs. A network sees one input at a time, as a batch of one, and `loss` takes what it
    returns. Each pair has masks of its own, and a network's values are averaged over its pairs
    before `std` is taken: x.expand(1000, -1) averages over masks.

    `batch` is how many pairs of gradients to hold at once; by default as many as fit into some
    hundred megabytes.
    """
    instances = count(instances, "instances", least=2)
    seed = count(seed, "seed", least=0)
    seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(instances, np.uint64)]
    pairs = _pairs(inputs_a, inputs_b)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        first, second = _networks(build, seeds[:2])
        like = next(first.parameters(), pairs)
        # tokens stay whole numbers
        pairs = pairs.to(like if pairs.is_floating_point() else like.device)
        layers = _layers(first, pairs[0, :1], loss)
        _check_two_draws(first, second, layers)
        size = sum(first.get_parameter(name).numel() for name in layers)
        held = max(1, WEIGHTS_HELD // size) if batch is None else count(batch, "batch")
        each = max(1, held // pairs.shape[1])
        networks = (_networks(build, seeds[i : i + each]) for i in range(0, instances, each))
        values = _measure(networks, layers, pairs, loss, held)
    return _frame(list(layers.values()), values.cpu().numpy())


def _measure(
    networks: Iterable[list[nn.Module]], layers: Layers, pairs: Tensor, loss: Loss, held: int
) -> Tensor:
    """(networks, layers, quantities)."""
    values = []
    vmappable = True
    for group in networks:
        if vmappable:
            try:
                values.append(_together(group, layers, pairs, loss, held))
                continue
            # torch.func's answer to control flow on values, to some in-place writes, ...
            except RuntimeError as error:
                vmappable = False
                reason = str(error).partition("\n")[0]
                warnings.warn(
                    f"gradient_metrics takes networks one by one, since vmap failed: {reason}",
                    stacklevel=3,
                )
        values.append(torch.stack([_alone(network, layers, pairs, loss) for network in group]))
    return torch.cat(values)


def _together(
    networks: list[nn.Module], layers: Layers, pairs: Tensor, loss: Loss, held: int
) -> Tensor:
    state = _stacked(networks)
    weights = {name: state.pop(name) for name in layers}

    def error(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor) -> Tensor:
        return loss(functional_call(networks[0], {**weights, **rest}, (x[None],))).reshape(())

    def pair(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor) -> Tensor:
        gradients_a = grad(error)(weights, rest, x[0])
        gradients_b = grad(error)(weights, rest, x[1])
        return _metrics(tuple(gradients_a.values()), tuple(gradients_b.values()))

    each_pair = vmap(pair, in_dims=(None, None, 1), randomness="different", chunk_size=held)
    each_network = vmap(each_pair, in_dims=(0, 0, None), randomness="different")
    return each_network(weights, state, pairs).mean(1)


def _alone(network: nn.Module, layers: Layers, pairs: Tensor, loss: Loss) -> Tensor:
    weights = [network.get_parameter(name).requires_grad_() for name in layers]

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            loss(network(x[None])).reshape(()), weights, materialize_grads=True
        )

    return torch.stack(
        [_metrics(gradients(a), gradients(b)) for a, b in zip(*pairs, strict=True)]
    ).mean(0)


def _metrics(gradients_a: Sequence[Tensor], gradients_b: Sequence[Tensor]) -> Tensor:
    """(layers, quantities) of one pair."""
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
        raise ValueError(
            f"build: expected a function that returns a new network, got {build!r}; give lambda:"
            " Net(...)"
        )
    networks = []
    for seed in seeds:
        torch.manual_seed(seed)
        networks.append(instance(build(), nn.Module, "build()", "return a network from it"))
    return networks


def _stacked(networks: list[nn.Module]) -> dict[str, Tensor]:
    """Stack parameters and buffers of all networks."""
    states = []
    for network in networks:
        states.append({**dict(network.named_parameters()), **dict(network.named_buffers())})
    stacked = {}
    for name in states[0]:
        stacked[name] = torch.stack([state[name].detach() for state in states])
    return stacked


def _pairs(inputs_a: Inputs, inputs_b: Inputs) -> Tensor:
    """(2, pairs, ...)."""
    try:
        a = torch.as_tensor(inputs_a)
        b = torch.as_tensor(inputs_b)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"inputs_a and inputs_b: expected tensors, got something else ({error})"
        ) from error
    if a.shape != b.shape or a.numel() == 0 or a.dim() == 0:
        raise ValueError(
            "inputs_a and inputs_b: expected one input each, or equally many along a first axis; "
            f"got shapes {tuple(a.shape)} and {tuple(b.shape)}; repeat the shorter one with expand"
        )
    both = torch.stack([a, b.to(a.device)])
    return both[:, None] if a.dim() == 1 else both


def _layers(network: nn.Module, x: Tensor, loss: Loss) -> Layers:
    """The weights in the order of use. One that several layers share is listed once, under the
    first of them."""
    parameters = {id(parameter): name for name, parameter in network.named_parameters()}
    layers: dict[str, str] = {}
    for module, weight in _calls(network, x, loss):
        if id(weight) not in parameters:
            raise ValueError(
                f"build: expected layers whose weights are parameters, but that of {module!r} is"
                " computed from others; remove the parametrization (weight_norm, spectral_norm,"
                " pruning)"
            )
        layers.setdefault(parameters[id(weight)], module)
    if not layers:
        kinds = ", ".join(kind.__name__ for kind in LAYERS)
        raise ValueError(
            f"build: expected a network that calls some of {kinds}; got {network!r}, which calls"
            " none"
        )
    return layers


def _calls(network: nn.Module, x: Tensor, loss: Loss) -> list[tuple[str, Tensor]]:
    """(module, weight) of each layer that one forward pass calls."""
    called: list[nn.Module] = []
    names = {module: name for name, module in network.named_modules() if isinstance(module, LAYERS)}
    hooks = []
    for module in names:
        hooks.append(module.register_forward_pre_hook(lambda module, _: called.append(module)))
    error = loss(network(x)) if callable(loss) else loss
    for hook in hooks:
        hook.remove()
    if not isinstance(error, Tensor) or error.numel() != 1:
        raise ValueError(
            f"loss: expected a function that returns one number, as a tensor; got {error!r}; sum"
            " over it"
        )
    return [(names[module], module.weight) for module in called if isinstance(module, LAYERS)]


def _check_two_draws(first: nn.Module, second: nn.Module, layers: Layers) -> None:
    state = _stacked([first])
    other_state = _stacked([second])
    shapes = {name: tuple(tensor.shape[1:]) for name, tensor in state.items()}
    other_shapes = {name: tuple(tensor.shape[1:]) for name, tensor in other_state.items()}
    if shapes != other_shapes:
        raise ValueError(
            f"build: expected networks of one architecture, got two: {shapes} and {other_shapes}"
        )
    if all(torch.equal(state[name], other_state[name]) for name in layers):
        raise ValueError(
            "build: expected fresh initial values from every call, but two networks have the same; "
            "build the network inside the function, and do not seed torch there"
        )


def _frame(modules: list[str], values: np.ndarray) -> pd.DataFrame:
    rows = []
    for layer, module in enumerate(modules, 1):
        rows += [(layer, module, quantity) for quantity in QUANTITIES]
    std = values.std(0, ddof=1).ravel()
    table = records.table(rows, ["layer", "module", "quantity"], records.versions())
    frame = table.assign(mean=values.mean(0).ravel(), std=std, se=std / len(values) ** 0.5)
    frame.attrs["units"] = {"mean, std, se": "over networks, in the units of S1 (8)"}
    return frame
