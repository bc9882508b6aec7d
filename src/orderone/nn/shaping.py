"""Replace the activations of a model by shaped ones, in place, and restore them later.

    shaping = shape_activations(model, depth=48)
    ...
    shaping.undo()                                  # or: with shape_activations(...): ...

Slopes are s_+- = 1 + c_+- / sqrt(depth), and scales s = a sqrt(depth). The network as a whole then
has the nonlinearity of the limits (2.7) and (3.18) of S3 at t = 1, for every depth. With `p`,
width^p replaces sqrt(depth), as in (2.5) and (2.6), 0 <= p <= 1/2; with the width alone, p is 1/2.
The random part of the limit depends on depth / width and not on the shape.

With method="dks" or "tat", activations are transformed instead, so that the kernel of the whole
network has prescribed properties (`theory.kernel_shaping`); these need the depth.

Activations are modules, or functions that a module has as an attribute, such as F.relu in the
Transformer layers of torch.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from orderone.core.errors import InputError, instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.nn.inputs import Model, ModuleNames
from orderone.nn.shaped import (
    ShapedActivation,
    ShapedReLU,
    TransformedActivation,
    derivatives,
    is_bent,
)
from orderone.theory.kernel_shaping import (
    deep_kernel_shaping,
    tailored_slope,
    tailored_smooth,
)
from orderone.torch_compat import MODULE_HOOKS

METHODS = ("shaped", "dks", "tat")
NEW = (ShapedReLU, ShapedActivation, TransformedActivation)
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
UNSUPPORTED = (  # the slope at 0 is trained, or it is 0
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
# Module of its activation classes; all that have a slope at 0 are smooth.
HUGGING_FACE = "transformers.activations"
LARGEST = 10**15  # bound of depth and width
# Attributes of torch's Transformer layers that select its fused kernel, which supports only ReLU
# and GELU.
FUSED = ("activation_relu_or_gelu", "use_nested_tensor")


@dataclass
class Shaping:
    """Replaced activations by their names in the model; `undo` restores them."""

    model: nn.Module
    replaced: Mapping[str, object]  # modules, and functions that were attributes of modules
    strength: float  # 1 / sqrt(depth), or width^-p
    _fused: tuple[tuple[nn.Module, str, Any], ...] = field(default=(), repr=False)
    _undone: bool = field(default=False, repr=False)

    def undo(self) -> None:
        """Restore the original activations. A second call does nothing."""
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
    method: Name = "shaped",
    target: Number | None = None,
) -> Shaping:
    """Replace every activation with a kink by a `ShapedReLU`, others by a `ShapedActivation`.

    `method="dks"` (Deep Kernel Shaping) and `method="tat"` (Tailored Activation Transformations)
    replace them by a `TransformedActivation` for `depth` layers in a row; for kinks, TAT takes a
    `ShapedReLU`. `target` is then zeta (1.5) of DKS, eta (0.9, kinks) or tau (0.3, smooth) of TAT.
    Weights need the variance 1 / fan_in, or for a `ShapedReLU` its gain.

    `depth` is the number of layers with an activation, on the longest path. `keep` names modules
    that stay unchanged, such as gates. Weights are not changed: give them the standard deviation
    `gain` / sqrt(fan_in), with the gain of their activation. Hooks move to the new modules and
    back. Torch's fused kernel for Transformer layers is switched off where it would use the old
    activation.

    Functions are replaced where a module has them as attributes (F.relu); calls inside `forward`
    cannot be replaced. Raise an InputError if there is nothing to replace, or an activation that
    has no shaped form (PReLU, Softshrink, ...).
    """
    instance(model, nn.Module, "model", "pass the network whose activations to shape")
    method = one_of(method, METHODS, "method")
    if method == "shaped":
        strength = _strength(depth, width, p)
        _refuse(target, "target", 'only method="dks" and "tat" have a target')
    else:
        layers = count(depth, "depth", most=LARGEST)
        strength = layers**-0.5
        _refuse(width, "width", f"method={method!r} depends on depth only")
        _refuse(p, "p", f"method={method!r} depends on depth only")
    if any(isinstance(module, NEW) for module in model.modules()):
        raise InputError(
            "model: expected a model without shaped activations, got one that has them; undo the"
            " first shaping before the next",
            "already-shaped",
            argument="model",
        )
    candidates = _candidates(model)
    unchanged = _check_names(keep, candidates)
    shaped: dict[str, nn.Module] = {}
    for name, activation in candidates.items():
        if name in unchanged:
            continue
        module = _shaped(activation, name, strength, c_plus, c_minus, a)
        if module is not None and method != "shaped":
            module = _transformed(activation, module, method, round(strength**-2), target)
        if module is not None:
            shaped[name] = module
    replaced = {name: candidates[name] for name in shaped}
    return _replace(model, replaced, shaped, strength)


def _candidates(model: nn.Module) -> dict[str, object]:
    """Return all modules, and the activation functions among their attributes, by name."""
    modules = dict(model.named_modules(remove_duplicate=False))
    functions: dict[str, object] = {}
    for name, module in modules.items():
        if name:
            prefix = f"{name}."
        else:
            prefix = ""
        for attribute, value in vars(module).items():
            if _is_one_of(value, SUPPORTED_FUNCTIONS + UNSUPPORTED_FUNCTIONS):
                functions[prefix + attribute] = value
    return {**modules, **functions}


def _is_one_of(value: object, names: tuple[str, ...]) -> bool:
    """Return whether `value` is a function of torch with one of these names.

    The function may be in torch or torch.nn.functional, with or without settings (`partial`).
    """
    if isinstance(value, partial):
        function = value.func
    else:
        function = value
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
        raise InputError(
            f"model: expected activations with a fixed slope at 0, got {kind} at {name!r}; "
            f"to leave it unchanged, pass keep=[{name!r}]",
            "no-shaped-form",
            argument="model",
        )
    return None


def _transformed(
    activation: object, shaped: nn.Module, method: str, depth: int, target: Number | None
) -> nn.Module:
    """Return the activation of DKS or TAT; `shaped` tells whether it has a kink."""
    kinked = isinstance(shaped, ShapedReLU)
    if kinked and method == "tat":
        return ShapedReLU(1.0, tailored_slope(depth, 0.9 if target is None else target))
    phi: Any = activation
    if isinstance(activation, nn.Module):
        phi = _without_hooks(activation)
        if getattr(phi, "inplace", False):
            phi.inplace = False  # the transformed input is needed for the gradient

    def values(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return derivatives(phi, x)

    if method == "dks":
        shaping = deep_kernel_shaping(values, depth, 1.5 if target is None else target)
    else:
        shaping = tailored_smooth(values, depth, 0.3 if target is None else target)
    return TransformedActivation(phi, *shaping)


def _refuse(value: object, name: str, reason: str) -> None:
    if value is not None:
        raise InputError(f"{name}: expected None, because {reason}; got {value!r}", argument=name)


def _check_names(keep: ModuleNames, candidates: Mapping[str, object]) -> tuple[str, ...]:
    if isinstance(keep, str):
        names = (keep,)
    else:
        names = tuple(keep)
    for name in names:
        if name not in candidates:
            raise InputError(
                "keep: expected names from model.named_modules(), or of functions that are their"
                f" attributes; got {name!r}",
                "unknown-name",
                argument="keep",
            )
    return names


def _replace(
    model: nn.Module, old: Mapping[str, object], new: Mapping[str, nn.Module], strength: float
) -> Shaping:
    if "" in new:
        raise InputError(
            f"model: expected a network that contains activations, got the activation {model!r};"
            " use ShapedReLU or ShapedActivation",
            argument="model",
        )
    if not new:
        known = ", ".join(kind.__name__ for kind in KINKED + SMOOTH)
        raise InputError(
            f"model: expected activation modules ({known}), got none; calls of functions such as"
            " torch.relu cannot be replaced, use nn.ReLU() in the model instead",
            "no-activations",
            argument="model",
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
    """Yield the flags by which torch would skip a replaced module, with module and value."""
    for name, module in model.named_modules():
        if name:
            prefix = f"{name}."
        else:
            prefix = ""
        if not any(inner.startswith(prefix) for inner in new):
            continue
        for flag in FUSED:
            if hasattr(module, flag):
                yield module, flag, getattr(module, flag)


def _without_hooks(module: nn.Module) -> nn.Module:
    """Return a copy without hooks, which move to the shaped module."""
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
    raise InputError(
        f"depth, width: expected depth alone, or width with or without p; got {got}; pass"
        " depth=number of layers",
        argument="depth",
    )


def _put(model: nn.Module, name: str, activation: object) -> None:
    """Set the attribute `name` of the model to a module or function."""
    parent, _, leaf = name.rpartition(".")
    owner = model.get_submodule(parent)
    if not isinstance(activation, nn.Module) and isinstance(getattr(owner, leaf, None), nn.Module):
        delattr(owner, leaf)  # torch refuses to assign a function over a module
    setattr(owner, leaf, activation)
