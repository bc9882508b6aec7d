"""Replace the activations of a model by shaped ones, in place, and put them back.

    shaping = shape_activations(model, depth=48)
    ...
    shaping.undo()                                  # or: with shape_activations(...): ...

Slopes are s_+- = 1 + c_+- / sqrt(depth), and scales s = a sqrt(depth): the whole network then bends
by the amount that the limits (2.7) and (3.18) describe for t = 1, whatever its depth. Given `p`,
width^p takes the place of sqrt(depth), as in (2.5) and (2.6), 0 <= p <= 1/2; given the width alone,
p is 1/2. What is random in the limit depends on depth / width and not on the shape.

Activations are modules, or functions that a module holds as an attribute, as torch's own
Transformer layers hold F.relu.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.nn.inputs import Model, ModuleNames
from orderone.nn.shaped import ShapedActivation, ShapedReLU, is_bent
from orderone.torch_compat import MODULE_HOOKS

KINKED = (nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.RReLU, nn.SELU)  # a kink at 0: (2.5)
# (2.6); with a kink at 0 for some settings (ELU with alpha != 1, Hardtanh from 0): then (2.5)
SMOOTH = (
    nn.Tanh,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.ELU,
    nn.CELU,
    nn.Hardtanh,
    nn.Softsign,
    nn.Hardswish,
    nn.Hardsigmoid,
)
UNSUPPORTED = (  # slopes to learn, or none at 0
    nn.PReLU,
    nn.Threshold,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Tanhshrink,
)
# Names in torch and torch.nn.functional
SUPPORTED_FUNCTIONS = (
    "relu",
    "relu_",
    "relu6",
    "leaky_relu",
    "rrelu",
    "selu",
    "tanh",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "sigmoid",
    "logsigmoid",
    "elu",
    "celu",
    "hardtanh",
    "softsign",
    "hardswish",
    "hardsigmoid",
)
UNSUPPORTED_FUNCTIONS = ("prelu", "threshold", "hardshrink", "softshrink", "tanhshrink")
# the module of its activation classes; all that have a slope at 0 are smooth
HUGGING_FACE = "transformers.activations"
LARGEST = 10**15  # of depth and width
# torch's own names of what makes it compute a layer of a Transformer by one kernel, which knows
# ReLU and GELU only
FUSED = ("activation_relu_or_gelu", "use_nested_tensor")


@dataclass
class Shaping:
    """The replaced activations by their names in the model, and the way back."""

    model: nn.Module
    replaced: Mapping[str, object]  # modules, and functions that modules held
    strength: float  # 1 / sqrt(depth), or width^-p
    _fused: tuple[tuple[nn.Module, str, Any], ...] = field(default=(), repr=False)
    _undone: bool = field(default=False, repr=False)

    def undo(self) -> None:
        """Put the original activations back. Once is enough."""
        if self._undone:
            return
        for name, activation in self.replaced.items():
            _put(self.model, name, activation)
        for owner, flag, value in self._fused:
            setattr(owner, flag, value)
        self._undone = True

    def __enter__(self) -> "Shaping":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def shape_activations(
    model: Model,
    depth: Count | None = None,
    width: Count | None = None,
    *,
    c_plus: Number = 0.0,
    c_minus: Number = -1.0,
    a: Number = 1.0,
    p: Number | None = None,
    keep: ModuleNames = (),
) -> Shaping:
    """Replace every ReLU-like activation by a `ShapedReLU`, every smooth one by a
    `ShapedActivation`.

    `depth` is the number of layers with an activation, on the longest path. `keep` names modules
    that stay as they are: gates, say. Weights stay: give them the standard deviation `gain` /
    sqrt(fan_in) of their activation. Hooks move to the new modules and back. Torch's fused kernel
    for Transformer layers is switched off where it would use the old activation. Functions are
    found where a module holds them (F.relu as an attribute); calls of functions cannot be seen.
    With nothing to replace there is an error, and with an activation that has no shaped form
    (PReLU, Softshrink, ...) too.
    """
    instance(model, nn.Module, "model", "give the network whose activations to shape")
    strength = _strength(depth, width, p)
    if any(isinstance(module, ShapedReLU | ShapedActivation) for module in model.modules()):
        raise ValueError(
            "model: expected plain activations, found shaped ones; undo the first shaping before"
            " another"
        )
    candidates = _candidates(model)
    kept = _kept(keep, candidates)
    shaped: dict[str, nn.Module] = {}
    for name, activation in candidates.items():
        if name in kept:
            continue
        module = _shaped(activation, name, strength, c_plus, c_minus, a)
        if module is not None:
            shaped[name] = module
    replaced = {name: candidates[name] for name in shaped}
    return _replace(model, replaced, shaped, strength)


def _candidates(model: nn.Module) -> dict[str, object]:
    """Return all modules, and the activation functions that they hold, by name."""
    modules = dict(model.named_modules(remove_duplicate=False))
    functions: dict[str, object] = {}
    for name, module in modules.items():
        prefix = f"{name}." if name else ""
        for attribute, value in vars(module).items():
            if _is_one_of(value, SUPPORTED_FUNCTIONS + UNSUPPORTED_FUNCTIONS):
                functions[prefix + attribute] = value
    return {**modules, **functions}


def _is_one_of(value: object, names: tuple[str, ...]) -> bool:
    """Return whether `value` is a function of torch with one of these names.

    The function may be in torch or torch.nn.functional, with or without settings (`partial`).
    """
    function = value.func if isinstance(value, partial) else value
    if not callable(function) or isinstance(function, nn.Module | type):
        return False
    for name in names:
        if function is getattr(functional, name, None) or function is getattr(torch, name, None):
            return True
    return False


def _shaped(
    activation: object, name: str, strength: float, c_plus: Number, c_minus: Number, a: Number
) -> nn.Module | None:
    """Return the shaped form of an activation, None for everything else."""
    if isinstance(activation, KINKED):
        return ShapedReLU.at(strength**-2, c_plus, c_minus)
    hugging_face = type(activation).__module__ == HUGGING_FACE
    function = _is_one_of(activation, SUPPORTED_FUNCTIONS)
    if isinstance(activation, SMOOTH) or hugging_face or function:
        phi: Any = activation
        if isinstance(activation, nn.Module):
            phi = _without_hooks(activation)
        try:
            if is_bent(phi):
                return ShapedReLU.at(strength**-2, c_plus, c_minus)
            return ShapedActivation(phi, real(a, "a") / strength)
        except ValueError:
            if not hugging_face:
                raise
    function = _is_one_of(activation, UNSUPPORTED_FUNCTIONS)
    if isinstance(activation, UNSUPPORTED) or hugging_face or function:
        kind = getattr(activation, "__name__", type(activation).__name__)
        raise ValueError(
            f"model: expected activations with a fixed slope at 0, got {kind} at {name!r}; "
            f"leave it as it is with keep=[{name!r}]"
        )
    return None


def _kept(keep: ModuleNames, candidates: Mapping[str, object]) -> tuple[str, ...]:
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    for name in names:
        if name not in candidates:
            raise ValueError(
                "keep: expected names from model.named_modules() or of functions they hold, got"
                f" {name!r}"
            )
    return names


def _replace(
    model: nn.Module, old: Mapping[str, object], new: Mapping[str, nn.Module], strength: float
) -> Shaping:
    if "" in new:
        raise ValueError(
            f"model: expected a network that holds activations, got {model!r} itself; shape that"
            " directly"
        )
    if not new:
        known = ", ".join(kind.__name__ for kind in KINKED + SMOOTH)
        raise ValueError(
            f"model: expected activation modules ({known}), found none; calls of functions such as"
            " torch.relu cannot be seen, write nn.ReLU() instead"
        )
    shaping = Shaping(model, dict(old), strength, tuple(_fused(model, new)))
    for name, module in new.items():
        before = old[name]
        if isinstance(before, nn.Module):
            for hook in MODULE_HOOKS:  # shared, so that handles still remove them
                setattr(module, hook, getattr(before, hook))
            module.train(before.training)
        _put(model, name, module)
    for owner, flag, value in shaping._fused:
        setattr(owner, flag, type(value)(0))
    return shaping


def _fused(model: nn.Module, new: Mapping[str, nn.Module]) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield every flag of a module around a replaced one that lets torch go past it."""
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if not any(inner.startswith(prefix) for inner in new):
            continue
        for flag in FUSED:
            if hasattr(module, flag):
                yield module, flag, getattr(module, flag)


