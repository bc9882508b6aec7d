"""The critical line chi_1 = 1, solved for any of its parameters.

On the line weight_var / keep = 1 / D(q), D = E phi'^2, so the length map (2) of S1 becomes an equation for q alone,

    q - M(q) / D(q) = bias_var,       M = E phi^2

and the dropout rate only scales the answer: weight_var = keep / D(q). With dropout chi_1 = 1 is where gradients neither
vanish nor explode; correlations are lost there all the same, since chi_2 < 1 (S1 section 5.1).
"""

from functools import lru_cache
from typing import Any

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, like, plain, together
from orderone.core.given import ArrayLike, Function, Name
from orderone.theory import activations
from orderone.theory.activations import Activation
from orderone.theory.meanfield.lengths import GRID
from orderone.theory.meanfield.roots import bracketed

SMALLEST = 1e-30


class NotCriticalError(ValueError):
    """No value of the parameter makes chi_1 equal to one."""


def critical_weight_var(activation: Name | Function, bias_var: ArrayLike, keep: ArrayLike = 1.0) -> Any:
    """The weight variance at which chi_1 = 1; the smallest if there are several, inf if there is none."""
    xp, bias_var, keep = together(bias_var=bias_var, keep=keep)
    checks.variance(xp, bias_var, "bias_var"), checks.keep_rate(xp, keep)
    b, rho = np.broadcast_arrays(as_numpy(bias_var), as_numpy(keep))
    inverse = _inverse_slope(activations.get(activation), b.ravel()).reshape(b.shape)
    return _number(like(rho * inverse, bias_var, xp))


def critical_bias_var(activation: Name | Function, weight_var: ArrayLike, keep: ArrayLike = 1.0) -> Any:
    """The bias variance at which chi_1 = 1; NotCriticalError if there is none."""
    xp, weight_var, keep = together(weight_var=weight_var, keep=keep)
    checks.variance(xp, weight_var, "weight_var"), checks.keep_rate(xp, keep)
    phi, w, rho = activations.get(activation), *np.broadcast_arrays(as_numpy(weight_var), as_numpy(keep))
    target = (rho / np.maximum(w, SMALLEST)).ravel()
    return _number(like(_bias_of_slope(phi, target).reshape(w.shape), weight_var, xp))


def critical_keep(activation: Name | Function, weight_var: ArrayLike, bias_var: ArrayLike) -> Any:
    """The keep rate at which chi_1 = 1; NotCriticalError if none in (0, 1] does it."""
    xp, weight_var, bias_var = together(weight_var=weight_var, bias_var=bias_var)
    keep = checks.variance(xp, weight_var, "weight_var") / critical_weight_var(activation, bias_var)
    if not bool(xp.all((keep > 0) & (keep <= 1))):
        raise NotCriticalError(
            f"keep: expected parameters that some keep rate in (0, 1] makes critical; chi_1 is already {float(xp.min(keep)):g} "
            "times what it may be without dropout; raise weight_var"
            if bool(xp.all(keep > 0)) and float(xp.min(keep)) < 1 and False
            else f"keep: no rate in (0, 1] is critical, it would be {float(xp.max(keep)):g}; lower weight_var"
        )
    return _number(keep)


def edge_of_chaos(
    activation: Name | Function,
    weight_var: ArrayLike | None = None,
    bias_var: ArrayLike | None = None,
    keep: ArrayLike | None = 1.0,
) -> Any:
    """The one parameter that is None, such that chi_1 = 1."""
    missing = [name for name, x in (("weight_var", weight_var), ("bias_var", bias_var), ("keep", keep)) if x is None]
    if missing == ["weight_var"]:
        return critical_weight_var(activation, bias_var, keep)
    if missing == ["bias_var"]:
        return critical_bias_var(activation, weight_var, keep)
    if missing == ["keep"]:
        return critical_keep(activation, weight_var, bias_var)
    raise ValueError(f"edge_of_chaos: expected exactly one parameter to be None, got {missing}; give the two others")
