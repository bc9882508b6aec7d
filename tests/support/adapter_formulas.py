"""Rates of adapters by hand, and how far a measured rate may be from them.

A plan measures a response: the mean over T random tokens x, with random gradients g of the output,
of the RMS of the change of the output. Here the same numbers come from formulas: `size` is a closed
form of the response, `step` computes it for one random adapter, with numpy and without gradients.
n is the number of inputs and outputs, r the rank, h = A x; all random numbers are Gaussian.

    LoRA, B     dy_i = sign(g_i) sum_k |h_k|: r E|h|. (Multiplier s: r s.)
      A         dy_i = sign(g_i) r |x|_1 times the size of B, which is 1 / (r s): no power of r.
      SGD       dy = s^2 |h|^2 g for B: r s^2. For A, s^4 (rate of B)^2 |h|^2, so 1 / r.
    HiRA, B     W * (B A): dy_i = sum_k |q_ik| with q_ik = sum_j W_ij A_kj x_j. The RMS over i of
                a sum of r sizes is r (1 + K'/r)^1/2. K' = E q^2 / (E|q|)^2 - 1. The square of the
                scale of q_ik differs between k and tokens by the relative variance
                (E A^4 E x^4 - 1) / n = 8 / n, which makes E|q| smaller by the factor 1 - 1/n:
                K' = (pi/2) (1 - 1/n)^-2 - 1.
    sparse      k trained entries in each row: dy_i is a sum of k of n numbers |x_j|, drawn without
                repetition: k (1 + K (n - k) / ((n - 1) k))^1/2 with K = pi/2 - 1.
    OFT         y = W R x with R = 1 - 2 (Q - Q^T) + ... in blocks of size b. With u = W^T g, the
                gradient of Q_ac is proportional to u_a x_c - u_c x_a, and x changes by
                z_a = 4 sum_c sign(u_a x_c - u_c x_a) x_c. Given u_a and x_a, a term has the mean
                (2/pi)^1/2 u_a / (u_a^2 + x_a^2)^1/2 and the mean square 1, and
                E u^2 / (u^2 + x^2) = 1/2.
                So E z_a^2 = 16 (b - 1) (1 + (b - 2) / pi). The part of z along u = W^T g, which is
                E z_a u_a = 2 (b - 1), is larger after the product with W: E |W u|^2 = 2 E |u|^2.
                Together: ((b - 1) (1 + (b - 2) / pi + (b - 1) / 4))^1/2.
    VeRA, b     dy_i = |v_i|, v = B (d * h): E|h| / r^1/2 = (2/r)^1/2 Gamma((r + 1)/2) / Gamma(r/2).
      d         dy_i = (size of b) sign(g_i v_i) (B a)_i, a_k = |h_k| sign(w_k), w = B^T c,
                c_i = |g_i| sign(v_i). In units, w_k = z + l h_k with z Gaussian and
                l = (2/pi) (n/r)^1/2 = tan t. Along c, B a is r^1/2 E|h w| = r^1/2 (2/pi) (1 + t l);
                across it, a = f h + rest with f = E h^2 sign(h w) = (2/pi) (t + sin t cos t), and
                v = B h has the share 4/pi^2 of its square along c. Together the mean square is
                1 + (4/pi^2) ((r/n) (1 + t l)^2 - f^2). It goes to 1 for r << n, and grows like
                (4/pi^2) r / n for r >> n.
    core        one number times L R x: VeRA's b times r^1/2.
    LoHa, B1    (B1 A1) * (B2 A2): HiRA's B with entries of size r^1/2 in the place of W: r^3/2 up
                to corrections of order 1/r.

A measured rate scatters, because it has T tokens and one draw of the adapter. `simulated` repeats
both for many random adapters; the standard deviation of the logarithm is the spread of one plan.
(Simulations draw other tokens for base and target. Plans use the same ones, so they scatter less.)
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TOKENS = 32  # of planning.adapter_response
K = math.pi / 2 - 1
Random = np.random.Generator
Size = Callable[[int, int], float]  # rank, n -> response, up to a constant
Step = Callable[[int, int, Random], float]  # rank, n -> mean response of one random adapter


class Rate(NamedTuple):
    """Factor of a learning rate, and the standard deviation of its logarithm for one adapter."""

    factor: float
    spread: float


# --- closed forms ---------------------------------------------------------------------------------


def lora_up(r: int, n: int) -> float:
    return r


def hira_up(r: int, n: int) -> float:
    excess = (math.pi / 2) * (1 - 1 / n) ** -2 - 1
    return r * math.sqrt(1 + excess / r)


def sparse(k: int, n: int) -> float:
    return k * math.sqrt(1 + K * (n - k) / ((n - 1) * k))


def oft(b: int, n: int) -> float:
    return math.sqrt((b - 1) * (1 + (b - 2) / math.pi + (b - 1) / 4))


def vera_b(r: int, n: int) -> float:
    return math.sqrt(2 / r) * math.exp(math.lgamma((r + 1) / 2) - math.lgamma(r / 2))


def vera_d(r: int, n: int) -> float:
    growth = (2 / math.pi) * math.sqrt(n / r)
    angle = math.atan(growth)
    share = (2 / math.pi) * (angle + math.sin(angle) * math.cos(angle))
    along = (r / n) * (1 + angle * growth) ** 2
    return math.sqrt(1 + (4 / math.pi**2) * (along - share**2))


def core(r: int, n: int) -> float:
    return math.sqrt(r) * vera_b(r, n)


# --- the same steps for one random adapter --------------------------------------------------------


def lora_up_step(r: int, n: int, rng: Random) -> float:
    a = _matrix(r, n, rng)
    return _mean(lambda: float(np.abs(a @ rng.standard_normal(n)).sum()))


def lora_sgd_step(r: int, n: int, rng: Random) -> float:
    a = _matrix(r, n, rng)
    return _mean(lambda: float(((a @ rng.standard_normal(n)) ** 2).sum()))


def hira_up_step(r: int, n: int, rng: Random) -> float:
    w = _matrix(n, n, rng)
    a = _matrix(r, n, rng)
    return _mean(lambda: _rms(np.abs(w @ (a * rng.standard_normal(n)).T).sum(1)))


def hira_down_step(r: int, n: int, rng: Random) -> float:
    """Return the response of A, relative to that of B.

    B_ik = -sign(g_i q_ik), dA_kj = sign(x_j) sign(sum_i |g_i| sign(q_ik) W_ij).
    """
    w = _matrix(n, n, rng)
    a = _matrix(r, n, rng)
    of_a: list[float] = []
    of_b: list[float] = []
    for _ in range(TOKENS):
        x = rng.standard_normal(n)
        g = rng.standard_normal(n)
        q = w @ (a * x).T
        up = -np.sign(q) * np.sign(g)[:, None]
        down = np.sign((np.abs(g)[:, None] * np.sign(q)).T @ w) * np.sign(x)
        of_a.append(_rms(((up @ down) * w) @ x))
        of_b.append(_rms(np.abs(q).sum(1)))
    return float(np.mean(of_a) / np.mean(of_b))


def sparse_step(k: int, n: int, rng: Random) -> float:
    places = np.stack([rng.permutation(n)[:k] for _ in range(n)])
    return _mean(lambda: _rms(np.abs(rng.standard_normal(n))[places].sum(1)))


def oft_step(b: int, n: int, rng: Random) -> float:
    w = _matrix(n, n, rng)

    def one_token() -> float:
        x = rng.standard_normal((n // b, b))
        u = (w.T @ rng.standard_normal(n)).reshape(n // b, b)
        signs = np.sign(u[:, :, None] * x[:, None, :] - x[:, :, None] * u[:, None, :])
        return _rms(w @ np.einsum("gac,gc->ga", signs, x).ravel())

    return _mean(one_token)


def vera_b_step(r: int, n: int, rng: Random) -> float:
    a = _matrix(r, n, rng)
    b = _matrix(n, r, rng)
    return _mean(lambda: _rms(b @ (a @ rng.standard_normal(n))))


def vera_d_step(r: int, n: int, rng: Random) -> float:
    """Return the response of d, relative to that of b."""
    a = _matrix(r, n, rng)
    b = _matrix(n, r, rng)
    of_d: list[float] = []
    of_b: list[float] = []
    for _ in range(TOKENS):
        h = a @ rng.standard_normal(n)
        g = rng.standard_normal(n)
        v = b @ h
        signs = np.sign(h * (b.T @ (np.abs(g) * np.sign(v))))
        of_d.append(_rms(b @ (signs * h)))
        of_b.append(_rms(v))
    return float(np.mean(of_d) / np.mean(of_b))


def core_step(r: int, n: int, rng: Random) -> float:
    return math.sqrt(r) * vera_b_step(r, n, rng)


def loha_up_step(r: int, n: int, rng: Random) -> float:
    a = _matrix(r, n, rng)
    p = rng.standard_normal((n, r)) @ _matrix(r, n, rng)
    return _mean(lambda: _rms(np.abs(p @ (a * rng.standard_normal(n)).T).sum(1)))


def simulated(step: Step, ranks: tuple[int, int], n: int, draws: int = 40) -> Rate:
    """Return the factor of a rate, base over target, and its spread, from random adapters."""
    rng = np.random.default_rng([*ranks, n])
    logs = [np.log([step(rank, n, rng) for _ in range(draws)]) for rank in ranks]
    factor = math.exp(logs[0].mean() - logs[1].mean())
    return Rate(factor, math.sqrt(logs[0].var(ddof=1) + logs[1].var(ddof=1)))


def _matrix(rows: int, columns: int, rng: Random) -> np.ndarray:
    return rng.standard_normal((rows, columns)) / math.sqrt(columns)


def _mean(one_token: Callable[[], float]) -> float:
    return float(np.mean([one_token() for _ in range(TOKENS)]))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt((values**2).mean()))
