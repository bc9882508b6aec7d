"""How weights, inputs and their changes line up in the layers of a real model, between two steps:
S0 (15)-(17).

    omega   RMS(W dx)  / (RMS(W)  RMS(dx))
    alpha   RMS(dW x)  / (RMS(dW) RMS(x))
    u       RMS(dW dx) / (RMS(dW) RMS(dx))

W and x are those from before the step, dW and dx what it changed, so that the three products add up
to the change of W x. A layer is a module that owns one matrix and is linear in it; its product is
its own forward pass with the weight exchanged and the bias zero, so that convolutions and
transposed weights need no code here. Multipliers that a plan put into hooks are no part of W (S0
writes them as n^{-a} in front), so the hooks are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from orderone.observe.batches import call_inputs
from orderone.observe.hooks import watching
from orderone.observe.inventory import Item, inventory, modules_by_name
from orderone.observe.moments import WIDE, Ledger
from orderone.observe.reference_outputs import repeatable
from orderone.observe.trace import call_with
from orderone.theory.exponents.updates import ALIGNED_ROLES, KINDS
from orderone.torch_compat import parameter_registry

FEWEST_TOKENS = 8
Inputs = dict[str, Tensor]  # by layer
Ratio = tuple[str, str, str, str, float]  # layer, role, tokens, quantity, ratio


class _WithoutHooks(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module.forward(x)


@dataclass(frozen=True)
class Layer:
    name: str
    role: str
    module: nn.Module
    attribute: str
    fan_in: int

    @property
    def weight(self) -> Tensor:
        return parameter_registry(self.module)[self.attribute]  # pyright: ignore[reportReturnType]

    def product(self, weight: Tensor, x: Tensor) -> Any:
        own = self.module.named_parameters(recurse=False)
        given = {
            f"module.{name}": weight if name == self.attribute else torch.zeros_like(p)
            for name, p in own
        }
        return functional_call(_WithoutHooks(self.module), given, (x,))

    @torch.no_grad()
    def is_linear(self, x: Tensor) -> bool:
        """Odd and homogeneous in the weight, to the bit: scaling by -2 rounds nothing."""
        if next(self.module.children(), None) is not None:
            return False
        try:
            one = self.product(self.weight, x)
            two = self.product(-2 * self.weight, x)
        except (
            Exception
        ):  # it needs more than one input, or will not have its weight exchanged (mup's readout)
            return False
        return isinstance(one, Tensor) and torch.equal(-2 * one, two)

    def is_measurable(self, x: Tensor) -> bool:
        return x.numel() // self.fan_in >= FEWEST_TOKENS and self.is_linear(x)

    def check_tokens(self, x: Tensor | None, tokens: str) -> None:
        got = FEWEST_TOKENS if x is None else x.numel() // self.fan_in
        if got < FEWEST_TOKENS:
            raise ValueError(
                f"batches: expected at least {FEWEST_TOKENS} {tokens} tokens, got {got} (rows that"
                f" {self.name} reads); with fewer, a product is a handful of inner products and its"
                " exponent is noise (erratum S0.6)"
            )


@dataclass(frozen=True)
class State:
    """The model at one step: its weights, and what its layers read on every set of tokens."""

    weights: Inputs
    inputs: dict[str, Inputs]


def layers_of(model: nn.Module, roles: Mapping[str, str]) -> tuple[list[Layer], list[str]]:
    """The hidden and readout matrices that a module has to itself, and the names of the tensors
    that are left over."""
    items = inventory(model)
    modules = modules_by_name(model)
    matrices = [
        place.module for item in items.values() for place in item.places if _is_matrix(place)
    ]
    found: list[Layer] = []
    left: list[str] = []
    for name, item in items.items():
        role = _role(item, roles.get(name, ""))
        if role:
            own = [p for p in item.places if _is_matrix(p) and matrices.count(p.module) == 1]
        else:
            own = []
        for place in own:
            fan_in = item.shape[place.layout.fan_in[0]]  # pyright: ignore[reportOptionalMemberAccess]
            found.append(Layer(place.module, role, modules[place.module], place.attribute, fan_in))
        if role and not own:
            left.append(name)
    return found, left


def _is_matrix(place: Any) -> bool:
    return place.layout is not None and place.layout.kind == "matrix"


def _role(item: Item, role: str) -> str:
    """An embedding that is looked up in one place and multiplied with in another is the readout
    there."""
    kinds = {place.layout.kind for place in item.places if place.layout is not None}
    if role == "embedding" and kinds >= {"lookup", "matrix"}:
        return "readout"
    return role if role in ALIGNED_ROLES else ""


@torch.no_grad()
def observe(model: nn.Module, layers: Sequence[Layer], batches: Mapping[str, Any]) -> State:
    """A pass on each of the `batches`, always with the same random numbers."""
    return State(
        weights_of(layers),
        {tokens: _inputs(model, layers, batch) for tokens, batch in batches.items()},
    )


def weights_of(layers: Sequence[Layer]) -> Inputs:
    return {layer.name: layer.weight.detach().clone() for layer in layers}


def _inputs(model: nn.Module, layers: Sequence[Layer], batch: Any) -> Inputs:
    args, kwargs = call_with(call_inputs(batch))
    with repeatable(model), reading(model, layers) as found:
        model(*args, **kwargs)
    return found


@contextmanager
def reading(model: nn.Module, layers: Sequence[Layer]) -> Iterator[Inputs]:
    """What the layers read in a pass inside the context."""
    found: Inputs = {}
    names = {layer.name for layer in layers}

    def saw(name: str, kind: str, x: Tensor) -> None:
        if name not in found:  # the first call
            found[name] = x.detach().clone()  # code that follows may write into it

    with watching(model, saw, names.__contains__, ("input",)):
        yield found


@torch.no_grad()
def ratios(layers: Sequence[Layer], before: State, now: State) -> Iterator[Ratio]:
    """Every layer on every set of tokens; the numbers are fetched from the device together."""
    ledger = Ledger()
    keys = []
    for tokens, inputs in before.inputs.items():
        for layer in layers:
            x = inputs.get(layer.name)
            after = now.inputs[tokens].get(layer.name)
            if (
                x is None or after is None or x.shape != after.shape
            ):  # experts see other tokens every time
                continue
            W = before.weights[layer.name]
            products = _products(layer, W, now.weights[layer.name] - W, x, after - x)
            keys += [
                (layer.name, layer.role, tokens, kind, ledger.add(y))
                for kind, y in products.items()
            ]
    moments = ledger.fetch()
    for *key, slot in keys:
        yield (*key, moments[slot].rms)


def _products(layer: Layer, W: Tensor, dW: Tensor, x: Tensor, dx: Tensor) -> dict[str, Tensor]:
    """Of factors of size one, so that the size of the product is the ratio and nothing
    underflows."""
    W, dW, x, dx = (_unit(factor) for factor in (W, dW, x, dx))
    return dict(
        zip(KINDS, (layer.product(W, dx), layer.product(dW, x), layer.product(dW, dx)), strict=True)
    )


def _unit(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dtype=WIDE.get(x.dtype))
    return x / (norm / x.numel() ** 0.5)
