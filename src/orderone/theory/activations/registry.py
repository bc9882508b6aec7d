"""Activations by name.

A family with parameters takes them in brackets: "leaky-relu(0.2)", "shaped-relu(0, -1, 100)".
"""

import math
import re
from collections.abc import Callable

import numpy as np

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import ArrayLike, Function, Name
from orderone.theory.activations.base import Activation
from orderone.theory.activations.bent import SELU, elu
from orderone.theory.activations.erf import ERF
from orderone.theory.activations.from_callable import from_callable
from orderone.theory.activations.gelu import GELU
from orderone.theory.activations.hard_tanh import HARD_TANH
from orderone.theory.activations.piecewise_linear import ABS, LINEAR, RELU, leaky_relu, shaped_relu
from orderone.theory.activations.polynomial import polynomial
from orderone.theory.activations.sine import SIN
from orderone.theory.activations.smooth import SIGMOID, SILU, SOFTPLUS, TANH
from orderone.theory.activations.step import STEP

ALL = (LINEAR, RELU, ABS, STEP, ERF, GELU, SIN, TANH, SIGMOID, SILU, SOFTPLUS, HARD_TANH, SELU)
FIXED: dict[str, Activation] = {activation.name: activation for activation in ALL}
FAMILIES: dict[str, Callable[..., Activation]] = {
    "leaky-relu": leaky_relu,
    "shaped-relu": shaped_relu,
    "elu": elu,
    "polynomial": polynomial,
}
ALIASES = {
    "identity": "linear",
    "hardtanh": "hard-tanh",
    "htanh": "hard-tanh",
    "swish": "silu",
    "sine": "sin",
}


def names() -> tuple[str, ...]:
    """Return every name that `get` accepts."""
    return (*FIXED, *FAMILIES)


def get(
    activation: Name | Function, derivative: Function | None = None, kinks: ArrayLike = ()
) -> Activation:
    """Return an activation from its name or a function of arrays; an `Activation` is unchanged.

    `derivative` and `kinks` of a function are optional: by default they are computed.
    """
    if not callable(activation) and np.size(kinks):
        raise InputError(
            f"kinks: expected none with the activation {activation!r}, whose kinks are known; pass"
            " kinks only with a function",
            argument="kinks",
        )
    if isinstance(activation, Activation):
        return activation
    if callable(activation):
        return from_callable(activation, derivative, kinks)
    if derivative is not None:
        raise InputError(
            f"derivative: expected none with the activation {activation!r}, whose derivative is"
            " known; pass a derivative only with a function",
            argument="derivative",
        )
    word, numbers = _parts(activation)
    name = one_of(ALIASES.get(word, word), names(), "activation")
    if name in FAMILIES:
        try:
            return FAMILIES[name](*numbers)
        except TypeError as error:
            raise InputError(
                f"activation: {name} takes fewer numbers than {numbers}", argument="activation"
            ) from error
    if numbers:
        raise InputError(
            f"activation: {name} takes no numbers, got {numbers}; only {', '.join(FAMILIES)} take"
            " numbers",
            argument="activation",
        )
    return FIXED[name]


def _parts(text: object) -> tuple[str, list[float]]:
    """Return the name in the form of `names`, and the numbers in brackets after it."""
    match = None
    if isinstance(text, str):
        match = re.fullmatch(r"\s*([\w -]+?)\s*(?:\((.*)\))?\s*", text)
    if match is None:
        return one_of(text, names(), "activation"), []
    word = match[1].lower().replace("_", "-").replace(" ", "-")
    if not match[2]:
        return word, []
    try:
        numbers = [float(number) for number in match[2].split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise InputError(
            f"activation: expected numbers in brackets, as in 'leaky-relu(0.2)'; got {text!r}",
            argument="activation",
        )
    return word, numbers
