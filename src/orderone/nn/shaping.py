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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import torch
from torch import nn

from orderone.core.errors import InputError, instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number, UserInput
from orderone.core.reals import real
from orderone.nn.activation_sites import (
    KINKED,
    SMOOTH,
    candidates,
    is_activation,
    is_kind,
    is_trained_activation,
    without_hooks,
)
from orderone.nn.forward_calls import functions_in_forward, is_inside
from orderone.nn.inputs import Model, ModuleNames
from orderone.nn.kernel_forms import KernelForms
from orderone.nn.shaped import ShapedActivation, ShapedReLU, TransformedActivation, is_bent
from orderone.theory.kernel_shaping import LARGEST_DEPTH, Network
from orderone.torch_compat import MODULE_HOOKS

NetworkInput: TypeAlias = Annotated[Network | None, UserInput]
METHODS = ("shaped", "dks", "tat")
NEW = (ShapedReLU, ShapedActivation, TransformedActivation)
LARGEST = 10**15  # bound of depth and width
# Attributes of torch's Transformer layers that select its fused kernel, which supports only ReLU
# and GELU.
FUSED = ("activation_relu_or_gelu", "use_nested_tensor")


@dataclass
class Shaping:
    """Replaced activations by their names in the model; `undo` restores them."""

    model: nn.Module
    replaced: Mapping[str, object]  # modules, and functions that were attributes of modules
    strength: float | None  # 1 / sqrt(depth), or width^-p; None with network=
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
    network: NetworkInput = None,
) -> Shaping:
    """Replace every activation with a kink by a `ShapedReLU`, others by a `ShapedActivation`.

    `method="dks"` (Deep Kernel Shaping) and `method="tat"` (Tailored Activation Transformations)
    replace them by a `TransformedActivation` for `depth` layers in a row; for kinks at 0, TAT takes
    a `ShapedReLU`. `target` is then zeta (1.5) of DKS, eta (0.9, kinks) or tau (0.3, smooth) of
    TAT. Weights need the variance 1 / fan_in. `network` replaces `depth` for networks that are no
    chain; the shares of their sums need squares that add up to 1
    (`theory.kernel_shaping.residual_network`). The conditions do not cover gates and attention.

    `depth` is the number of layers with an activation, on the longest path. `keep` names modules
    and functions that stay unchanged, such as gates. Weights are not changed: give them the
    standard deviation `gain` / sqrt(fan_in), with the gain of their activation. Hooks move to the
    new modules and back. Torch's fused kernel for Transformer layers is switched off where it would
    use the old activation.

    Activations are modules, and functions that modules have as attributes: those of torch and of
    Transformers, and all that act on every number alone. Raise an InputError if there are none, if
    one has no shaped form (PReLU, GLU, LSTM, ...), or if forward code calls one, such as F.relu(x).
    """
    instance(model, nn.Module, "model", "pass the network whose activations to shape")
    method = one_of(method, METHODS, "method")
    forms: ShapedForms | KernelForms
    if method == "shaped":
        strength = _strength(depth, width, p)
        _refuse(target, "target", 'only method="dks" and "tat" have a target')
        _refuse(network, "network", 'only method="dks" and "tat" use it')
        forms = ShapedForms(strength, c_plus, c_minus, a)
    else:
        _refuse(width, "width", f"method={method!r} depends on depth only")
        _refuse(p, "p", f"method={method!r} depends on depth only")
        forms, strength = _kernel_forms(method, depth, network, target)
    _check_model(model)
    found = candidates(model)
    unchanged = _check_names(keep, found)
    shaped = _new_modules(model, found, unchanged, forms)
    return _replace(model, {name: found[name] for name in shaped}, shaped, strength)


@dataclass(frozen=True)
class ShapedForms:
    """Forms (2.5) and (2.6) of S3."""

    strength: float
    c_plus: Number
    c_minus: Number
    a: Number

    def form(self, activation: Any, name: str) -> nn.Module:
        """Return the shaped activation; `name` is that of the module in the model."""
        if is_kind(activation, KINKED):
            return self._bent()
        phi = activation
        if isinstance(activation, nn.Module):
            phi = without_hooks(activation)
        try:
            if is_bent(phi):
                return self._bent()
            return ShapedActivation(phi, real(self.a, "a") / self.strength)
        except InputError as error:
            if error.code != "no-shaped-form":
                raise
            raise _no_form(activation, name) from error

    def _bent(self) -> ShapedReLU:
        return ShapedReLU.at(self.strength**-2, self.c_plus, self.c_minus)


def _kernel_forms(
    method: str, depth: Count | None, network: NetworkInput, target: Number | None
) -> tuple[KernelForms, float | None]:
    """Return the forms of DKS or TAT, and 1 / sqrt(depth)."""
    if network is None:
        layers = count(depth, "depth", most=LARGEST_DEPTH)
        return KernelForms(method, layers, target), layers**-0.5
    _refuse(depth, "depth", "network says how layers are composed")
    if not callable(network):
        raise InputError(
            "network: expected a function M(c, layer), such as"
            f" kernel_shaping.residual_network(blocks=16); got {network!r}",
            argument="network",
        )
    return KernelForms(method, network, target), None


def _check_model(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "model: expected a model in Python, got one of torch.jit, whose code is fixed; shape it"
            " before torch.jit.script",
            argument="model",
        )
    if any(isinstance(module, NEW) for module in model.modules()):
        raise InputError(
            "model: expected a model without shaped activations, got one that has them; undo the"
            " first shaping before the next",
            "already-shaped",
            argument="model",
        )


def _new_modules(
    model: nn.Module,
    found: Mapping[str, object],
    unchanged: tuple[str, ...],
    forms: ShapedForms | KernelForms,
) -> dict[str, nn.Module]:
    """Return the shaped activations by name; raise if the model has others."""
    done = {name for name in unchanged if is_activation(found[name])}
    shaped: dict[str, nn.Module] = {}
    for name, activation in found.items():
        if name in unchanged or activation is model or is_inside(name, done):
            continue
        if is_trained_activation(activation):
            raise _no_form(activation, name)
        if is_activation(activation):
            done.add(name)
            shaped[name] = forms.form(activation, name)
    _refuse_calls(functions_in_forward(model, done, unchanged), model)
    return shaped


def _refuse_calls(calls: Mapping[str, list[str]], model: nn.Module) -> None:
    """Raise an InputError if forward code calls activation functions."""
    if not calls:
        return
    name, functions = next(iter(calls.items()))
    kind = type(model.get_submodule(name)).__name__
    raise InputError(
        "model: expected activations that are modules or attributes of modules, but the forward"
        f" code of {name!r} ({kind}) calls {', '.join(functions)}, which cannot be replaced; use"
        " modules such as nn.ReLU() there, or leave such calls unchanged with"
        f" keep={list(calls)!r}",
        "functions-in-forward",
        argument="model",
    )


def _no_form(activation: object, name: str) -> InputError:
    kind = getattr(activation, "__name__", type(activation).__name__)
    return InputError(
        "model: expected activations with a fixed slope at 0 that is finite and not 0, got"
        f" {kind} at {name!r}; to leave it unchanged, pass keep=[{name!r}]",
        "no-shaped-form",
        argument="model",
    )


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
    model: nn.Module,
    old: Mapping[str, object],
    new: Mapping[str, nn.Module],
    strength: float | None,
) -> Shaping:
    if is_activation(model):
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
