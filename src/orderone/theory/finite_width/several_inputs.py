"""Four-point vertex of an MLP for several inputs, to order 1/n.

    K_ab^(l+1)         = bias_var + weight_var E[phi_a phi_b]
    V_(ab)(cd)^(l+1)   = weight_var^2 Cov(phi_a phi_b, phi_c phi_d) / n_l
                         + sum over pairs of P_(ab)(ef) V_(ef)(gh) P_(cd)(gh)
    D_ab^(l+1)         = sum over pairs of P_(ab)(ef) D_ef
                         + 1/2 sum over pairs of H_(ab)(ef)(gh) V_(ef)(gh)
    P_(ab)(ef)         = dK_ab^(l+1) / dK_ef^l,     H_(ab)(ef)(gh) = d^2 K_ab^(l+1) / dK_ef dK_gh

V_(ab)(cd) = Cov(g_ab, g_cd), with g the covariance of the neurons of a layer, given the layers
before: E[z_ia z_ib z_jc z_jd] - E[z_ia z_ib] E[z_jc z_jd] for i != j. The mean of g is K + D to
order 1/n. By Price's theorem P is weight_var E[phi'_a phi'_b] for the pair itself; derivatives in
the variances are differences of K_ab. K_ab depends on K_aa, K_ab and K_bb alone, so the last sum is
a sum of second differences along the eigenvectors of their covariance. Covariances of products are
averages over Sobol points.

Roberts, Yaida & Hanin 2022, "The Principles of Deep Learning Theory", (4.90), and (4.115) for one
input.
"""

from dataclasses import dataclass

import numpy as np

from orderone.core.arrays import as_numpy
from orderone.core.errors import InputError
from orderone.core.inputs import ArrayLike, Function, Name, Number
from orderone.core.reals import real
from orderone.theory import activations
from orderone.theory.activations import Activation
from orderone.theory.finite_width.four_point import Widths, read_widths
from orderone.theory.kernels.validation import check_semidefinite, floating, square

MOST_INPUTS = 12  # vertices have inputs^4 entries
POINTS = 2**15
STEP = 1e-4  # of differences, relative to a variance
SECOND_STEP = 2e-3  # of second differences
NOISE = 1e-6  # share of an eigenvalue that is noise of Sobol points
LARGEST = 1e100


@dataclass(frozen=True, eq=False)
class FourPointKernel:
    """Moments of layers 1 .. depth."""

    covariance: np.ndarray  # K, (layers, inputs, inputs), of infinite width
    correction: np.ndarray  # D: the covariance is K + D to order 1/n
    vertex: np.ndarray  # V, (layers, inputs, inputs, inputs, inputs)


def _check_lengths(K: np.ndarray, layer: int) -> None:
    """Raise an InputError if a length of this layer is 0 or overflows."""
    if not (K.diagonal().min() > 0 and K.max() < LARGEST):
        raise InputError(
            "weight_var: expected lengths above 0 that stay finite, got lengths of 0 or"
            f" infinity in layer {layer}; take another weight_var or bias_var",
            argument="weight_var",
        )


def four_point_kernel(
    activation: Name | Function,
    widths: Widths,
    K0: ArrayLike,
    weight_var: Number = 1.0,
    bias_var: Number = 0.0,
) -> FourPointKernel:
    """Return covariance, correction and vertex of every layer.

    `widths` are the numbers of neurons of layers 1, 2, ..; `K0` has the products of inputs per
    feature, (inputs, inputs).
    """
    phi = activations.get(activation)
    sizes = read_widths(widths)
    matrix = square(floating(K0, "K0")[1], "K0")
    check_semidefinite(matrix, "K0")
    start = as_numpy(matrix).astype(float)
    if not sizes or len(start) > MOST_INPUTS:
        raise InputError(
            f"widths: expected the width of each layer, such as [64, 64], and at most {MOST_INPUTS}"
            f" inputs; got {widths!r} and {len(start)} inputs",
            argument="widths" if not sizes else "K0",
        )
    w = real(weight_var, "weight_var", above=0)
    b = real(bias_var, "bias_var", least=0)
    K = b + w * start
    D = np.zeros_like(K)
    V = np.zeros([len(K)] * 4)
    covariances = [K]
    corrections = [D]
    vertices = [V]
    for n in sizes[:-1]:
        _check_lengths(K, len(vertices))
        slopes = _slopes(phi, K, w)
        D = _half(slopes, D[:, :, None, None])[:, :, 0, 0] + w * _bends(phi, K, V)
        V = w**2 * _covariance_of_products(phi, K) / n + _through(slopes, V)
        K = b + w * _pairs(phi, K)
        covariances.append(K)
        corrections.append(D)
        vertices.append(V)
    return FourPointKernel(np.array(covariances), np.array(corrections), np.array(vertices))


