"""The one file that changes a model: it rescales initial values, installs the multipliers as hooks,
and marks the model as one that a plan was applied to.

Values are rescaled, not drawn anew: the model keeps its own distribution and its own seed, and a
tensor whose size is right is not touched, so that at base size every bit stays. Only memory that
was never written (a model built on the meta device and moved by `to_empty`) is drawn here.
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

from orderone.observe.inventory import modules_by_name
from orderone.planning.base import Initial, measure
from orderone.torch_compat import (
    forward_hook_registry,
    forward_pre_hook_registry,
    forward_pre_hooks_with_kwargs,
    is_dynamo_imported,
    version_counter,
)

if TYPE_CHECKING:
    from orderone.planning.plan import Multiplier, Plan, Row

# a tensor whose size changed by this much since it was planned is not the one that was planned
DRIFT = 1.5
# logarithms of sizes nearer than this are those of the plan, but for the noise of few entries
SAME = 0.1
# the mark on a model that a plan was applied to: the token of the plan
_MARKS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def sizes_now(tensors: Mapping[str, Tensor]) -> dict[str, Initial | None]:
    """The sizes of tensors when they are planned; None on the meta device."""
    sizes: dict[str, Initial | None] = {}
    for name, tensor in tensors.items():
        sizes[name] = None if tensor.is_meta else measure(tensor)
    return sizes


def apply(plan: "Plan", model: nn.Module, fresh: bool) -> None:
    if plan.applied and not fresh:
        raise RuntimeError(
            "this plan has been applied already, and applying it again would scale twice. A"
            " checkpoint keeps its scale: load it and go on with plan.attach(model).optimizer()."
            " For new weights, say plan.apply(fresh=True)"
        )
    if model in _MARKS and not (fresh and plan.applied):
        raise RuntimeError(
            "a plan has been applied to this model already; build a new model for a new plan"
        )
    tensors = plan.tensors()
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise RuntimeError(
                f"{name} is on the meta device and has no memory; call"
                " model.to_empty(device=...) first"
            )
    missing = _missing(plan, model)
    now = {name: measure(tensor) for name, tensor in tensors.items()}
    blank = _blank(plan, tensors, now)
    if not fresh:
        for row in plan.rows:
            if row.name not in blank and row.trained:
                _must_be_initial(row, now[row.name], plan.planned.get(row.name))
    resized: set[str] = set()
    for row in plan.rows:
        if row.shape != row.base_shape:
            resized.update(row.uses)
    with torch.no_grad():
        for row in plan.rows:
            if row.name in blank:
                _draw(row, tensors[row.name])
            elif _to_be_scaled(row, resized):
                _rescale(row, tensors[row.name], now[row.name])
    _install(missing)
    _MARKS[model] = plan.token


def mark_of(model: nn.Module) -> str | None:
    """Return the token of the plan that was applied to the model, if there is one."""
    return _MARKS.get(model)


def _rescale(row: "Row", tensor: Tensor, now: Initial) -> None:
    if now.rms == 0 or row.init_std == 0:
        return
    scale = row.init_std / now.rms
    if scale != 1:
        tensor.mul_(scale)


def _to_be_scaled(row: "Row", resized: set[str]) -> bool:
    """A tensor of the base's shape and with factor 1 is the base's tensor: not even noise of the
    measurement gets in. But torch draws a bias by the fan-in of its module, and GPT-2 some matrices
    by the depth, and these may have grown."""
    if not row.trained:
        return False
    by_fan_in = row.name.endswith("bias") and not resized.isdisjoint(row.uses)
    return row.shape != row.base_shape or row.factors.std != 1 or row.depth != 1 or by_fan_in


def _blank(plan: "Plan", tensors: Mapping[str, Tensor], now: Mapping[str, Initial]) -> set[str]:
    """Never written: planned without memory, and no in-place operation since. All of them or none:
    freed memory that is given out again looks written here and there; assigned values, which leave
    no trace either, look so everywhere."""
    untouched: list[Row] = []
    for row in plan.rows:
        without_memory = plan.planned.get(row.name, now[row.name]) is None
        if without_memory and version_counter(tensors[row.name]) == 0:
            untouched.append(row)
    if all(_looks_written(row, now[row.name]) for row in untouched):
        return set()
    return {row.name for row in untouched}


def _looks_written(row: "Row", now: Initial) -> bool:
    if row.init_std == 0:
        return now.rms < 1e3
    random = row.constant is not None or now.constant is None
    return random and row.init_std / 1e3 < now.rms < row.init_std * 1e3


def _draw(row: "Row", tensor: Tensor) -> None:
    if row.constant is not None:
        tensor.fill_(row.constant)
    elif hasattr(tensor, "device_mesh"):
        _draw_spread(row, tensor)
    else:
        tensor.normal_(std=row.init_std)


def _draw_spread(row: "Row", tensor: Any) -> None:
    """On a mesh of CPUs, processes with the same seed would draw the same shard: draw the whole,
    and take a part."""
    from torch.distributed.tensor import distribute_tensor

    if tensor.device_mesh.device_type != "cpu":
        tensor.normal_(std=row.init_std)
        return
    whole = torch.empty(row.shape, dtype=tensor.dtype).normal_(std=row.init_std)
    tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))


def _must_be_initial(row: "Row", now: Initial, planned: Initial | None) -> None:
    if planned is not None and not math.isfinite(now.rms):
        raise RuntimeError(
            f"{row.name} is not finite: its initialization is broken, and no scale would mend it"
        )
    trained = row.constant is not None and now.constant is None
    drifted = planned is not None and not planned.rms / DRIFT <= now.rms <= planned.rms * DRIFT
    if trained or drifted:
        if trained:
            sign = "varies, though it starts as a constant"
        else:
            sign = "has another size than when it was planned"
        raise RuntimeError(
            f"{row.name} {sign}: these weights look trained or loaded, and `apply` would rescale"
            " them. A checkpoint keeps its scale: load it after `apply`, or use plan.attach(model)"
            " without `apply`. If they are a new initialization, say plan.apply(fresh=True)"
        )


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
    _install(_missing(plan, model))


def remove(plan: "Plan", model: nn.Module) -> None:
    modules = modules_by_name(model)
    for multiplier in plan.multipliers:
        hooks = _hooks(modules[multiplier.module], multiplier)
        for key, hook in list(hooks.items()):
            if isinstance(hook, _Scale):
                forward_pre_hooks_with_kwargs(modules[multiplier.module]).pop(key, None)
                del hooks[key]
    _recompile(plan.multipliers)


def _missing(plan: "Plan", model: nn.Module) -> "list[tuple[nn.Module, Multiplier]]":
    """Multipliers that are not there yet: a deep copy brings its hooks."""
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
                raise RuntimeError(
                    f"{multiplier.module} has a multiplier of another plan already; build a new"
                    " model for a new plan"
                )
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
    """Code that torch.compile made before does not look for new hooks."""
    if changed and is_dynamo_imported():
        torch.compiler.reset()


# --- a plan that was not applied ------------------------------------------------------------------


def remind(plan: "Plan", model: nn.Module, optimizer: Optimizer) -> None:
    """Warn once, at the first step, if the learning rates of a plan are used without its scales.

    Nothing fails in such a training, and nothing is as planned. Before the first step there is
    nothing to say: `apply` may still come.
    """
    steps = count()

    # the hook stays: hooks may not be removed while hooks are called
    def first_step(*_: object) -> None:
        if next(steps) > 0 or plan.applied or mark_of(model) is not None:
            return
        if _would_change(plan):
            warnings.warn(
                "the plan was not applied to the model that is trained: initial sizes and"
                " multipliers are not those of the plan; call plan.apply() before the first step",
                stacklevel=4,
            )

    optimizer.register_step_pre_hook(first_step)


def _would_change(plan: "Plan") -> bool:
    if plan.multipliers:
        return True
    return any(row.trained and _is_off(row, plan.planned.get(row.name)) for row in plan.rows)


def _is_off(row: "Row", now: Initial | None) -> bool:
    if now is None or min(now.rms, row.init_std) <= 0:
        return False
    noise = 2 / math.sqrt(math.prod(row.shape))
    return abs(math.log(row.init_std / now.rms)) > SAME + noise
