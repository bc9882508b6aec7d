"""A plain model from one that a plan was applied to: its multipliers become part of the weights.

    multiplier                              goes into
    input of a matrix, output of a lookup   the weight
    output of a norm                        gain and bias; a gain may be stored as an offset from 1
    readout that is also the embedding      the gain and bias of the norm before it, if there is
                                            one; otherwise the readout gets a weight of its own

The result computes the same, and its state_dict loads in the plain class. If a readout had to get a
weight of its own, it loads only in a class (or with a configuration) that does not tie the two.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orderone.core.errors import InputError, with_code
from orderone.observe.inventory import Item, inventory, modules_by_name, unwrap
from orderone.observe.trace import trace
from orderone.planning import apply, huggingface
from orderone.planning.base import is_configuration
from orderone.planning.example_batch import token_batch
from orderone.torch_compat import parameter_registry

if TYPE_CHECKING:
    from orderone.planning.options import ExampleBatch
    from orderone.planning.plan import Plan

SAME = 1e-4  # relative error of a norm in float32


def bake(plan: "Plan", model: nn.Module, inputs: "ExampleBatch | None") -> nn.Module:
    """Return a copy of `model` without hooks that computes the same."""
    if not plan.applied:
        message = "the plan was not applied; call plan.apply(), train, and bake then"
        raise InputError(message, "plan-not-applied")
    plan.tensors(model)
    made = copy.deepcopy(unwrap(model))
    apply.install(plan, made)  # refuses multipliers of another plan
    apply.remove(plan, made)
    modules = modules_by_name(made)
    factors: dict[str, float] = {}
    norms: dict[str, float] = {}
    for multiplier in plan.multipliers:
        if _is_norm(modules[multiplier.module]):
            chosen = norms
        else:
            chosen = factors
        chosen[multiplier.module] = chosen.get(multiplier.module, 1.0) * multiplier.value
    with torch.no_grad():
        for name, value in norms.items():
            _fold_into_norm(name, modules[name], value)
        for name in factors:
            _remove_parametrizations(modules[name])
        for item in list(inventory(made).values()):
            _fold(made, item, factors, inputs)
    return made


def _is_norm(module: nn.Module) -> bool:
    parameters = list(module.parameters(recurse=False))
    return bool(parameters) and all(parameter.dim() == 1 for parameter in parameters)


def _remove_parametrizations(module: nn.Module) -> None:
    if parametrize.is_parametrized(module, "weight"):
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


def _fold(
    model: nn.Module, item: Item, factors: Mapping[str, float], inputs: "ExampleBatch | None"
) -> None:
    """Fold the multipliers of all modules that hold a tensor."""
    places = [place for place in item.places if place.attribute == "weight"]
    values = {place.module: factors.get(place.module, 1.0) for place in places}
    if all(value == 1 for value in values.values()):
        return
    first = next(iter(values.values()))
    if all(value == first for value in values.values()):
        item.tensor.mul_(first)
        return
    # the weight is both embedding and readout, with different multipliers
    lookups = [place.module for place in places if place.layout and place.layout.kind == "lookup"]
    if lookups:
        as_lookup = values[lookups[0]]
    else:
        as_lookup = first
    item.tensor.mul_(as_lookup)
    others = {name: value / as_lookup for name, value in values.items() if value != as_lookup}
    if len(set(others.values())) == 1 and len(others) + len(lookups) == len(values):
        remaining = next(iter(others.values()))
        if _fold_into_norm_before(model, item.name, remaining, inputs):
            return
    for name, value in others.items():
        _untie(model, name, item.tensor, value)


def _fold_into_norm_before(
    model: nn.Module, readout: str, value: float, inputs: "ExampleBatch | None"
) -> bool:
    """Fold a factor into the norm before a readout; return False if there is none."""
    for batch in _batches(model, inputs):
        try:
            traced = trace(model, batch)
        except Exception:  # the user's forward code may raise anything
            continue
        names = traced.carriers.get(readout, ())
        modules = {name.rpartition(".")[0] for name in names}
        if len(modules) != 1:
            return False
        (module,) = modules
        _fold_into_norm(module, modules_by_name(model)[module], value)
        return True
    return False


def _batches(model: nn.Module, inputs: "ExampleBatch | None") -> "Iterator[ExampleBatch]":
    if inputs is not None:
        yield inputs
        return
    config = getattr(model, "config", None)
    if is_configuration(config):
        device = next(model.parameters()).device
        for batch in huggingface.examples(model, config):
            yield {name: tensor.to(device) for name, tensor in batch.items()}
        return
    batch = token_batch(model)
    if batch is not None:
        yield batch


def _fold_into_norm(name: str, module: nn.Module, value: float) -> None:
    """Multiply the output of a norm by changing its gain and bias."""
    width = next(module.parameters()).numel()
    example = next(module.parameters())
    x = torch.linspace(-1, 2, 2 * width, device=example.device, dtype=example.dtype)
    x = x.reshape(2, width)
    before: Tensor = module(x) * value
    start = {key: parameter.clone() for key, parameter in module.named_parameters()}
    forms: Sequence[Callable[[Tensor], Tensor]] = (
        lambda gain: gain * value,
        lambda gain: (1 + gain) * value - 1,  # stored as an offset from one
    )
    for form in forms:
        for key, parameter in module.named_parameters():
            parameter.copy_(start[key] * value if key.endswith("bias") else form(start[key]))
        if torch.allclose(module(x), before, rtol=SAME, atol=SAME * float(before.abs().max())):
            return
    message = (
        f"{name}: a hook multiplies its output by {value:.6g}, and no change of its gain and bias"
        " does the same; multiply in the model's code instead of baking"
    )
    raise InputError(message, "cannot-bake", argument="model")


def _untie(model: nn.Module, module: str, tensor: Tensor, value: float) -> None:
    """Give a readout a weight of its own."""
    registry = parameter_registry(modules_by_name(model)[module])
    registry["weight"] = nn.Parameter(tensor.detach() * value, tensor.requires_grad)
    config = getattr(model, "config", None)
    if is_configuration(config):
        config.tie_word_embeddings = False
        return
    message = (
        f"{module}.weight was tied to the embedding, and no norm can take its multiplier"
        f" {value:.6g}, so the baked model has two separate weights. Its state_dict does not load"
        " in a class that ties them"
    )
    warnings.warn(with_code(message, "baked-untied"), stacklevel=4)
