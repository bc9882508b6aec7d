"""The only file that changes a model: it rescales initial values, installs multipliers as hooks,
and marks the model as one that a plan was applied to.

Values are rescaled, not drawn again: the distribution and the seed are those of the model. A tensor
with the right size is not touched, so that at base size every bit stays the same. Values are drawn
(`draw`) if a start sets the size of a tensor, and for memory that was never written: a model on the
meta device, moved by `to_empty`.
"""

import math
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, with_code
from orderone.observe.inventory import modules_by_name
from orderone.optimizers.row_rates import row_index
from orderone.planning.draw import draw
from orderone.planning.initial import Initial, measure
from orderone.torch_compat import (
    first_local_row,
    forward_hook_registry,
    forward_pre_hook_registry,
    forward_pre_hooks_with_kwargs,
    is_dynamo_imported,
    local_tensor,
    version_counter,
)

if TYPE_CHECKING:
    from orderone.planning.plan import Multiplier, Plan
    from orderone.planning.plan_row import Row

# a tensor whose size changed by this factor since the plan was made looks trained or loaded
DRIFT = 1.5
# sizes whose logarithms are closer than this count as equal, apart from the noise of few entries
SAME = 0.1
# token of the plan that was applied to a model
_MARKS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def sizes_now(tensors: Mapping[str, Tensor]) -> dict[str, Initial | None]:
    """Return the present sizes of tensors; None for those on the meta device."""
    sizes: dict[str, Initial | None] = {}
    for name, tensor in tensors.items():
        sizes[name] = None
        if not tensor.is_meta:
            sizes[name] = measure(tensor)
    return sizes


class ApplyError(InputError, RuntimeError):
    """A plan cannot be applied to a model in its present state."""


def apply(plan: "Plan", model: nn.Module, fresh: bool) -> None:
    """Rescale the tensors of `model`, install the multipliers of `plan`, and mark the model."""
    _refuse_second_time(plan, model, fresh)
    tensors = plan.tensors()
    _require_memory(tensors)
    missing = _missing(plan, model)
    now = {name: measure(tensor) for name, tensor in tensors.items()}
    blank = _blank(plan, tensors, now)
    if not fresh:
        for row in plan.rows:
            if row.name not in blank and row.trained:
                _must_be_initial(row, now[row.name], plan.planned.get(row.name))
    modules = modules_by_name(model)
    resized: set[str] = set()
    for row in plan.rows:
        if row.shape != row.base_shape:
            resized.update(row.uses)
    with torch.no_grad():
        for row in plan.rows:
            if row.name in blank or row.draw is not None:
                draw(row, tensors[row.name], [modules[path] for path in row.uses])
            else:
                if _is_rescaled(row, resized):
                    _rescale(row, tensors[row.name], now[row.name])
                if row.init_scale != 1:
                    tensors[row.name].mul_(row.init_scale)
            if row.trained:
                _rescale_blocks(row, tensors[row.name])
    _install(missing)
    _MARKS[model] = plan.token


def _refuse_second_time(plan: "Plan", model: nn.Module, fresh: bool) -> None:
    """Raise an ApplyError if this plan, or another one, has changed the model already."""
    if plan.applied and not fresh:
        message = (
            "this plan has been applied already; applying it again would scale the weights twice."
            " To continue from a checkpoint, load it and use plan.attach(model).optimizer(). For"
            " new weights, call plan.apply(fresh=True)"
        )
        raise ApplyError(message, "already-applied")
    if model in _MARKS and not (fresh and plan.applied):
        message = "another plan has been applied to this model; build a new model for a new plan"
        raise ApplyError(message, "already-applied", argument="model")


