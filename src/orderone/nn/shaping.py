"""The activations of a model replaced by shaped ones, in place, and put back.

    shaping = shape_activations(model, depth=48); ...; shaping.undo()          or          with shape_activations(...): ...

Slopes are s_+- = 1 + c_+- / sqrt(depth), and scales s = a sqrt(depth): the whole network then bends by the amount that the
limits (2.7) and (3.18) describe for t = 1, whatever its depth. Given `p`, width^p takes the place of sqrt(depth), as in
(2.5) and (2.6), 0 <= p <= 1/2; given the width alone, p is 1/2. What is random in the limit depends on depth / width and
not on the shape.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.given import Count, Number
from orderone.core.reals import real
from orderone.nn.shaped import ShapedActivation, ShapedReLU

BENT = (nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.RReLU, nn.SELU)  # a kink at 0: (2.5)
SMOOTH = (nn.Tanh, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.LogSigmoid)  # (2.6)
SMOOTH += (
    nn.ELU,
    nn.CELU,
    nn.Hardtanh,
    nn.Softsign,
    nn.Hardswish,
    nn.Hardsigmoid,
)  # a slope at 0, kinks elsewhere or later
OTHERS = (nn.PReLU, nn.Threshold, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink)  # slopes to learn, or none at 0
HUGGING_FACE = "transformers.activations"  # the module of its activation classes; all that have a slope at 0 are smooth
LARGEST = 10**15  # of depth and width
# torch's own names of what makes it compute a layer of a Transformer by one kernel, which knows ReLU and GELU only
FUSED = ("activation_relu_or_gelu", "use_nested_tensor")
HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks")
HOOKS += ("_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks")

if TYPE_CHECKING:
    Model: TypeAlias = nn.Module
    Names: TypeAlias = tuple[str, ...] | list[str]
else:
    Model = Names = Any  # what users give; read below


@dataclass
class Shaping:
    """What was replaced, under its name in the model, and the way back."""

    model: nn.Module
    replaced: Mapping[str, nn.Module]
    strength: float  # 1 / sqrt(depth), or width^-p
    _fused: tuple[tuple[nn.Module, str, Any], ...] = field(default=(), repr=False)
    _undone: bool = field(default=False, repr=False)

    def undo(self) -> None:
        """Puts the original modules back. Once is enough."""
        if not self._undone:
            for name, module in self.replaced.items():
                _put(self.model, name, module)
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
    keep: Names = (),
) -> Shaping:
    """Replaces every ReLU-like activation module by a `ShapedReLU`, every smooth one by a `ShapedActivation`.

    `depth` is the number of layers with an activation, on the longest path. `keep` names modules that stay as they are:
    gates, say. Weights stay: give them the standard deviation `gain` / sqrt(fan_in) of their activation. Hooks move to the
    new modules and back. Torch's fused kernel for Transformer layers is switched off where it would use the old activation.
    Calls of functions (torch.relu) cannot be seen; with no module to replace there is an error, and with one that has no
    shaped form (PReLU, Softshrink, ...) too.
    """
    instance(model, nn.Module, "model", "give the network whose activations to shape")
    strength = _strength(depth, width, p)
    if any(isinstance(module, ShapedReLU | ShapedActivation) for module in model.modules()):
        raise ValueError("model: expected plain activations, found shaped ones; undo the first shaping before another")
    modules = dict(model.named_modules(remove_duplicate=False))
    kept, new = _kept(keep, modules), dict[str, nn.Module]()
    for name, module in modules.items():
        shaped = None if name in kept else _shaped(module, name, strength, c_plus, c_minus, a)
        if shaped is not None:
            new[name] = shaped
    return _replace(model, new, strength)


def _shaped(
    module: nn.Module, name: str, strength: float, c_plus: Number, c_minus: Number, a: Number
) -> nn.Module | None:
    """The shaped form of an activation, None for everything else."""
    if isinstance(module, BENT):
        return ShapedReLU.at(strength**-2, c_plus, c_minus)
    hugging_face = type(module).__module__ == HUGGING_FACE
    if isinstance(module, SMOOTH) or hugging_face:
        try:
            return ShapedActivation(_without_hooks(module), real(a, "a") / strength)
        except ValueError:
            if not hugging_face:
                raise
    if isinstance(module, OTHERS) or hugging_face:
        raise ValueError(
            f"model: expected activations with a fixed slope at 0, got {type(module).__name__} at {name!r}; "
            f"leave it as it is with keep=[{name!r}]"
        )
    return None


def _kept(keep: Names, modules: Mapping[str, nn.Module]) -> tuple[str, ...]:
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    for name in names:
        if name not in modules:
            raise ValueError(f"keep: expected names from model.named_modules(), got {name!r}")
    return names


def _replace(model: nn.Module, new: Mapping[str, nn.Module], strength: float) -> Shaping:
    if "" in new:
        raise ValueError(f"model: expected a network that holds activations, got {model!r} itself; shape that directly")
    if not new:
        known = ", ".join(kind.__name__ for kind in BENT + SMOOTH)
        raise ValueError(
            f"model: expected activation modules ({known}), found none; functions such as torch.relu cannot be replaced, "
            "write nn.ReLU() instead"
        )
    fused = tuple(_fused(model, new))
    shaping = Shaping(model, {name: model.get_submodule(name) for name in new}, strength, fused)
    for name, module in new.items():
        old = shaping.replaced[name]
        for hook in HOOKS:  # shared, so that handles still remove them
            setattr(module, hook, getattr(old, hook))
        _put(model, name, module.train(old.training))
    for owner, flag, value in fused:
        setattr(owner, flag, type(value)(0))
    return shaping


def _fused(model: nn.Module, new: Mapping[str, nn.Module]) -> Iterator[tuple[nn.Module, str, Any]]:
    """Every flag of a module around a replaced one that lets torch go past it."""
    for name, module in model.named_modules():
        around = any(inner.startswith(f"{name}." if name else "") for inner in new)
        yield from ((module, flag, getattr(module, flag)) for flag in FUSED if around and hasattr(module, flag))


def _without_hooks(module: nn.Module) -> nn.Module:
    """The same activation to compute with; who listens to the original listens to what replaces it."""
    bare = copy(module)
    for hook in HOOKS:
        setattr(bare, hook, OrderedDict())
    return bare


def _strength(depth: Count | None, width: Count | None, p: Number | None) -> float:
    d = None if depth is None else count(depth, "depth", most=LARGEST)
    n = None if width is None else count(width, "width", most=LARGEST)
    if d is not None and p is None:
        return d**-0.5
    if n is None:
        got = "p alone" if d is None and p is not None else "depth with p" if d is not None else "neither"
        raise ValueError(f"depth, width: expected depth, or width with p; got {got}; give depth=number of layers alone")
    return n ** -real(0.5 if p is None else p, "p", least=0, most=0.5)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)
