"""Critical line chi_1 = 1, solved for any of its parameters.

On the line weight_var / keep = 1 / D(q), so the length map (2) of S1 becomes an equation for q
alone,

    q - M(q) / D(q) = bias_var,        M = E phi^2,   D = E phi'^2

and the dropout rate only scales the answer: weight_var = keep / D(q). Unstable roots, which GELU
has, are left out: no signal tends to them. With dropout, gradients neither vanish nor explode at
chi_1 = 1, but correlations are still lost there, since chi_2 < 1 (S1 section 5.1).

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from functools import lru_cache

import numpy as np

from orderone.core.arrays import as_numpy, broadcast, like, plain
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike, Function, Name
from orderone.theory import activations
from orderone.theory.activations import Activation
from orderone.theory.meanfield.lengths import BEYOND, GRID, length_slope
from orderone.theory.meanfield.parameters import parameters
from orderone.theory.meanfield.roots import bracketed
from orderone.theory.meanfield.short_signals import SHORT, short_signals

SMALLEST = 1e-30  # length that represents zero
BARELY = 1e-3  # shortest length at which the slope of the length map is evaluated
NOISE = 1e-15  # difference relative to q below which it is rounding


class NotCriticalError(InputError):
    """No value of the parameter gives chi_1 = 1."""


def critical_weight_var(
    activation: Name | Function, bias_var: ArrayLike, keep: ArrayLike = 1.0
) -> Array:
    """Return the weight variance at which chi_1 = 1.

    It is the smallest if there are several, inf if there is none. There is none for softplus: its
    lengths diverge before chi_1 reaches 1.
    """
    xp, bias_vars, keeps = parameters(bias_var=bias_var, keep=keep)
    broadcast(bias_var=bias_vars, keep=keeps)
    b, rho = np.broadcast_arrays(as_numpy(bias_vars), as_numpy(keeps))
    inverse = _inverse_slope(activations.get(activation), b.ravel()).reshape(b.shape)
    return _number(like(rho * inverse, bias_vars, xp))


def critical_bias_var(
    activation: Name | Function, weight_var: ArrayLike, keep: ArrayLike = 1.0
) -> Array:
    """Return the bias variance at which chi_1 = 1; raise NotCriticalError if there is none."""
    xp, weight_vars, keeps = parameters(weight_var=weight_var, keep=keep)
    broadcast(weight_var=weight_vars, keep=keeps)
    w, rho = np.broadcast_arrays(as_numpy(weight_vars), as_numpy(keeps))
    target = (rho / np.maximum(w, SMALLEST)).ravel()
    bias_var = _bias_of_slope(activations.get(activation), target).reshape(w.shape)
    return _number(like(bias_var, weight_vars, xp))


def critical_keep(activation: Name | Function, weight_var: ArrayLike, bias_var: ArrayLike) -> Array:
    """Return the keep rate in (0, 1] at which chi_1 = 1, or raise NotCriticalError."""
    _, w, b = parameters(weight_var=weight_var, bias_var=bias_var)
    broadcast(weight_var=w, bias_var=b)
    keep = w / critical_weight_var(activation, b)
    rate = as_numpy(keep)
    remedy = "dropout increases chi_1: use a weight_var with chi_1 < 1 without dropout"
    _require(rate, (rate > 0) & (rate <= 1), "keep", "in (0, 1]", remedy)
    return _number(keep)


def edge_of_chaos(
    activation: Name | Function,
    weight_var: ArrayLike | None = None,
    bias_var: ArrayLike | None = None,
    keep: ArrayLike | None = 1.0,
) -> Array:
    """Solve chi_1 = 1 for the one parameter that is None."""
    values = {"weight_var": weight_var, "bias_var": bias_var, "keep": keep}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == 1:
        if bias_var is not None and keep is not None:
            return critical_weight_var(activation, bias_var, keep)
        if weight_var is not None and keep is not None:
            return critical_bias_var(activation, weight_var, keep)
        if weight_var is not None and bias_var is not None:
            return critical_keep(activation, weight_var, bias_var)
    raise InputError(
        "weight_var, bias_var, keep: expected exactly one parameter that is None, got"
        f" {', '.join(missing) or 'none'}; pass the two others"
    )


def _inverse_slope(phi: Activation, bias_var: np.ndarray) -> np.ndarray:
    """Return 1 / D at the critical length for each bias variance, inf where there is none."""
    if phi.homogeneous is not None:
        if phi.homogeneous:
            inverse = 1 / phi.homogeneous
        else:
            inverse = np.inf
        return np.full(len(bias_var), inverse)
    rows, q = _critical_lengths(phi, bias_var)
    result = np.full(len(bias_var), np.inf)
    if len(q):
        rate = 1 / phi.derivative_moment(q)
        near = np.maximum(q, BARELY)
        slope = length_slope(phi, 1 / phi.derivative_moment(near), near)
        attracts = (slope < 1 + 1e-6) & (rate > 0)
        np.minimum.at(result, rows[attracts], rate[attracts])
    return result


def _critical_lengths(phi: Activation, bias_var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all roots q of q - M / D = bias_var, and the row of the bias variance of each."""
    if bias_var.max() < GRID[-1] / 1e3:
        grid = GRID
    else:
        grid = np.append(GRID, BEYOND[1:])
    noise = np.where((short_signals(phi) is not None) & (grid < SHORT), 0.0, NOISE * grid)
    grid = np.append(SMALLEST, grid)
    noise = np.append(0.0, noise)
    implied_bias = np.append(_implied_bias(phi, np.array([SMALLEST])), _scan(phi, len(grid) - 1)[0])
    sign = np.where(implied_bias - bias_var[:, None] > noise, 1, -1)
    rows, at = np.nonzero(sign[:, :-1] * sign[:, 1:] < 0)

    def excess(q: np.ndarray, some: np.ndarray) -> np.ndarray:
        return _implied_bias(phi, q) - bias_var[rows[some]]

    q = bracketed(excess, grid[at], grid[at + 1])
    starts_at_zero = abs(implied_bias[0]) <= NOISE * SMALLEST
    dying = np.flatnonzero((bias_var <= max(implied_bias[0], 0)) & starts_at_zero)
    rows_and_dying = np.concatenate([rows, dying])
    return rows_and_dying, np.concatenate([q, np.full(len(dying), SMALLEST)])


