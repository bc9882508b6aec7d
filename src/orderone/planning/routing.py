"""Routing of a mixture of experts, measured in its forward code.

    y = sum over the k chosen experts e of g_e(x) E_e(x)

Models differ in the weights g: they sum to one (softmax over the chosen experts), to k/M (softmax
over all M experts), or to a number that grows with k (sigmoid). No configuration says so reliably,
so the block is called on its own, with weights for which the answer is exact:

    router = 0              all experts have the same logit
    experts = 1 / fan-in    on an input of ones every layer returns ones times a number that
                            depends on its nonlinearity alone, and not on any width

Then y = S f(1) with S = sum of g_e: the ratio of the S of two models is the growth of the sum of
weights. The number k of experts with a gradient is the number of active experts. All tensors are
restored. If the entries of one token differ, the block has more in it than experts and router, and
nothing is concluded.

**Experts that choose their tokens.** Each of M experts takes the C tokens of T with the largest
weights, so that tokens have different numbers of experts, on average k = M C / T, and different
sums. Both averages take the places of k and S: a token's number of experts is about Poisson with
the mean k, whatever M is, so that S differs between tokens by numbers of order one, and an expert
sees k T / M tokens, as above. Equal logits do not decide which tokens an expert takes, but how
many. If experts have different numbers of tokens (some drop tokens beyond their capacity, and with
equal logits all tokens want the same experts), nothing is concluded.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orderone.observe.inventory import Item, inventory, modules_by_name
from orderone.observe.trace import undisturbed
from orderone.planning.block_calls import Call, calls_of_blocks, first_tensor, restored
from orderone.planning.counterparts import stack_of
from orderone.planning.options import ExampleBatch
from orderone.planning.roles.experts import ROUTER, ExpertPart
from orderone.torch_compat import tree_map

ROUNDING = 1e-5  # relative error of a sum of weights in single precision
DENOMINATORS = 128  # largest denominator of a ratio that is taken for a fraction
UNEVEN = 0.01  # entries of the output that differ by less differ by rounding


@dataclass(frozen=True)
class Routing:
    """Routing of one block for equal router logits."""

    active: float  # experts that a token visits, on average
    weight_sum: float  # sum of their weights, up to a constant of the architecture


@dataclass(frozen=True)
class RoutingChange:
    """Routing of a block in the base and in the target."""

    base: Routing
    target: Routing

    @property
    def active(self) -> float:
        """Number of active experts, target over base."""
        return self.target.active / self.base.active

    @property
    def weights(self) -> float:
        """Sum of the combine weights, target over base."""
        return _simplest(self.target.weight_sum / self.base.weight_sum)


def _simplest(ratio: float) -> float:
    """Return the fraction with the smallest denominator that equals a measured ratio.

    Sums of weights are ratios of whole numbers, k / M, measured in single precision.
    """
    for denominator in range(1, DENOMINATORS + 1):
        near = round(ratio * denominator) / denominator
        if abs(near - ratio) < ROUNDING * ratio:
            return near
    return ratio


def routing_of(
    model: nn.Module,
    inputs: ExampleBatch,
    parts: Mapping[str, ExpertPart],
    fan_in: Mapping[str, float],
) -> dict[str, Routing]:
    """Return the routing of every kind of block, by the name that its layers share.

    `parts` are those of this very model; `fan_in` has the fan-in of the matrices of experts, times
    the factors in their layers.
    """
    first: dict[str, str] = {}
    for part in parts.values():
        first.setdefault(stack_of(part.block), part.block)
    calls = calls_of_blocks(model, inputs, list(first.values()))
    items = inventory(model)
    routings: dict[str, Routing] = {}
    with undisturbed(model):
        for stack, block in first.items():
            if block not in calls:
                continue
            inside = {name: part for name, part in parts.items() if part.block == block}
            ones = tree_map(_ones, calls[block])
            routing = _routing(modules_by_name(model)[block], ones, inside, items, fan_in)
            if routing is not None:
                routings[stack] = routing
    return routings


def _ones(value: object) -> object:
    if isinstance(value, Tensor) and value.is_floating_point():
        return torch.ones_like(value)
    return value


def _routing(
    block: nn.Module,
    call: Call,
    parts: Mapping[str, ExpertPart],
    items: Mapping[str, Item],
    fan_in: Mapping[str, float],
) -> Routing | None:
    """Return the routing of one block; None if it cannot be measured."""
    experts = {name: items[name].tensor for name, part in parts.items() if part.kind != ROUTER}
    args, kwargs = call
    with restored([items[name].tensor for name in parts]):
        for name in parts:
            items[name].tensor.data.zero_()
        with torch.no_grad():
            silent = first_tensor(block(*args, **kwargs))
        for name, tensor in experts.items():
            if name in fan_in:
                tensor.data.fill_(1 / fan_in[name])
        for tensor in experts.values():
            tensor.requires_grad_(True)
        with torch.enable_grad():
            output = first_tensor(block(*args, **kwargs))
            gradients = torch.autograd.grad(
                output.float().sum(), list(experts.values()), allow_unused=True
            )
        change = (output - silent).detach().float()
        weight_sum = float(change.abs().mean())
        by_token = change.reshape(-1, change.shape[-1])
        chosen: float | None = None
        tokens_differ = _differ(by_token, weight_sum)
        if tokens_differ:
            chosen = _experts_per_token(block, call, experts, parts, fan_in, silent)
    by_name = dict(zip(experts, gradients, strict=True))
    active = _active({name: by_name[name] for name in experts if name in fan_in}, parts)
    if not active or not 0 < weight_sum < float("inf"):
        return None
    if _differ(by_token.T, weight_sum):
        return None  # other layers of the block, with weights of their own, follow the experts
    if not tokens_differ:
        return Routing(float(active), weight_sum)
    return None if chosen is None else Routing(chosen, weight_sum)


def _differ(rows: Tensor, size: float) -> bool:
    """Return whether rows differ by more than rounding."""
    return float((rows.amax(0) - rows.amin(0)).max()) > UNEVEN * size


def _experts_per_token(
    block: nn.Module,
    call: Call,
    experts: Mapping[str, Tensor],
    parts: Mapping[str, ExpertPart],
    fan_in: Mapping[str, float],
    silent: Tensor,
) -> float | None:
    """Return the average number of experts per token if every expert chooses as many tokens."""
    args, kwargs = call
    taken: list[int] = []
    tokens = 0
    for member in _members(experts, parts):
        for tensor in experts.values():
            tensor.data.zero_()
        for name, values in member:
            if name in fan_in:
                values.fill_(1 / fan_in[name])
        with torch.no_grad():
            change = (first_tensor(block(*args, **kwargs)) - silent).abs().amax(-1)
        tokens = change.numel()
        taken.append(int((change > UNEVEN * change.max()).sum()))
    if not taken or len(set(taken)) > 1:
        return None
    return sum(taken) / tokens


def _members(
    experts: Mapping[str, Tensor], parts: Mapping[str, ExpertPart]
) -> list[list[tuple[str, Tensor]]]:
    """Return the values of every single expert: names of tensors, and their parts."""
    members: dict[object, list[tuple[str, Tensor]]] = {}
    for name, tensor in experts.items():
        axis = parts[name].axis
        if axis is None:
            members.setdefault(_member(name, parts[name]), []).append((name, tensor.data))
            continue
        for index in range(tensor.shape[axis]):
            members.setdefault(index, []).append((name, tensor.data.select(axis, index)))
    return list(members.values())


def _member(name: str, part: ExpertPart) -> str:
    """Return the name of the expert module in its block."""
    if part.block:
        inner = name.removeprefix(f"{part.block}.")
    else:
        inner = name
    return ".".join(inner.split(".")[:2])


def _active(gradients: Mapping[str, Tensor | None], parts: Mapping[str, ExpertPart]) -> int:
    """Return the number of experts with a gradient."""
    largest = 0
    members: set[str] = set()
    for name, gradient in gradients.items():
        if gradient is None or not bool(gradient.any()):
            continue
        part = parts[name]
        if part.axis is not None:
            rows = gradient.movedim(part.axis, 0).flatten(1).any(dim=1)
            largest = max(largest, int(rows.sum()))
        else:
            members.add(_member(name, part))
    return max(largest, len(members))
