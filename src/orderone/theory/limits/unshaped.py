"""Correlation of two inputs in an unshaped ReLU network, magnified around its fixed point 1.

    q = l^2 (1 - rho_l),   r = log q,   t = l / n
    dr = [-2 + 2 (1 - c e^{r/2}) / t] dt + 2 sqrt(2) dB,       c = sqrt(2) / (3 pi)         S3 (4.8)

Erratum S3.1: the drift of dq in (4.7) and (4.19)-(4.21) has the wrong sign before its last term;
(4.8) and (4.9) are right.

Scheme **euler** is (4.9): the step from t to t + h evaluates 1/t at t + h, and starts at t = 0 from
r_0 = log(1 - rho_0).

Scheme **exact** uses that u = q^{-1/2} obeys a linear equation with a known solution,

    du  = [(2 - 1/t) u + c/t] dt - sqrt(2) u dB
    u_t = (c/t) int_0^t exp((t - s) - sqrt(2) (B_t - B_s)) ds   + (t_0/t) u_{t_0} exp(...),

and the second term vanishes as t_0 -> 0. So there is one solution from the singularity: it starts
at q = 1 / c^2 = 9 pi^2 / 2, the limit of the infinite-width recursion, and does not depend on
rho_0. The dependence of (4.9) on rho_0 is an error of order h, as that of a network is of order
1/n. E u_t = c (e^{2t} - 1) / (2 t).

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from dataclasses import dataclass
from math import log, pi, sqrt

import array_api_compat
import numpy as np

from orderone.core.covariances import array, bounded
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Array, ArrayLike, Count, Name, Number
from orderone.core.normals import Normals
from orderone.core.real_arrays import reals
from orderone.core.reals import real, steps

C = sqrt(2) / (3 * pi)
SCHEMES = ("euler", "exact")
LARGEST = 600.0  # bound of r, so that e^{r / 2} does not overflow; networks stay far below


@dataclass(frozen=True)
class UnshapedCorrelationSDE:
    """SDE (4.8) of S3. Width and depth enter only through T = depth / width."""

    def sample(
        self,
        rho0: ArrayLike = 0.3,
        T: Number = 1.0,
        paths: Count = 8192,
        dt: Number = 1e-2,
        seed: Count = 0,
        scheme: Name = "euler",
    ) -> Array:
        """Return r = log(l^2 (1 - rho)) at layer l = T n, (paths,).

        If `rho0` is a torch tensor, so is the result, on its device. rho0 = 1 gives r = -inf. The
        scheme "exact" has only the error of an integral (order dt^2) and does not use rho0 < 1.
        """
        start, xp = array(rho0, "rho0")
        if start.ndim or not bool((start >= -1) & (start <= 1)):
            raise InputError(
                f"rho0: expected a correlation in [-1, 1], got {rho0!r}", argument="rho0"
            )
        number, h = steps(T, dt)
        paths = count(paths, "paths")
        kind = one_of(scheme, SCHEMES, "scheme")
        seed = count(seed, "seed", least=0)
        r = xp.zeros(paths, dtype=start.dtype, device=array_api_compat.device(start))
        if bool(start == 1):
            return r - xp.inf
        if number == 0:
            return r + xp.log(1 - start)
        normals = Normals(r, seed)
        if kind == "exact":
            return _exact(r, number, h, normals)
        return _euler(r + xp.log(1 - start), number, h, normals)

    def sensitivity(
        self, rho0: ArrayLike, T: Number = 1.0, dt: Number = 1e-2, paths: Count = 8192
    ) -> np.ndarray:
        """Return the mean of r for each start.

        All starts have the same noise, so that differences are due to the start alone.
        """
        starts = reals(rho0, "rho0", least=-1, most=1).ravel()
        means = [float(np.mean(self.sample(start, T, paths, dt))) for start in starts]
        return np.asarray(means)

    def mean_inverse_root(self, T: Number = 1.0) -> float:
        """Return E q_T^{-1/2}, in closed form."""
        t = real(T, "T", least=0, most=300)
        if t == 0:
            return C
        return C * float(np.expm1(2 * t)) / (2 * t)


def _euler(r: Array, number: int, h: float, normals: Normals) -> Array:
    """Run S3 (4.9) in place."""
    xp = array_api_compat.array_namespace(r)
    for k in range(number):
        pull = xp.exp(bounded(r, high=LARGEST) * 0.5)
        pull *= 2 * C / (k + 1)
        noise = normals(r.shape[0])
        noise *= (8 * h) ** 0.5
        noise -= pull
        r += noise
        r += 2 / (k + 1) - 2 * h
    return r


def _exact(r: Array, number: int, h: float, normals: Normals) -> Array:
    """Return -2 log u, with the integral by the trapezoidal rule.

    X = s - sqrt(2) B_s runs backwards from the end. `integral` is a logarithm, because the integral
    overflows for large T.
    """
    xp = array_api_compat.array_namespace(r)
    X = r
    integral = xp.full_like(r, log(0.5))
    for k in range(number):
        X = X + h - normals(r.shape[0]) * (2 * h) ** 0.5
        last = k == number - 1
        integral = xp.logaddexp(integral, X + log(0.5) if last else X)
    return -2 * integral - 2 * log(C / number)
