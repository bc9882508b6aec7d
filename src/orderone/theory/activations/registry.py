"""Activations by name. A family with parameters takes them in brackets: "leaky-relu(0.2)", "shaped-relu(0, -1, 100)"."""

import re
from collections.abc import Callable
from typing import Any

from orderone.core.errors import one_of
from orderone.theory.activations.base import Activation
from orderone.theory.activations.erf import ERF
from orderone.theory.activations.piecewise_linear import ABS, LINEAR, RELU, leaky_relu, shaped_relu

FIXED: dict[str, Activation] = {a.name: a for a in (LINEAR, RELU, ABS, ERF)}
FAMILIES: dict[str, Callable[..., Activation]] = {
    "leaky-relu": leaky_relu,
    "shaped-relu": shaped_relu,
}
ALIASES = {"identity": "linear", "hardtanh": "hard-tanh", "htanh": "hard-tanh", "swish": "silu", "sine": "sin"}


def names() -> tuple[str, ...]:
    """Every name that `get` knows."""
    return (*FIXED, *FAMILIES)


def get(activation: Any, derivative: Any = None) -> Activation:
    """An activation by name, from a callable, or as it is."""
    if isinstance(activation, Activation):
        return activation
    word, numbers = _parts(activation)
    name = one_of(ALIASES.get(word, word), names(), "activation")
    return FAMILIES[name](*numbers) if name in FAMILIES else FIXED[name]


def _parts(text: Any) -> tuple[Any, list[float]]:
    """A name as it is listed, and the numbers in brackets behind it."""
    match = re.fullmatch(r"\s*([\w -]+?)\s*(?:\((.*)\))?\s*", text) if isinstance(text, str) else None
    if match is None:
        return text, []
    word = match[1].lower().replace("_", "-").replace(" ", "-")
    try:
        return word, [float(number) for number in match[2].split(",")] if match[2] else []
    except ValueError as error:
        raise ValueError(f"activation: expected numbers in brackets, as in 'leaky-relu(0.2)'; got {text!r}") from error
