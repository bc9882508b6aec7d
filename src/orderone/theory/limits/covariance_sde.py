"""Neural covariance SDE: covariances of a shaped network with depth proportional to width.

    dV = b(V) dt + Sigma(V)^{1/2} dB                                                        S3 (2.7)
    Sigma_{ab,cd} = V_ac V_bd + V_ad V_bc

V_0 is the covariance of the inputs; t = layer / width lies in [0, T]. b is (2.8) for shaped
ReLU-like activations and (2.9) for smooth ones. Erratum S3.2: the sign in nu is that of (2.8).
The module `drift` contains the flows of b, `integrators` the steps.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from dataclasses import dataclass

import array_api_compat
import numpy as np

from orderone.core.covariances import bounded, covariance
from orderone.core.errors import InputError, instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import Array, ArrayLike, Count, Flag, Name, Number
from orderone.core.normals import Normals
from orderone.core.reals import steps
from orderone.theory.limits.drift import Drift, ReLUDrift, SmoothDrift, diagonal
from orderone.theory.limits.integrators import SCHEMES, Euler, Geometric
from orderone.theory.limits.shaped import PhiInput, ShapedReLU, ShapedSmooth

ACTIVATIONS = ("shaped-relu", "shaped-smooth", "linear")
PATHS = 8192
# Entries of V in one block: as many as fit in the cache of a CPU core, or fill a GPU.
AT_ONCE_ON_CPU = 2**17
AT_ONCE_ELSEWHERE = 2**22
# Smooth drifts can blow up; S3 Definition A.6 stops a path that leaves a large ball. Its radius
# here is this factor times the larger of the start and 1.
STOPPED_AT = 1e4


@dataclass(frozen=True)
class Paths:
    """Result of a simulation: final covariances, and the numbers of corrections."""

    V: Array  # (paths, m, m)
    projected: int  # steps that left the covariances and were projected; 0 for "geometric"
    stopped: int  # paths that were stopped before they exceeded `STOPPED_AT`
    steps: int
    dt: float


@dataclass(frozen=True)
class CovarianceSDE:
    """Neural covariance SDE of one activation.

    `activation` is "shaped-relu" with c_plus and c_minus, "shaped-smooth" with phi and a, or
    "linear". `phi` is tanh, sin, atan, asinh, expm1, or a function of arrays with phi(0) = 0 and
    phi'(0) = 1. With c_plus = c_minus the network is linear: the drift vanishes.
    """

    activation: Name = "shaped-relu"
    c_plus: Number = 0.0
    c_minus: Number = -1.0
    phi: PhiInput = "tanh"
    a: Number = 1.0

    def __post_init__(self) -> None:
        _ = self.drift  # raises for invalid arguments

    @property
    def drift(self) -> Drift:
        kind = one_of(self.activation, ACTIVATIONS, "activation")
        if kind == "shaped-smooth":
            shaped = ShapedSmooth(self.phi, self.a)
            second, third = shaped.derivatives
            return SmoothDrift(second**2 / (4 * shaped.a**2), third / (2 * shaped.a**2))
        if kind == "linear":
            return ReLUDrift(0.0)
        return ReLUDrift(ShapedReLU(self.c_plus, self.c_minus).drift)

    def sample(
        self,
        V0: ArrayLike,
        T: Number = 1.0,
        paths: Count | None = None,
        dt: Number = 1e-2,
        seed: Count = 0,
        scheme: Name = "geometric",
        antithetic: Flag = False,
    ) -> Array:
        """Return covariances at time T, (paths, m, m), of the library, dtype and device of V0.

        `V0` is (m, m), for `paths` paths (8192 if None), or (paths, m, m), a start for each.
        `scheme` is "geometric" (weak order 2, never leaves the covariances) or "euler". Equal seeds
        give equal numbers. With `antithetic`, paths 2k and 2k + 1 have opposite noise. Steps are in
        double precision for any dtype. If rounding to float32 makes a covariance indefinite, its
        variances are raised by a few units of rounding.
        """
        return self.simulate(V0, T, paths, dt, seed, scheme, antithetic).V

    def simulate(
        self,
        V0: ArrayLike,
        T: Number = 1.0,
        paths: Count | None = None,
        dt: Number = 1e-2,
        seed: Count = 0,
        scheme: Name = "geometric",
        antithetic: Flag = False,
    ) -> Paths:
        """Return the result of `sample` with the numbers of projected steps and stopped paths."""
        start, xp = covariance(V0, batch=True)
        number, h = steps(T, dt)
        paths = _number_of_paths(paths, start)
        seed = count(seed, "seed", least=0)
        antithetic = instance(antithetic, bool, "antithetic", "pass True or False")
        integrator = SCHEMES[one_of(scheme, SCHEMES, "scheme")]
        V = xp.empty(
            (paths, *start.shape[-2:]), dtype=start.dtype, device=array_api_compat.device(start)
        )
        projected = 0
        stopped = 0
        block = _block(start)
        for i, first in enumerate(range(0, paths, block)):
            last = min(first + block, paths)
            if start.ndim == 3:
                V_start = start[first:last]
            else:
                V_start = xp.broadcast_to(start, (last - first, *start.shape))
            # in single precision, steps would leave the covariances by more than rounding
            V_start = xp.astype(V_start, xp.float64)
            solver = integrator(self.drift, h, Normals(V_start, seed, i, antithetic))
            V_end, newly_stopped = _run(solver, self.drift, V_start, number)
            V[first:last] = _rounded(V_end, start.dtype)
            projected += solver.projected
            stopped += newly_stopped
        return Paths(V, projected, stopped, number, h)


def _run(solver: Geometric | Euler, drift: Drift, V0: Array, number: int) -> tuple[Array, int]:
    """Return V at the end and the number of stopped paths.

    V is (paths, m, m) outside, and (m, m, paths) in the steps.
    """
    xp = array_api_compat.array_namespace(V0)
    V, norm = _split(V0, drift)
    stopped = xp.zeros(V.shape[2], dtype=xp.bool, device=array_api_compat.device(V))
    largest = STOPPED_AT * xp.max(bounded(diagonal(V), 1.0), axis=0)
    calls = number + 1 if number else 0  # one of `start`, then the steps
    for k in range(calls):
        before = V
        with np.errstate(over="ignore", invalid="ignore"):  # paths that overflow are stopped
            if k == 0:
                V = solver.start(V)
            else:
                V = solver.step(V, last=k == number)
        if not drift.scale_free:
            stopped = stopped | ~xp.all(diagonal(V) <= largest, axis=0)
            V = xp.where(stopped, before, V)
    V = _valid(V * norm[:, None] * norm[None, :])
    return xp.permute_dims(V, (2, 0, 1)), int(xp.sum(xp.astype(stopped, xp.int64)))


def _split(V0: Array, drift: Drift) -> tuple[Array, Array]:
    """Return correlations (m, m, paths) and norms (m, paths), so that nothing overflows.

    If the SDE depends on norms, return covariances and norms of 1.
    """
    xp = array_api_compat.array_namespace(V0)
    V = xp.asarray(xp.permute_dims(V0, (1, 2, 0)), copy=True)
    norm = xp.sqrt(bounded(diagonal(V), 0.0))
    if not drift.scale_free:
        return V, xp.ones_like(norm)
    safe = xp.where(norm > 0, norm, xp.ones_like(norm))
    return V / safe[:, None] / safe[None, :], norm


def _valid(V: Array) -> Array:
    """Make V symmetric and clip correlations to [-1, 1] in place."""
    xp = array_api_compat.array_namespace(V)
    for i in range(V.shape[0]):
        for j in range(i):
            bound = xp.sqrt(V[i, i]) * xp.sqrt(V[j, j])
            V[i, j] = xp.minimum(xp.maximum(V[i, j], -bound), bound)
            V[j, i] = V[i, j]
    return V


def _rounded(V: Array, dtype: object) -> Array:
    """Return (paths, m, m) as covariances of `dtype`.

    A diagonal raised by 2 m units of rounding compensates the rounding of all entries.
    """
    xp = array_api_compat.array_namespace(V)
    if dtype == V.dtype:
        return V
    with np.errstate(over="ignore"):
        small = xp.astype(V, dtype)
    back = xp.astype(small, V.dtype)
    m = V.shape[-1]
    sound = xp.all(xp.reshape(xp.isfinite(back), (-1, m * m)), axis=-1)
    back = xp.where(sound[:, None, None], back, xp.zeros_like(back))
    norm = xp.sqrt(xp.linalg.diagonal(back))
    norm = xp.where(norm > 0, norm, xp.ones_like(norm))
    broken = xp.linalg.eigvalsh(back / norm[:, :, None] / norm[:, None, :])[:, 0] < -1e-14 * m
    one = xp.eye(m, dtype=V.dtype, device=array_api_compat.device(V))
    with np.errstate(over="ignore"):
        raised = xp.astype(V * (1 + one * (2 * m * xp.finfo(dtype).eps)), dtype)
    return xp.where(broken[:, None, None], raised, small)


def _number_of_paths(paths: Count | None, start: Array) -> int:
    if start.ndim == 2:
        if paths is None:
            return PATHS
        return count(paths, "paths")
    if paths is not None and count(paths, "paths") != len(start):
        raise InputError(
            f"paths: expected {len(start)}, one for each V0, got {paths}; omit this argument",
            argument="paths",
        )
    return len(start)


def _block(start: Array) -> int:
    """Return the number of paths that are computed together."""
    on_host = str(array_api_compat.device(start)) == "cpu"
    if on_host:
        numbers = AT_ONCE_ON_CPU
    else:
        numbers = AT_ONCE_ELSEWHERE
    pairs = numbers // int(np.prod(start.shape[-2:])) // 2
    return 2 * max(32, pairs)
