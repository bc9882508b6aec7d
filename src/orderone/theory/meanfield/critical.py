"""The critical line chi_1 = 1, solved for any of its parameters.

On the line weight_var / keep = 1 / D(q), D = E phi'^2, so the length map (2) of S1 becomes an
equation for q alone,

    q - M(q) / D(q) = bias_var,       M = E phi^2

and the dropout rate only scales the answer: weight_var = keep / D(q). Roots that repel are no fixed
points that a signal comes to, and are left out: GELU has such a branch. With dropout chi_1 = 1 is
where gradients neither vanish nor explode; correlations are lost there all the same, since chi_2 <
1 (S1 section 5.1).
"""

from functools import lru_cache
from typing import Any

import numpy as np

from orderone.core.arrays import as_numpy, broadcast, like, plain
from orderone.core.inputs import Array, ArrayLike, Function, Name
from orderone.theory import activations
from orderone.theory.activations import Activation
from orderone.theory.meanfield.lengths import BEYOND, GRID, length_slope
from orderone.theory.meanfield.parameters import parameters
from orderone.theory.meanfield.roots import bracketed
from orderone.theory.meanfield.short_signals import SHORT, short_signals

SMALLEST = 1e-30
BARELY = 1e-3  # a length that stands for zero, and one near it that shows whether it attracts
NOISE = 1e-15  # relative to q: what is left of a difference below that is rounding


class NotCriticalError(ValueError):
    """No value of the parameter makes chi_1 equal to one."""


def critical_weight_var(
    activation: Name | Function, bias_var: ArrayLike, keep: ArrayLike = 1.0
) -> Any:
    """The weight variance at which chi_1 = 1; the smallest if there are several, inf if there is
    none.

    There is none for softplus: its lengths diverge before chi_1 reaches 1.
    """
    xp, *given = parameters(bias_var=bias_var, keep=keep)
    broadcast(bias_var=given[0], keep=given[1])
    b, rho = np.broadcast_arrays(*map(as_numpy, given))
    inverse = _inverse_slope(activations.get(activation), b.ravel()).reshape(b.shape)
    return _number(like(rho * inverse, given[0], xp))


def critical_bias_var(
    activation: Name | Function, weight_var: ArrayLike, keep: ArrayLike = 1.0
) -> Any:
    """The bias variance at which chi_1 = 1; NotCriticalError if there is none."""
    xp, *given = parameters(weight_var=weight_var, keep=keep)
    broadcast(weight_var=given[0], keep=given[1])
    w, rho = np.broadcast_arrays(*map(as_numpy, given))
    target = (rho / np.maximum(w, SMALLEST)).ravel()
    return _number(
        like(_bias_of_slope(activations.get(activation), target).reshape(w.shape), given[0], xp)
    )


def critical_keep(activation: Name | Function, weight_var: ArrayLike, bias_var: ArrayLike) -> Any:
    """The keep rate at which chi_1 = 1; NotCriticalError if none in (0, 1] does it."""
    _, w, b = parameters(weight_var=weight_var, bias_var=bias_var)
    broadcast(weight_var=w, bias_var=b)
    keep = w / critical_weight_var(activation, b)
    remedy = "dropout raises chi_1, so start from a weight_var that is ordered without it"
    _refuse(
        as_numpy(keep), (as_numpy(keep) > 0) & (as_numpy(keep) <= 1), "keep", "in (0, 1]", remedy
    )
    return _number(keep)


def edge_of_chaos(
    activation: Name | Function,
    weight_var: ArrayLike | None = None,
    bias_var: ArrayLike | None = None,
    keep: ArrayLike | None = 1.0,
) -> Any:
    """The one parameter that is None, such that chi_1 = 1."""
    given: dict[str, Any] = {"weight_var": weight_var, "bias_var": bias_var, "keep": keep}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"edge_of_chaos: expected exactly one parameter to be None, got {missing}; give the two"
            " others"
        )
    solvers = {
        "weight_var": critical_weight_var,
        "bias_var": critical_bias_var,
        "keep": critical_keep,
    }
    del given[missing[0]]
    return solvers[missing[0]](activation, **given)


