"""Tangent kernels by products with vectors: no Jacobian is ever stored.

    Theta[:, (b, p)] = J_1 g,     g = gradient of output p of example b

J_1 g is the derivative of the outputs of all rows along g. It is computed as the transpose of the
backward pass u -> J_1^T u, which is linear in u, and not in forward mode: for a few operations (a
table with padding_idx) that has another derivative. Several outputs p run at once, by `torch.vmap`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from orderone.measure.kernels.examples import Examples, read_output
from orderone.measure.kernels.jacobians import (
    HALF_TOLERANCE,
    TOLERANCE,
    Differentiable,
    quiet_vmap,
)
from orderone.measure.kernels.substituted import call_at


def ntk_by_products(
    function: Differentiable,
    left: Examples,
    right: Examples,
    outputs: range,
    names: Sequence[str],
    tile: int,
    chunk: int,
) -> Tensor:
    """Return Theta with respect to `names`, (rows, columns, row outputs, column outputs)."""
    parameters = {name: function.parameters[name].detach() for name in names}
    columns: list[Tensor] = []
    with sdpa_kernel(SDPBackend.MATH), quiet_vmap(), torch.no_grad():
        for example in range(len(right)):
            rows = right.rows(slice(example, example + 1))
            parts: list[Tensor] = []
            for first in range(0, len(outputs), chunk):
                some = outputs[first : first + chunk]
                parts.append(_columns(function, left, right, rows, parameters, some, tile, outputs))
            columns.append(torch.cat(parts, -1))
    return torch.stack(columns, 1)


def products_agree(function: Differentiable, examples: Examples, names: Sequence[str]) -> bool:
    """Return whether products run, and u . (J g) = (J^T u) . g for one example, random u and g."""
    parameters = {name: function.parameters[name].detach() for name in names}
    rows = examples.rows(slice(0, 1))
    generator = torch.Generator().manual_seed(0)
    direction = {
        name: torch.randn(value.shape, generator=generator).to(value)
        for name, value in parameters.items()
    }

    def outputs(p: dict[str, Tensor]) -> Tensor:
        return _flat(function, examples, rows, p)

    with sdpa_kernel(SDPBackend.MATH), quiet_vmap(), torch.no_grad():
        try:
            values, pullback = _vjp(outputs, parameters)
            push = _pushforward(function, examples, rows, parameters)
            directions = {name: value.unsqueeze(0) for name, value in direction.items()}
            derivative = torch.vmap(push)(directions)[0]
            weights = torch.randn(values.shape, generator=generator).to(values)
            (gradient,) = pullback(weights)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # errors of many classes
            return False
    terms = [(gradient[name].conj() * direction[name]).real for name in names]
    backward = sum(float(term.sum()) for term in terms)
    scale = sum(float(term.abs().sum()) for term in terms)
    forward = float((derivative * weights).sum())
    return abs(forward - backward) <= TOLERANCE.get(values.dtype, HALF_TOLERANCE) * scale


def _columns(
    function: Differentiable,
    left: Examples,
    right: Examples,
    rows: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    outputs: range,
    tile: int,
    kept: range,
) -> Tensor:
    """Return the columns of some outputs of one example, (rows, row outputs, outputs)."""
    values, pullback = _vjp(lambda p: _flat(function, right, rows, p), dict(parameters))
    seeds = torch.zeros(len(outputs), *values.shape).to(values)
    for i, output in enumerate(outputs):
        seeds[i, 0, output] = 1
    (gradients,) = torch.vmap(pullback)(seeds)
    parts: list[Tensor] = []
    for first in range(0, len(left), tile):
        some = left.rows(slice(first, first + tile))

        push = _pushforward(function, left, some, parameters)
        derivatives = torch.vmap(push)(gradients)  # (outputs, rows, row outputs)
        parts.append(derivatives[:, :, list(kept)].movedim(0, 2))
    return torch.cat(parts)


def _pushforward(
    function: Differentiable,
    examples: Examples,
    rows: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
) -> Callable[[dict[str, Tensor]], Tensor]:
    """Return the map from a direction to the derivative of all outputs along it."""
    values, pullback = _vjp(lambda p: _flat(function, examples, rows, p), dict(parameters))
    _, transpose = _vjp(lambda u: pullback(u)[0], torch.zeros_like(values))
    return lambda direction: transpose(direction)[0]


def _vjp(function: Callable[..., Any], point: object) -> tuple[Any, Callable[..., Any]]:
    """Return the value at `point`, and the map from a cotangent to (gradient,)."""
    value, pullback, *_ = vjp(function, point)
    return value, pullback


def _flat(
    function: Differentiable,
    examples: Examples,
    rows: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
) -> Tensor:
    args, kwargs = examples.call(rows)
    output = call_at(function.model, parameters, args, kwargs)
    return read_output(output, function.select).reshape(rows[0].shape[0], -1)
