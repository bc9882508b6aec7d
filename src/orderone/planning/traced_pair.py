"""Two instances of a model to trace: a narrow and a wide one, and a batch that both accept.

Small instances of a Hugging Face model are built from the base's configuration. Any other model is
traced as it is, beside its base, if there is an example batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.observe.inventory import unwrap
from orderone.observe.trace import Trace, trace
from orderone.planning import huggingface
from orderone.planning.base import Base, Configuration, built, is_built_from, is_configuration
from orderone.planning.example_batch import token_batch
from orderone.planning.options import ExampleBatch
from orderone.torch_compat import tree_leaves, tree_map


@dataclass(frozen=True)
class Pair:
    """Two instances of a model, one wider than the other, and an example batch for both."""

    small: nn.Module
    large: nn.Module
    inputs: ExampleBatch
    growth: float  # ratio of widths, large over small
    # ratio of head sizes, target over base; None: as traced, or unknown
    head_growth: float | None
    note: str
    owned: bool  # built here, so that it may be changed

    def traces(self) -> tuple[Trace, Trace]:
        """Return the traces of the small and of the large instance."""
        return trace(self.small, self.inputs), trace(self.large, self.inputs)


class NoInstances(Exception):  # noqa: N818
    """No two instances can be traced; the message says why."""


class NoExampleBatch(NoInstances):
    """No example batch was passed, and none can be derived."""


def instances_to_trace(model: nn.Module, base: Base, inputs: ExampleBatch | None) -> Pair:
    """Return two instances to trace; raise NoInstances if there are none.

    Small instances of a Hugging Face model are built from the base's configuration. For any other
    model the instances are base and target, if there is an example batch.
    """
    if base.module is None:
        raise NoInstances("the base is a saved plan, not a model")
    inner = unwrap(model)
    ours = getattr(inner, "config", None)
    theirs = getattr(base.module, "config", None)
    if is_configuration(ours) and is_configuration(theirs):
        if is_built_from(inner, ours):
            return _small_instances(inner, ours, theirs, inputs)
        if inputs is None:
            inputs = _example_that_runs(inner, base.module, ours)
    derived = None
    if inputs is None:
        derived = token_batch(inner, base.module)
        if derived is not None and not derived.is_meta:
            if _failure(inner, derived) or _failure(base.module, derived):
                derived = None
            else:
                derived = derived
    batch = derived if inputs is None else inputs
    if batch is None:
        raise NoExampleBatch(
            "no example batch; pass plan(..., inputs=...) to find multipliers in the forward code"
        )
    pair = _base_and_target(inner, base.module, batch)
    if derived is not None:
        return replace(pair, note="probe: base and target on random token indices")
    return pair


def _example_that_runs(
    model: nn.Module, base: nn.Module, config: Configuration
) -> ExampleBatch | None:
    """Return a random batch for a Hugging Face model that was changed after it was built."""
    if any(p.is_meta for p in (*model.parameters(), *base.parameters())):
        return None
    for batch in huggingface.examples(model, config):
        if _failure(model, batch) is None and _failure(base, batch) is None:
            return batch
    return None


def _base_and_target(model: nn.Module, base: nn.Module, inputs: ExampleBatch) -> Pair:
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
    return Pair(
        small=base,
        large=model,
        inputs=inputs,
        growth=_usual_growth(base, model),
        head_growth=None,
        note="probe: base and target on the example batch",
        owned=False,
    )


def _usual_growth(base: nn.Module, model: nn.Module) -> float:
    """Return the ratio by which most axes of equally named tensors grow."""
    base_parameters = dict(base.named_parameters())
    ratios: list[float] = []
    for name, parameter in model.named_parameters():
        counterpart = base_parameters.get(name)
        if counterpart is None or counterpart.dim() != parameter.dim():
            continue
        for size, base_size in zip(parameter.shape, counterpart.shape, strict=True):
            if size != base_size:
                ratios.append(size / base_size)
    if not ratios:
        return 1.0
    return max(set(ratios), key=ratios.count)


def _small_instances(
    model: nn.Module, ours: Configuration, theirs: Configuration, inputs: ExampleBatch | None
) -> Pair:
    """Build a small base, and the same four times as wide."""
    try:
        narrow, wide = huggingface.small_pair(model, ours, theirs)
        small = built(model, narrow, device="cpu").float()
        large = built(model, wide, device="cpu").float()
        # a model without known inputs has an empty example
        batches: list[ExampleBatch] = [one for one in huggingface.examples(small, narrow) if one]
    except Exception as error:  # configurations may raise anything when they are changed
        raise NoInstances(
            f"small instances could not be built ({type(error).__name__}: {error})"
        ) from error
    without_values = any(isinstance(x, Tensor) and x.is_meta for x in tree_leaves(inputs))
    if inputs is not None and not without_values:
        batches.append(tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, inputs))
    if without_values and not batches:
        raise NoInstances(
            "the example batch is on the meta device and has no values; pass one on the CPU"
        )

    def like_the_target() -> nn.Module:
        config = huggingface.proportional_to(model, ours, theirs)
        return built(model, config, device="cpu").float()

    batch = _first_that_runs(small, batches, like_the_target)
    widths = dict.fromkeys((huggingface.width_of(narrow), huggingface.width_of(wide)))
    grows = narrow.to_dict() != wide.to_dict()
    return Pair(
        small=small,
        large=large,
        inputs=batch,
        growth=huggingface.GROWTH if grows else 1.0,
        head_growth=huggingface.head_growth(ours, theirs),
        note=f"probe: small instances of width {' and '.join(widths)}",
        owned=True,
    )


def _first_that_runs(
    small: nn.Module, batches: list[ExampleBatch], like_the_target: Callable[[], nn.Module]
) -> ExampleBatch:
    """Return the first batch that the small instance accepts.

    If it accepts none and a small copy of the target does, the sizes of the base are inconsistent.
    """
    errors: list[Exception] = []
    for batch in batches:
        error = _failure(small, batch)
        if error is None:
            return batch
        errors.append(error)
    if not errors:
        raise NoInstances(
            "no example batch is known for this kind of model; pass plan(..., inputs=...)"
        )
    first_error = f"{type(errors[0]).__name__}: {errors[0]}"
    copy = like_the_target()
    if any(_failure(copy, batch) is None for batch in batches):
        message = (
            f"base: a model of these sizes does not run ({first_error}); change sizes together that"
            " depend on each other, such as num_attention_heads and num_key_value_heads, or"
            " hidden_size and intermediate_size"
        )
        raise InputError(message, "inconsistent-sizes", argument="base")
    raise NoInstances(
        f"the forward pass failed ({first_error}); pass an example batch that works:"
        " plan(..., inputs=...)"
    )


def _failure(model: nn.Module, inputs: ExampleBatch) -> Exception | None:
    try:
        trace(model, inputs)
    except Exception as error:  # the model's forward code may raise anything
        return error
    return None