def _pairs(phi: Activation, K: np.ndarray) -> np.ndarray:
    """Return E[phi_a phi_b] of all pairs."""
    q = K.diagonal()
    size = np.sqrt(np.multiply.outer(q, q))
    gap = np.clip(1 - K / size, 0, 2)
    np.fill_diagonal(gap, 0)
    return _pair(phi, q[:, None] + 0 * K, q[None, :] + 0 * K, gap)


def _pair(phi: Activation, q1: np.ndarray, q2: np.ndarray, gap: np.ndarray) -> np.ndarray:
    return np.asarray(phi.pair(q1, q2, gap), dtype=float)


def _slopes(phi: Activation, K: np.ndarray, w: float) -> tuple[np.ndarray, np.ndarray]:
    """Return dK'_ab / dK_ab, and dK'_ab / dK_aa at fixed K_ab; on the diagonal dK'_aa / dK_aa."""
    q = K.diagonal()
    left = q[:, None] + 0 * K
    right = q[None, :] + 0 * K
    gap = np.clip(1 - K / np.sqrt(left * right), 0, 2)
    np.fill_diagonal(gap, 0)
    cross = w * np.asarray(phi.derivative_pair(left, right, gap), dtype=float)
    values = []
    for sign in (1, -1):
        moved = left * (1 + sign * STEP)
        other = np.clip(1 - K / np.sqrt(moved * right), 0, 2)
        values.append(_pair(phi, moved, right, other))
    own = w * (values[0] - values[1]) / (2 * STEP * left)
    up, down = (_pair(phi, q * (1 + s * STEP), q * (1 + s * STEP), 0 * q) for s in (1, -1))
    np.fill_diagonal(own, w * (up - down) / (2 * STEP * q))
    return cross, own


def _bends(phi: Activation, K: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return half the second derivative of E[phi_a phi_b], contracted with V."""
    result = np.zeros_like(K)
    for a in range(len(K)):
        for b in range(a + 1):
            pairs = ([a, a, b], [a, b, b])
            at = K[pairs]
            eigenvalues, directions = np.linalg.eigh(V[pairs][:, *pairs])
            real_ones = eigenvalues > NOISE * max(eigenvalues.max(), 0.0)
            total = 0.0
            for value, direction in zip(
                eigenvalues[real_ones], directions.T[real_ones], strict=True
            ):
                step = SECOND_STEP * min(at[0], at[2])
                up, middle, down = _moved(phi, at, direction, step)
                total += value * (up - 2 * middle + down) / (2 * step**2)
            result[a, b] = result[b, a] = total
    return result


def _moved(phi: Activation, at: np.ndarray, direction: np.ndarray, step: float) -> np.ndarray:
    """Return E[phi_a phi_b] at three points of a line through K_aa, K_ab and K_bb."""
    left, cross, right = at[:, None] + step * direction[:, None] * np.array([1.0, 0.0, -1.0])
    gap = np.clip(1 - cross / np.sqrt(left * right), 0, 2)
    return _pair(phi, left, right, gap)


def _through(slopes: tuple[np.ndarray, np.ndarray], V: np.ndarray) -> np.ndarray:
    """Return P V P^T."""
    half = _half(slopes, V)
    return _half(slopes, half.transpose(2, 3, 0, 1)).transpose(2, 3, 0, 1)


def _half(slopes: tuple[np.ndarray, np.ndarray], V: np.ndarray) -> np.ndarray:
    """Apply P to the first pair of V."""
    cross, own = slopes
    index = np.arange(len(cross))
    single = V[index, index]  # (a, c, d)
    result = cross[:, :, None, None] * V
    result += own[:, :, None, None] * single[:, None] + own.T[:, :, None, None] * single[None]
    result[index, index] = own.diagonal()[:, None, None] * single
    return result


def _covariance_of_products(phi: Activation, K: np.ndarray) -> np.ndarray:
    """Return Cov(phi_a phi_b, phi_c phi_d)."""
    from orderone.theory.transformer.points import factor, mirrored, standard

    root, _ = factor(K)
    total = np.zeros([len(K) ** 2] * 2)
    mean = np.zeros(len(K) ** 2)
    for normals in standard(root.shape[1], POINTS, 0, 0, 2**13):
        z = mirrored(normals.astype(float), axis=0) @ root.T
        values = np.asarray(phi(z), dtype=float)
        products = (values[:, :, None] * values[:, None, :]).reshape(len(z), -1)
        total += products.T @ products
        mean += products.sum(axis=0)
    number = 2 * POINTS
    mean /= number
    covariance = total / number - np.multiply.outer(mean, mean)
    return covariance.reshape([len(K)] * 4)
