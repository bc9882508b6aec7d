"""The activations of a model replaced by shaped ones, in place, and put back.

    shaping = shape_activations(model, depth=48); ...; shaping.undo()          or          with shape_activations(...): ...

Slopes are s_+- = 1 + c_+- / sqrt(depth), and scales s = a sqrt(depth): the whole network then bends by the amount that the
limits (2.7) and (3.18) describe for t = 1, whatever its depth. Given `p`, width^p takes the place of sqrt(depth), as in
(2.5) and (2.6); given the width alone, p is 1/2. What is random in the limit depends on depth / width and not on the shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.given import Count, Number
from orderone.core.reals import real
from orderone.nn.shaped import ShapedActivation, ShapedReLU

BENT = (nn.ReLU, nn.LeakyReLU, nn.ReLU6)  # a kink at 0: (2.5)
SMOOTH = (nn.Tanh, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid)  # (2.6)

if TYPE_CHECKING:
    Model: TypeAlias = nn.Module
else:
    Model = Any  # what users give; read below


@dataclass
class Shaping:
    """What was replaced, under its name in the model, and the way back."""

    model: nn.Module
    replaced: Mapping[str, nn.Module]
    strength: float  # 1 / sqrt(depth), or width^-p
    _undone: bool = field(default=False, repr=False)

    def undo(self) -> None:
        """Puts the original modules back. Once is enough."""
        if not self._undone:
            for name, module in self.replaced.items():
                _put(self.model, name, module)
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
) -> Shaping:
    """Replaces every ReLU, LeakyReLU and ReLU6 by a `ShapedReLU`, every smooth activation module by a `ShapedActivation`.

    `depth` is the number of layers with an activation, on the longest path. Weights stay: give them the standard
    deviation `gain` / sqrt(fan_in) of their activation. Calls of functions (torch.relu) cannot be seen; with no module to
    replace there is an error.
    """
    instance(model, nn.Module, "model", "give the network whose activations to shape")
    strength = _strength(depth, width, p)
    size = strength**-2  # with p = 1/2
    if any(isinstance(module, ShapedReLU | ShapedActivation) for module in model.modules()):
        raise ValueError("model: expected plain activations, found shaped ones; undo the first shaping before another")
    new: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, BENT):
            new[name] = ShapedReLU.at(size, c_plus, c_minus)
        elif isinstance(module, SMOOTH):
            new[name] = ShapedActivation(module, real(a, "a") * size**0.5)
    return _replace(model, new, strength)


def _replace(model: nn.Module, new: Mapping[str, nn.Module], strength: float) -> Shaping:
    if "" in new:
        raise ValueError(f"model: expected a network that holds activations, got {model!r} itself; shape that directly")
    if not new:
        known = ", ".join(kind.__name__ for kind in BENT + SMOOTH)
        raise ValueError(
            f"model: expected activation modules ({known}), found none; functions such as torch.relu cannot be replaced, "
            "write nn.ReLU() instead"
        )
    shaping = Shaping(model, {name: model.get_submodule(name) for name in new}, strength)
    for name, module in new.items():
        _put(model, name, module.train(shaping.replaced[name].training))
    return shaping


def _strength(depth: Count | None, width: Count | None, p: Number | None) -> float:
    if depth is not None and p is None:
        return count(depth, "depth") ** -0.5
    if width is None:
        raise ValueError("depth, width: expected depth, or width with p; got neither; give depth=number of layers")
    return count(width, "width") ** -real(0.5 if p is None else p, "p", least=0)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)