def _require_memory(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_meta:
            message = (
                f"{name} is on the meta device and has no memory; call model.to_empty(device=...)"
                " first"
            )
            raise ApplyError(message, "model-without-memory", argument="model")


def mark_of(model: nn.Module) -> str | None:
    """Return the token of the plan that was applied to the model, if there is one."""
    return _MARKS.get(model)


def _rescale(row: "Row", tensor: Tensor, now: Initial) -> None:
    if now.rms == 0 or row.rule_std == 0:
        return
    scale = row.rule_std / now.rms
    if scale != 1:
        tensor.mul_(scale)


def _rescale_blocks(row: "Row", tensor: Tensor) -> None:
    """Scale the rows with sizes of their own, relative to the rest of the tensor."""
    for block in row.blocks:
        scale = block.factors.std / row.factors.std
        if scale == 1:
            continue
        local = local_tensor(tensor)
        start = first_local_row(tensor, block.axis)
        stop = start + local.shape[block.axis]
        index = row_index(block.ranges, local.device, start, stop)
        rows = local.index_select(block.axis, index)
        local.index_copy_(block.axis, index, rows * scale)


def _is_rescaled(row: "Row", resized: set[str]) -> bool:
    """Return whether a tensor is rescaled.

    A tensor with the shape of the base and factor 1 is not, so that not even noise of the
    measurement changes it. But torch initializes a bias by the fan-in of its module, and GPT-2 some
    matrices by the depth; these may have grown.
    """
    if not row.trained:
        return False
    by_fan_in = row.name.endswith("bias") and not resized.isdisjoint(row.uses)
    return row.shape != row.base_shape or row.factors.std != 1 or row.depth != 1 or by_fan_in


def _blank(plan: "Plan", tensors: Mapping[str, Tensor], now: Mapping[str, Initial]) -> set[str]:
    """Return the tensors whose memory was never written.

    They had no memory when the plan was made, and no in-place operation changed them since. If all
    such tensors have plausible sizes, values were assigned to them (assignment does not raise the
    version counter), and none is blank. If one is implausible, all are blank: reused memory can
    look plausible by chance.
    """
    untouched: list[Row] = []
    for row in plan.rows:
        without_memory = plan.planned.get(row.name, now[row.name]) is None
        if without_memory and version_counter(tensors[row.name]) == 0:
            untouched.append(row)
    if all(_is_plausible(row, now[row.name]) for row in untouched):
        return set()
    return {row.name for row in untouched}


def _is_plausible(row: "Row", now: Initial) -> bool:
    if row.init_std == 0:
        return now.rms < 1e3
    random = row.constant is not None or now.constant is None
    return random and row.init_std / 1e3 < now.rms < row.init_std * 1e3


def _must_be_initial(row: "Row", now: Initial, planned: Initial | None) -> None:
    """Raise an ApplyError if a tensor does not look like an initialization."""
    if planned is not None and not math.isfinite(now.rms):
        raise ApplyError(
            f"{row.name} has entries that are not finite; initialize the model again",
            argument="model",
        )
    is_constant = row.constant is not None and row.draw is None
    trained = is_constant and now.constant is None
    drifted = planned is not None and not planned.rms / DRIFT <= now.rms <= planned.rms * DRIFT
    if trained or drifted:
        if trained:
            sign = "varies, but starts as a constant"
        else:
            sign = "has another size than when the plan was made"
        message = (
            f"{row.name} {sign}: these weights look trained or loaded, and `apply` would rescale"
            " them. Load a checkpoint after `apply`, or use plan.attach(model) without `apply`. If"
            " they are a new initialization, call plan.apply(fresh=True)"
        )
        raise ApplyError(message, "weights-look-trained", argument="model")


@dataclass(frozen=True)
class _Scale:
    """A hook that can be copied and pickled with its module."""

    value: float


class _Input(_Scale):
    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if inputs:
            return (inputs[0] * self.value, *inputs[1:]), named
        (name, first), *rest = named.items()
        return inputs, {name: first * self.value, **dict(rest)}


class _Output(_Scale):
    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return output * self.value


def install(plan: "Plan", model: nn.Module) -> None:
    """Install the multipliers of a plan as hooks, unless the model has them already."""
    _install(_missing(plan, model))


def remove(plan: "Plan", model: nn.Module) -> None:
    """Remove the hooks of a plan's multipliers."""
    modules = modules_by_name(model)
    for multiplier in plan.multipliers:
        hooks = _hooks(modules[multiplier.module], multiplier)
        for key, hook in list(hooks.items()):
            if isinstance(hook, _Scale):
                forward_pre_hooks_with_kwargs(modules[multiplier.module]).pop(key, None)
                del hooks[key]
    _recompile(plan.multipliers)


def _missing(plan: "Plan", model: nn.Module) -> "list[tuple[nn.Module, Multiplier]]":
    """Return the multipliers that the model lacks; a deep copy has those of its original."""
    modules = modules_by_name(model)
    missing: list[tuple[nn.Module, Multiplier]] = []
    for multiplier in plan.multipliers:
        module = modules[multiplier.module]
        is_present = False
        for hook in _hooks(module, multiplier).values():
            if not isinstance(hook, _Scale):
                continue
            is_present = True
            if hook.value != multiplier.value:
                message = (
                    f"{multiplier.module} has a multiplier of another plan; build a new model for a"
                    " new plan"
                )
                raise ApplyError(message, "already-applied", argument="model")
        if not is_present:
            missing.append((module, multiplier))
    return missing


def _hooks(module: nn.Module, multiplier: "Multiplier") -> MutableMapping[int, Any]:
    if multiplier.side == "input":
        return forward_pre_hook_registry(module)
    return forward_hook_registry(module)


def _install(missing: "list[tuple[nn.Module, Multiplier]]") -> None:
    for module, multiplier in missing:
        if multiplier.side == "input":
            module.register_forward_pre_hook(_Input(multiplier.value), with_kwargs=True)
        else:
            module.register_forward_hook(_Output(multiplier.value))
    _recompile(missing)


def _recompile(changed: Sequence[object]) -> None:
    """Reset torch.compile: code that it compiled before ignores new hooks."""
    if changed and is_dynamo_imported():
        torch.compiler.reset()


# --- a plan that was not applied ------------------------------------------------------------------


def remind(plan: "Plan", model: nn.Module, optimizer: Optimizer) -> None:
    """Warn at the first step if the optimizer of a plan is used without `apply`.

    Such a training runs without errors, but with other initial sizes than planned. There is no
    warning before the first step, since `apply` may follow.
    """
    steps = count()

    # the hook stays: a hook cannot be removed while hooks are called
    def first_step(*_: object) -> None:
        if next(steps) > 0 or plan.applied or mark_of(model) is not None:
            return
        if _would_change(plan):
            message = (
                "the plan was not applied to the model that this optimizer trains: initial sizes"
                " and multipliers are not those of the plan; call plan.apply() before the first"
                " step"
            )
            warnings.warn(with_code(message, "plan-not-applied"), stacklevel=4)

    optimizer.register_step_pre_hook(first_step)


def _would_change(plan: "Plan") -> bool:
    if plan.multipliers:
        return True
    return any(row.trained and _is_off(row, plan.planned.get(row.name)) for row in plan.rows)


def _is_off(row: "Row", now: Initial | None) -> bool:
    if row.draw is not None:
        return True
    if row.init_std > 0 and any(block.init_std != row.init_std for block in row.blocks):
        return True
    if now is None or min(now.rms, row.init_std) <= 0:
        return False
    noise = 2 / math.sqrt(math.prod(row.shape))
    return abs(math.log(row.init_std / now.rms)) > SAME + noise