def _bias_of_slope(phi: Activation, target: np.ndarray) -> np.ndarray:
    """Return bias_var at the length where D is the target."""
    _, slopes = _scan(phi)
    sign = np.sign(slopes - target[:, None])
    crossing = sign[:, :-1] * sign[:, 1:] <= 0
    at = np.argmax(crossing, axis=1)
    exists = crossing.any(axis=1) & (phi.homogeneous is None)
    expected = "between the smallest and the largest E phi'^2"
    remedy = "chi_1 is on one side of 1 for every bias_var; change weight_var or keep"
    _require(target, exists, "keep / weight_var", expected, remedy)
    q = bracketed(lambda x, rows: phi.derivative_moment(x) - target[rows], GRID[at], GRID[at + 1])
    bias_var = _implied_bias(phi, q)
    expected = "0 or more at the critical length"
    _require(bias_var, bias_var >= -NOISE * q, "bias_var", expected, "lower weight_var")
    return np.maximum(bias_var, 0.0)


def _implied_bias(phi: Activation, q: Array) -> Array:
    """Return q - M / D: the bias variance for which q is a fixed point on the critical line."""
    with np.errstate(invalid="ignore", over="ignore"):
        direct = q - np.nan_to_num(phi.second_moment(q) / phi.derivative_moment(q), nan=np.inf)
    short = short_signals(phi)
    if short is None:
        return direct
    return np.where(q < SHORT, short.implied_bias(np.minimum(q, SHORT)), direct)


@lru_cache(maxsize=64)
def _scan(phi: Activation, points: int = len(GRID)) -> tuple[np.ndarray, np.ndarray]:
    """Return q - M / D and D on the grid, and beyond it if there are more `points`."""
    parts = [GRID]
    if points > len(GRID):
        parts.append(BEYOND[1:])
    with np.errstate(over="ignore", invalid="ignore"):
        slopes = [np.asarray(phi.derivative_moment(part)) for part in parts]
    implied_bias = [_implied_bias(phi, part) for part in parts]
    return np.concatenate(implied_bias), np.concatenate(slopes)


def _require(values: np.ndarray, valid: Array, name: str, expected: str, remedy: str) -> None:
    """Raise a NotCriticalError with the first invalid value unless all are valid."""
    if not np.all(valid):
        first_wrong = np.ravel(values)[np.argmin(np.ravel(valid))]
        message = f"{name}: expected {expected}; got {first_wrong:g}; {remedy}"
        raise NotCriticalError(message, "no-critical-value", argument=name)


def _number(x: Array) -> Array:
    """Turn numpy's numbers into Python's; return arrays unchanged."""
    x = plain(x)
    if isinstance(x, np.floating):
        return float(x)
    return x