def _inverse_slope(phi: Activation, bias_var: np.ndarray) -> np.ndarray:
    """1 / D at the critical length for each bias variance, inf where there is none."""
    if phi.homogeneous is not None:
        return np.full(len(bias_var), 1 / phi.homogeneous if phi.homogeneous else np.inf)
    grid = GRID if bias_var.max() < GRID[-1] / 1e3 else np.append(GRID, BEYOND[1:])
    noise = np.where((short_signals(phi) is not None) & (grid < SHORT), 0.0, NOISE * grid)
    grid = np.append(SMALLEST, grid)
    noise = np.append(0.0, noise)
    left_over = np.append(_left_over(phi, np.array([SMALLEST])), _scan(phi, len(grid) - 1)[0])
    sign = np.where(left_over - bias_var[:, None] > noise, 1, -1)
    rows, at = np.nonzero(sign[:, :-1] * sign[:, 1:] < 0)
    q = bracketed(lambda x, some: _left_over(phi, x) - bias_var[rows[some]], grid[at], grid[at + 1])
    dying = np.flatnonzero(
        (bias_var <= max(left_over[0], 0)) & (abs(left_over[0]) <= NOISE * SMALLEST)
    )
    rows = np.concatenate([rows, dying])
    q = np.concatenate([q, np.full(len(dying), SMALLEST)])
    result = np.full(len(bias_var), np.inf)
    if len(q):
        rate = 1 / phi.derivative_moment(q)
        near = np.maximum(q, BARELY)
        attracts = (length_slope(phi, 1 / phi.derivative_moment(near), near) < 1 + 1e-6) & (
            rate > 0
        )
        np.minimum.at(result, rows[attracts], rate[attracts])
    return result


def _bias_of_slope(phi: Activation, target: np.ndarray) -> np.ndarray:
    """bias_var at the length where D is the target."""
    _, slopes = _scan(phi)
    sign = np.sign(slopes - target[:, None])
    crossing = sign[:, :-1] * sign[:, 1:] <= 0
    at = np.argmax(crossing, axis=1)
    exists = crossing.any(axis=1) & (phi.homogeneous is None)
    remedy = "chi_1 stays on one side of 1 for every bias_var; change weight_var or keep"
    _refuse(
        target, exists, "keep / weight_var", "between the smallest and the largest E phi'^2", remedy
    )
    q = bracketed(lambda x, rows: phi.derivative_moment(x) - target[rows], GRID[at], GRID[at + 1])
    bias_var = _left_over(phi, q)
    _refuse(
        bias_var,
        bias_var >= -NOISE * q,
        "bias_var",
        "0 or more at the critical length",
        "lower weight_var",
    )
    return np.maximum(bias_var, 0.0)


def _left_over(phi: Activation, q: Array) -> Array:
    """q - M / D: the bias variance for which q is a fixed point on the critical line."""
    with np.errstate(invalid="ignore", over="ignore"):
        direct = q - np.nan_to_num(phi.second_moment(q) / phi.derivative_moment(q), nan=np.inf)
    short = short_signals(phi)
    if short is None:
        return direct
    return np.where(q < SHORT, short.left_over(np.minimum(q, SHORT)), direct)


@lru_cache(maxsize=64)
def _scan(phi: Activation, points: int = len(GRID)) -> tuple[np.ndarray, np.ndarray]:
    """q - M / D and D, on as many points."""
    parts = (GRID, BEYOND[1:])[: 1 + (points > len(GRID))]
    with np.errstate(over="ignore", invalid="ignore"):
        slopes = [np.asarray(phi.derivative_moment(part)) for part in parts]
    return np.concatenate([_left_over(phi, part) for part in parts]), np.concatenate(slopes)


def _refuse(values: np.ndarray, right: Any, name: str, expected: str, remedy: str) -> None:
    if not np.all(right):
        raise NotCriticalError(
            f"{name}: expected {expected}; got {np.ravel(values)[np.argmin(np.ravel(right))]:g};"
            f" {remedy}"
        )


def _number(x: Any) -> Any:
    x = plain(x)
    return float(x) if isinstance(x, np.floating) else x
