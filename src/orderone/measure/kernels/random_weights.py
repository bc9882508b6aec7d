"""Whether weights look like independent draws with one variance, as the limit assumes.

A limit knows weights by their variance only. It is another one if

    weights or biases have a mean, as after nn.init.constant_ or nn.init.eye_, or after training
    neurons have weights of different sizes
    a few directions hold most of a matrix, as in a product of thin matrices, or after training
    gains differ from neuron to neuron
    weights of two layers are correlated, as after copying, transposing or negating one of them
    a function follows a few weights that are not Gaussian, so that its neurons are not either

so all of these are refused. With N independent entries, their mean has the standard error
size / sqrt(N); the mean square of m entries has the relative variance (k - 1) / m, where k is the
kurtosis; and the largest singular value of an n x m matrix is (sqrt(n) + sqrt(m)) times the size of
an entry. All bounds are exceeded by chance in less than one of 10^6 tensors.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orderone.core.errors import InputError

MOST_ERRORS = 6.0  # largest mean, in standard errors
ENOUGH = 32  # fewest entries whose mean is judged
MOST_SCATTER = 5.0  # largest variance of the rows' mean squares, relative to that of equal rows
FEWEST = 16  # rows, and entries in a row, that are compared
MOST_IN_ONE = 4.0  # largest square of a singular value, relative to that of independent entries
PRODUCTS = 4  # of the power iteration, which finds a lower bound of that value
REACH = 10.0  # standard deviations, and points, of an average over a neuron
POINTS = 2001
SAME = 1e-6  # largest relative difference of equal gains
COMPARED = 4096  # entries of two matrices that are compared
MOST_CORRELATION = 10.0  # times 1 / sqrt(entries), the size for independent entries
MOST_KURTOSIS = 0.35  # largest excess kurtosis of a neuron
MOST_CHANGE = 0.12  # largest relative change of E[phi^2] by it: that of a square
# Excess kurtosis of N Gaussian draws, times sqrt(N): outside in less than one of 10^5 tensors
LIGHT = -16.0
HEAVY = 80.0


def check_centred(values: Tensor, name: str) -> None:
    """Raise if the entries have a mean."""
    entries = values.detach().double().flatten()
    mean = float(entries.mean())
    spread = float(entries.std(correction=0))
    is_constant = len(entries) > 1 and spread <= SAME * abs(mean) and mean != 0
    has_mean = len(entries) >= ENOUGH and abs(mean) > MOST_ERRORS * spread / len(entries) ** 0.5
    if is_constant or has_mean:
        raise _refusal(
            f"the entries of {name!r} have the mean {mean:.3g} (their standard deviation is"
            f" {spread:.3g}), so they are not independent draws with mean 0"
        )


def check_rows(rows: Tensor, name: str) -> None:
    """Raise if the weights of some neurons are larger than those of others."""
    if rows_differ(rows):
        raise _refusal(f"the weights of {name!r} have different sizes for different neurons")


def rows_differ(rows: Tensor) -> bool:
    """Return whether the mean squares of rows scatter more than those of independent draws."""
    flat = rows.detach().double().flatten(1)
    if flat.shape[0] < FEWEST or flat.shape[1] < FEWEST:
        return False
    square = flat.square()
    total = square.mean()
    if total == 0:
        return False
    kurtosis = square.square().mean() / total**2
    scatter = square.mean(1).var() / total**2
    expected = (kurtosis - 1).clamp(min=0.1) / flat.shape[1]
    return bool(scatter > MOST_SCATTER * expected)


def check_directions(weight: Tensor, name: str) -> None:
    """Raise if one direction holds more of a matrix than of independent draws."""
    matrix = weight.detach().flatten(1).float()
    n, m = matrix.shape
    if min(n, m) < FEWEST or not bool(matrix.any()):
        return
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(m, generator=generator, dtype=matrix.dtype).to(matrix.device)
    for _ in range(PRODUCTS):
        vector = matrix.T @ (matrix @ (vector / vector.norm()))
    largest = float(vector.norm())
    usual = (n**0.5 + m**0.5) ** 2 * float(matrix.square().mean())
    if largest > MOST_IN_ONE * usual:
        raise _refusal(f"a few directions hold most of {name!r}, as in a matrix of low rank")


def sampled(weight: Tensor) -> list[Tensor]:
    """Return entries of a matrix at places that depend on its shape alone.

    Those of the transpose are the same, or the second ones if the matrix is square.
    """
    matrix = weight.detach().flatten(1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    generator = torch.Generator().manual_seed(0)
    number = min(COMPARED, matrix.numel())
    draws = torch.rand(2, number, generator=generator, dtype=torch.float64)
    rows, columns = (draws * torch.tensor(matrix.shape)[:, None]).long().to(matrix.device)
    entries = [matrix[rows, columns].double()]
    if matrix.shape[0] == matrix.shape[1]:
        entries.append(matrix[columns, rows].double())
    return entries


def are_correlated(first: Tensor, second: Tensor) -> bool:
    """Return whether these entries of two matrices are more alike than independent ones."""
    size = float(first.norm() * second.norm())
    if len(first) != len(second) or len(first) < ENOUGH or size == 0:
        return False
    return abs(float(first @ second)) > MOST_CORRELATION / len(first) ** 0.5 * size


def excess_kurtosis(weight: Tensor, fan_in: int) -> float:
    """Return the excess kurtosis of sums over `fan_in` of these weights, for inputs of one size.

    It is 0 for Gaussian weights; other sums have that of a weight, divided by `fan_in`.
    """
    entries = weight.detach().double().flatten()
    square = entries.square()
    total = square.mean()
    if total == 0:
        return 0.0
    excess = float(square.square().mean() / total**2) - 3
    by_chance = LIGHT < excess * len(entries) ** 0.5 < HEAVY
    return 0.0 if by_chance else excess / fan_in


def change_of_square(function: Callable[[Tensor], Tensor], variance: float, excess: float) -> float:
    """Return the relative change of E[phi^2] for a neuron with this excess kurtosis.

    To first order in the excess it is excess / 24 E[phi^2 He_4] / E[phi^2], with the Hermite
    polynomial He_4 = x^4 - 6 x^2 + 3 of x = z / sqrt(variance) (Gram-Charlier). For z^2 this is
    excess / 3.
    """
    x = torch.linspace(-REACH, REACH, POINTS, dtype=torch.float64)
    density = torch.exp(-x.square() / 2)
    with torch.no_grad():
        square = function(variance**0.5 * x).square() * density
    total = float(square.sum())
    if not 0 < total < math.inf:
        return 0.0
    return excess / 24 * float((square * (x**4 - 6 * x.square() + 3)).sum()) / total


def excess_of_shifts(shifts: Tensor, neurons: Tensor, weight_var: float = 0.0) -> float:
    """Return the excess kurtosis of neurons due to biases or positions, which are a part of them.

    The other part is Gaussian, and has at least the size for inputs of order one, `weight_var`. A
    part of the variance adds its square times its excess kurtosis.
    """
    entries = shifts.detach().double().flatten()
    variance = float(entries.square().mean())
    if variance == 0:
        return 0.0
    total = float(neurons.detach().double().square().mean())
    share = variance / (variance + max(total - variance, weight_var))
    excess = float((entries**4).mean()) / variance**2 - 3
    return excess * share**2


def common_size(gains: Tensor, name: str) -> float:
    """Return the size of gains; raise if they differ."""
    entries = gains.detach().double().flatten()
    size = float(entries.abs().max())
    if float((entries - entries[0]).abs().max()) > SAME * size:
        raise _refusal(f"the entries of {name!r} differ from neuron to neuron")
    return size


def zero_rows(table: Tensor) -> Tensor:
    """Return the numbers of rows that are zero, such as that of padding."""
    return torch.nonzero((table.detach() == 0).all(dim=1)).flatten()


def _refusal(reason: str) -> InputError:
    return InputError(
        f"model: {reason}; the limit of infinite width is that of random weights, which are known"
        " by their variance; pass a model as it is initialized, with random weights and biases",
        "no-infinite-width",
        argument="model",
    )
