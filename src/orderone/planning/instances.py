"""Two real instances of a model, one wider than the other, and something to feed them.

A Hugging Face model is built again, small, from the base's configuration. Any other model is its
own two instances, base and target, if an example batch is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from orderone.observe.inventory import unwrap
from orderone.observe.trace import Trace, trace
from orderone.planning import huggingface
from orderone.planning.base import Base, built, is_configuration
from orderone.torch_compat import tree_map


@dataclass(frozen=True)
class Pair:
    small: nn.Module
    large: nn.Module
    inputs: Any
    growth: float  # of the width, from small to large
    head_growth: (
        float | None
    )  # of the head size, from the base to the target; None: as seen, or not known
    told: str
    owned: bool  # made here, and free to be changed

    def traces(self) -> tuple[Trace, Trace]:
        return trace(self.small, self.inputs), trace(self.large, self.inputs)


class NoInstances(Exception):  # noqa: N818
    """Why there is nothing to look at."""


def pair(model: nn.Module, base: Base, inputs: Any) -> Pair:
    if base.module is None:
        raise NoInstances("the base is a saved plan, not a model")
    inner = unwrap(model)
    ours = getattr(inner, "config", None)
    theirs = getattr(base.module, "config", None)
    if is_configuration(ours) and is_configuration(theirs):
        return _small_ones(inner, ours, theirs, inputs)
    if inputs is None:
        raise NoInstances(
            "no example batch; give one (plan(..., inputs=...)) to see what the forward code"
            " multiplies with"
        )
    return _themselves(inner, base.module, inputs)


def _themselves(model: nn.Module, base: nn.Module, inputs: Any) -> Pair:
    parameters = [*model.parameters(), *base.parameters()]
    if any(p.is_meta for p in parameters):
        raise NoInstances(
            "base or target is on the meta device, where constants cannot be read; build both on"
            " the CPU"
        )
    if any(hasattr(p, "device_mesh") for p in parameters):
        raise NoInstances("the model is sharded; make the plan before sharding it")
    if len({p.device for p in parameters}) > 1:
        raise NoInstances("base and target are on different devices; put them on one")
    growth = _usual_growth(base, model)
    return Pair(
        base, model, inputs, growth, None, "probe: base and target, on the batch given", owned=False
    )


def _usual_growth(base: nn.Module, model: nn.Module) -> float:
    shapes = dict(base.named_parameters())
    ratios = [
        new / old
        for name, p in model.named_parameters()
        if name in shapes and shapes[name].dim() == p.dim()
        for new, old in zip(p.shape, shapes[name].shape, strict=True)
        if new != old
    ]
    if ratios:
        return max(set(ratios), key=ratios.count)
    return 1.0


def _small_ones(model: nn.Module, ours: Any, theirs: Any, inputs: Any) -> Pair:
    try:
        configurations = huggingface.small_pair(model, ours, theirs)
        small, large = (built(model, config, device="cpu").float() for config in configurations)
        batches = list(huggingface.examples(small, configurations[0]))
    except Exception as error:  # configurations may refuse to be changed in ways of their own
        raise NoInstances(
            f"small instances could not be built ({type(error).__name__}: {error})"
        ) from error
    if inputs is not None:
        batches.append(tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, inputs))
    batch = _one_that_runs(
        small, [b for b in batches if b], lambda: _like_the_target(model, ours, theirs)
    )
    widths = dict.fromkeys(map(huggingface.width_of, configurations))
    if configurations[0].to_dict() != configurations[1].to_dict():
        growth = huggingface.GROWTH
    else:
        growth = 1.0
    told = f"probe: small instances of width {' and '.join(widths)}"
    return Pair(
        small, large, batch, growth, huggingface.head_growth(ours, theirs), told, owned=True
    )


def _like_the_target(model: nn.Module, ours: Any, theirs: Any) -> nn.Module:
    return built(model, huggingface.proportional_to(model, ours, theirs), device="cpu").float()


def _one_that_runs(
    small: nn.Module, batches: list[Any], like_the_target: Callable[[], nn.Module]
) -> Any:
    """If the base does not run and a small copy of the target does, the base is no model at all."""
    errors = [_failure(small, batch) for batch in batches]
    if None in errors:
        return batches[errors.index(None)]
    if not errors:
        raise NoInstances(
            "no example batch is known for this kind of model; give one: plan(..., inputs=...)"
        )
    told = f"{type(errors[0]).__name__}: {errors[0]}"
    copy = like_the_target()
    if any(_failure(copy, batch) is None for batch in batches):
        raise ValueError(
            f"base: a model of these sizes does not run ({told}); give everything that belongs"
            " together, such as num_attention_heads with num_key_value_heads, hidden_size with"
            " intermediate_size"
        )
    raise NoInstances(
        f"the forward pass failed ({told}); give an example batch that works: plan(..., inputs=...)"
    )


def _failure(model: nn.Module, inputs: Any) -> Exception | None:
    try:
        trace(model, inputs)
    except Exception as error:  # the model's forward code may raise anything
        return error
    return None
