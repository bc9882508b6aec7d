"""Variances in the first forward and backward pass of the bigram model (1), layer by layer.

    h_1      sigma_0^2
    h_l      sigma_{l-1}^2 d_{l-1} Var(h_{l-1})                                 l = 2 .. L+2
    h'_{L+1} sigma_{L+1}^2 E[|h'_{L+2}|^2]
    h'_l     sigma_l^2 d_{l+1} Var(h'_{l+1})                                    l = L .. 1
    W'_l     E[(h'_{l+1})^2] Var(h_l),     W'_0: Var(h'_1) in the column of the word

S0 A.1, Lemma D.1, for widths d_1 .. d_{L+1} that may differ. sigma_l^2 = 1 / d_l makes all
activations alike (26), 1 / d_{l+1} all gradients (27), and 2 / (d_l + d_{l+1}) is the compromise of
Glorot and Bengio. With RMSNorm before each h_l (Lemma D.3), Var(h_l) = 1; h'_l loses one of d
directions and is divided by RMS(u_l)^2, which is sigma_0^2 for l = 1, else sigma_{l-1}^2 d_{l-1}.

Attention, S0 section 2: with weights p over values of variance v, independent over tokens,
Var(o) = v sum p^2, and Var(o_final) = Var(W_o) H d_H Var(o).

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

import numpy as np

from orderone.core.errors import InputError, instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, Flag, Name, Number, UserInput
from orderone.core.real_arrays import reals
from orderone.core.reals import real
from orderone.theory.first_pass.logit_gradient import LogitGradient, logit_gradient

INITS = ("fan-in", "fan-out", "glorot")
Widths: TypeAlias = Annotated[Sequence[int], UserInput]
Variances: TypeAlias = Annotated[Sequence[float], UserInput]


@dataclass(frozen=True)
class FirstPass:
    """Variances of entries in the first pass."""

    h: tuple[float, ...]  # h_1 .. h_{L+2}
    h_gradient: tuple[float, ...]  # h'_1 .. h'_{L+1}
    weight_gradient: tuple[float, ...]  # W'_0 (in the column of the word) .. W'_{L+1}
    logit: LogitGradient


def hidden_weight_var(fan_in: Count, fan_out: Count, init: Name = "fan-in") -> float:
    """Return sigma_l^2 of a hidden layer: "fan-in" (26), "fan-out" (27), or "glorot"."""
    inputs = count(fan_in, "fan_in")
    outputs = count(fan_out, "fan_out")
    init = one_of(init, INITS, "init")
    if init == "fan-in":
        return 1 / inputs
    if init == "fan-out":
        return 1 / outputs
    return 2 / (inputs + outputs)


def first_pass(
    widths: Widths,
    vocab: Count,
    *,
    init: Name = "fan-in",
    embedding_var: Number = 1.0,
    readout_var: Number | None = None,
    hidden_var: Variances | None = None,
    norm: Flag = False,
) -> FirstPass:
    """Return the variances of all layers of a linear network with a word as input.

    Args:
        widths: d_1 .. d_{L+1}, one more than hidden layers.
        vocab: number V of words, which is also that of logits.
        init: variances of hidden weights, as for `hidden_weight_var`.
        embedding_var: sigma_0^2.
        readout_var: sigma_{L+1}^2, by default 1 / d_{L+1}.
        hidden_var: sigma_1^2 .. sigma_L^2 instead of `init`.
        norm: RMSNorm after every layer but the last.
    """
    norm = instance(norm, bool, "norm", "pass True or False")
    d = _widths(widths)
    first = real(embedding_var, "embedding_var", above=0)
    last = 1 / d[-1] if readout_var is None else real(readout_var, "readout_var", above=0)
    hidden = _hidden_variances(d, init, hidden_var)
    squares = [first]  # of u_l, before a norm
    h = [1.0 if norm else first]
    for variance, fan_in in zip(hidden, d[:-1], strict=True):
        squares.append(variance * fan_in * h[-1])
        h.append(1.0 if norm else squares[-1])
    logits = last * d[-1] * h[-1]
    logit = logit_gradient(vocab, logits)
    gradient, into = _backward(last * logit.square, d, hidden, squares, norm)
    weights = [into[0]]
    for layer in range(1, len(d)):
        weights.append(into[layer] * h[layer - 1])
    weights.append(logit.square / count(vocab, "vocab") * h[-1])
    return FirstPass((*h, logits), tuple(gradient), tuple(weights), logit)


def _hidden_variances(d: list[int], init: Name, hidden_var: Variances | None) -> list[float]:
    """Return sigma_1^2 .. sigma_L^2."""
    if hidden_var is None:
        return [hidden_weight_var(a, b, init) for a, b in pairwise(d)]
    hidden = [real(value, "hidden_var", above=0) for value in _listed(hidden_var, "hidden_var")]
    if len(hidden) != len(d) - 1:
        raise InputError(
            f"hidden_var: expected {len(d) - 1} variances, one per hidden layer, got {len(hidden)}",
            argument="hidden_var",
        )
    return hidden


def _backward(
    last: float, d: list[int], hidden: list[float], squares: list[float], norm: bool
) -> tuple[list[float], list[float]]:
    """Return gradients of h_1 .. h_{L+1} from that of h_{L+1}; and those of u_1 .. u_{L+1}."""
    gradient = [last]
    into: list[float] = []
    for layer in range(len(d) - 1, -1, -1):
        u = gradient[-1]
        if norm:
            u *= (1 - 1 / d[layer]) / squares[layer]
        into.append(u)
        if layer > 0:
            gradient.append(hidden[layer - 1] * d[layer] * u)
    into.reverse()
    gradient.reverse()
    return gradient, into


def attention_output_var(
    attention: ArrayLike,
    value_var: Number = 1.0,
    output_weight_var: Number = 1.0,
    heads: Count = 1,
    head_size: Count = 1,
) -> tuple[float, float]:
    """Return Var(o) of a head and Var(o_final) for attention weights over independent tokens."""
    p = reals(attention, "attention")
    if p.ndim != 1 or not (p >= 0).all() or not np.isclose(p.sum(), 1):
        raise InputError(
            "attention: expected one weight per token, at least 0 and 1 in sum",
            argument="attention",
        )
    output = real(value_var, "value_var", least=0) * float(p @ p)
    fan_in = count(heads, "heads") * count(head_size, "head_size")
    return output, real(output_weight_var, "output_weight_var", least=0) * fan_in * output


def _widths(widths: Widths) -> list[int]:
    values = [count(width, "widths") for width in _listed(widths, "widths")]
    if not values:
        raise InputError("widths: expected at least one width, got none", argument="widths")
    return values


def _listed(values: object, name: str) -> list[Any]:
    try:
        return list(values)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise InputError(
            f"{name}: expected a sequence of numbers, such as [256, 1024, 256]; got {values!r}",
            argument=name,
        ) from None
