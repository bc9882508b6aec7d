"""Find the activations of a model: modules, and functions that modules have as attributes.

Known ones are those of torch and of Transformers. Others are tried: a module without children, or a
function, is an activation if it acts on every number alone and is not affine.
"""

from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from orderone.torch_compat import MODULE_HOOKS

KINKED = (nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.RReLU, nn.SELU)  # a kink at 0
# with a kink at 0 for some settings (ELU with alpha != 1, Hardtanh from 0)
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
FLAT = (nn.Threshold, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink)  # the slope at 0 is 0
# a trained slope, a product of two halves, or activations inside of torch
UNSUPPORTED = (nn.PReLU, nn.GLU, nn.RNNBase, nn.RNNCellBase)
# Names in torch and torch.nn.functional
SUPPORTED_FUNCTIONS = (
    "relu",
    "relu_",
    "relu6",
    "leaky_relu",
    "leaky_relu_",
    "rrelu",
    "rrelu_",
    "selu",
    "selu_",
    "tanh",
    "tanh_",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "sigmoid",
    "sigmoid_",
    "logsigmoid",
    "elu",
    "elu_",
    "celu",
    "celu_",
    "hardtanh",
    "hardtanh_",
    "softsign",
    "hardswish",
    "hardsigmoid",
)
FLAT_FUNCTIONS = ("threshold", "threshold_", "hardshrink", "softshrink", "tanhshrink")
UNSUPPORTED_FUNCTIONS = ("prelu", "glu")
FUNCTIONS = SUPPORTED_FUNCTIONS + FLAT_FUNCTIONS + UNSUPPORTED_FUNCTIONS
# Module of its activation classes
HUGGING_FACE = "transformers.activations"
MOST_PARAMETERS = 4096  # of an unknown module that is tried
NOT_AFFINE = 1e-6


def candidates(model: nn.Module) -> dict[str, object]:
    """Return all modules, and the functions among their attributes, by name."""
    modules = dict(model.named_modules(remove_duplicate=False))
    functions: dict[str, object] = {}
    for name, module in modules.items():
        for attribute, value in vars(module).items():
            if is_function(value) and not attribute.startswith("_"):
                functions[f"{name}.{attribute}" if name else attribute] = value
    return {**modules, **functions}


def is_function(value: object) -> bool:
    """Return whether `value` can be called and is neither a module nor a class."""
    return callable(value) and not isinstance(value, nn.Module | type)


def is_one_of(value: object, names: tuple[str, ...]) -> bool:
    """Return whether `value` is a function of torch with one of these names.

    The function may be in torch or torch.nn.functional, with or without settings (`partial`).
    """
    if isinstance(value, partial):
        function = value.func
    else:
        function = value
    return is_function(function) and _names().get(id(function)) in names


@lru_cache
def _names() -> dict[int, str]:
    """Return the names of torch's activation functions by their ids."""
    names = {}
    for name, module in product(FUNCTIONS, (functional, torch)):
        if hasattr(module, name):
            names[id(getattr(module, name))] = name
    return names


def is_kind(value: object, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether `value` is one of these modules, with its forward code."""
    return any(isinstance(value, kind) and _forward(value) is kind.forward for kind in kinds)


def _forward(module: nn.Module) -> object:
    return vars(module).get("forward", type(module).forward)


def is_activation(value: object) -> bool:
    """Return whether a module or function is an activation with a form that does not train."""
    known = is_kind(value, KINKED + SMOOTH + FLAT)
    if known or type(value).__module__ == HUGGING_FACE:
        return True
    if is_one_of(value, SUPPORTED_FUNCTIONS + FLAT_FUNCTIONS):
        return True
    return is_unknown(value) and not _parameters(value) and acts_on_every_number(value)


def is_trained_activation(value: object) -> bool:
    """Return whether a module or function is an activation that cannot be replaced."""
    if isinstance(value, UNSUPPORTED) or is_one_of(value, UNSUPPORTED_FUNCTIONS):
        return True
    parameters = _parameters(value)
    if not parameters or not is_unknown(value):
        return False
    return sum(each.numel() for each in parameters.values()) <= MOST_PARAMETERS and (
        acts_on_every_number(value)
    )


def is_unknown(value: object) -> bool:
    """Return whether `value` is a function, or a module of users without children."""
    if not isinstance(value, nn.Module):
        return is_function(value)
    home = getattr(_forward(value), "__module__", None) or ""
    return home.partition(".")[0] != "torch" and not list(value.children())


def _parameters(value: object) -> dict[str, Tensor]:
    if isinstance(value, nn.Module):
        return dict(value.named_parameters())
    return {}


def without_hooks(module: nn.Module) -> nn.Module:
    """Return a copy without hooks, which move to the shaped module."""
    bare = copy(module)
    for hook in MODULE_HOOKS:
        setattr(bare, hook, type(getattr(module, hook))())
    return bare


def acts_on_every_number(value: Any) -> bool:
    """Return whether a module or function acts on every number alone, and is not affine.

    Code that fails for all trial inputs is no activation.
    """
    function = value
    sizes = [4]
    if isinstance(value, nn.Module):
        tensors = {**_parameters(value), **dict(value.named_buffers())}
        if any(each.is_meta for each in tensors.values()):
            return False
        sizes += [each.numel() for each in tensors.values() if 1 < each.numel() <= MOST_PARAMETERS]
        doubled = {name: _doubled(tensor) for name, tensor in tensors.items()}
        bare = without_hooks(value)
        bare.training = False  # without dropout
        function = partial(_call, bare, doubled)
    for size, shape in product(dict.fromkeys(sizes), ((2, -1), (1, -1, 2, 2))):
        x = torch.linspace(-3.1, 3.3, size * (2 if len(shape) == 2 else 4), dtype=torch.float64)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                if _is_elementwise(function, x.reshape(shape)):
                    return True
        except Exception:
            continue
    return False


def _doubled(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        return tensor.double()
    return tensor


def _call(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Any:
    return functional_call(module, dict(tensors), (x,))


def _is_elementwise(function: Callable[[Tensor], Any], x: Tensor) -> bool:
    y = function(x.clone())
    if not isinstance(y, Tensor) or y.shape != x.shape or not y.is_floating_point():
        return False
    if not torch.equal(y, function(x.clone())):
        return False  # noise
    moved = x.clone()
    moved.view(-1)[0] = 0.7
    changed = function(moved).view(-1) != y.view(-1)
    other = 1.3 - 1.7 * x
    middle = function((x + other) / 2)
    bend = (middle - (y + function(other.clone())) / 2).abs().max()
    return not bool(changed[1:].any()) and bool(bend > NOT_AFFINE * y.abs().max())