def _without_hooks(module: nn.Module) -> nn.Module:
    """Return the same activation to compute with; hooks move to the module that replaces it."""
    bare = copy(module)
    for hook in MODULE_HOOKS:
        setattr(bare, hook, OrderedDict())
    return bare


def _strength(depth: Count | None, width: Count | None, p: Number | None) -> float:
    """Return 1 / sqrt(depth), or width^-p."""
    if depth is not None:
        depth = count(depth, "depth", most=LARGEST)
    if width is not None:
        width = count(width, "width", most=LARGEST)
    if depth is not None and p is None:
        return depth**-0.5
    if width is not None:
        return width ** -real(0.5 if p is None else p, "p", least=0, most=0.5)
    if depth is not None:
        got = "depth with p"
    elif p is not None:
        got = "p alone"
    else:
        got = "neither"
    raise ValueError(
        f"depth, width: expected depth, or width with p; got {got}; give depth=number of layers"
        " alone"
    )


def _put(model: nn.Module, name: str, activation: object) -> None:
    """Set the attribute `name` of the model to a module or function."""
    parent, _, leaf = name.rpartition(".")
    owner = model.get_submodule(parent)
    if not isinstance(activation, nn.Module) and isinstance(getattr(owner, leaf, None), nn.Module):
        delattr(owner, leaf)  # a function takes the place of a module only once that is gone
    setattr(owner, leaf, activation)
