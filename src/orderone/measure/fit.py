"""Exponents from measurements: log y = e log n + k + d / sqrt(n), with a confidence interval for e.

Power laws of finite networks have corrections of relative size n^{-1/2}. A fit over widths 64 ...
1024 that ignores them is off by a few hundredths, and its interval does not show it. The third term
absorbs them.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtri, stdtrit

from orderone.core.errors import InputError, switch
from orderone.core.inputs import ArrayLike

# without noise, the interval would otherwise be narrower than the rounding of the logarithms
ROUNDING = 1e-9
FEW = 6  # degrees of freedom below which the noise of one row is hardly known
# rows that lie on a line do so by law, if among all rows of a study one of usual noise would be as
# near to a line with a lower probability
CHANCE = 1e-3


@dataclass(frozen=True)
class Fit:
    """A fitted exponent with its confidence interval."""

    exponent: float
    low: float
    high: float
    # exponent at the larger half of the sizes, where corrections of finite size are smaller
    upper: float = math.nan

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.exponent:+z.2f} [{self.low:+z.2f}, {self.high:+z.2f}]"


def _numbers(values: ArrayLike, name: str) -> np.ndarray:
    try:
        return np.asarray(values, float).ravel()
    except (TypeError, ValueError) as error:
        message = f"{name}: expected numbers, got {values!r}"
        raise InputError(message, argument=name) from error


def fit_exponent(
    widths: ArrayLike, sizes: ArrayLike, *, confidence: float = 0.99, correction: bool = True
) -> Fit:
    """Fit the exponent of `sizes` over `widths` (one entry for each run), with a t interval."""
    n = _numbers(widths, "widths")
    y = _numbers(sizes, "sizes")
    if n.shape != y.shape:
        message = f"sizes: expected one for each of {n.size} widths, got {y.size}"
        raise InputError(message, argument="sizes")
    parameters = 2
    if switch(correction, "correction"):
        parameters = 3
    _check(n, y, confidence, parameters)
    # relative to the largest width, so that the columns have similar sizes; the slope is the same
    columns = [np.log(n / n.max()), np.ones_like(n), (n / n.max()) ** -0.5 - 1]
    return _least_squares(np.stack(columns[:parameters], axis=1), np.log(y), confidence)


def fit_noisy_exponent(
    sizes: ArrayLike, means: ArrayLike, deviations: ArrayLike, *, confidence: float = 0.99
) -> Fit:
    """Fit the exponent of means with known standard deviations.

    This is least squares in logarithms with weights (mean / deviation)^2. If the points deviate
    from a line by more than their noise, the interval grows in proportion.
    """
    x = np.log(np.asarray(sizes, float))
    y = np.log(np.abs(np.asarray(means, float)))
    weights = (np.asarray(means, float) / np.asarray(deviations, float)) ** 2
    x = x - weights @ x / weights.sum()
    information = weights @ x**2
    slope = float(weights * x @ y / information)
    residual = y - weights @ y / weights.sum() - slope * x
    misfit = max(1.0, float(weights @ residual**2) / (len(x) - 2))
    reach = float(ndtri((1 + confidence) / 2) * np.sqrt(misfit / information))
    return Fit(slope, slope - reach, slope + reach)


def _least_squares(design: np.ndarray, target: np.ndarray, confidence: float) -> Fit:
    freedom = len(target) - design.shape[1]
    coefficients = np.linalg.lstsq(design, target, rcond=None)[0]
    residual = target - design @ coefficients
    covariance = np.linalg.inv(design.T @ design) * (residual @ residual) / freedom
    reach = float(stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(covariance[0, 0])) + ROUNDING
    exponent = float(coefficients[0])
    return Fit(exponent, exponent - reach, exponent + reach)


def _check(n: np.ndarray, y: np.ndarray, confidence: float, parameters: int) -> None:
    for name, values in (("widths", n), ("sizes", y)):
        if not (np.all(values > 0) and np.all(np.isfinite(values))):
            message = (
                f"{name}: expected positive finite numbers, got {values.min()} to {values.max()}"
            )
            raise InputError(message, argument=name)
    if len(np.unique(n)) < parameters or len(n) <= parameters:
        message = (
            f"widths: expected at least {parameters} different ones and more than {parameters}"
            f" points, got {len(np.unique(n))} and {len(n)}; measure more widths or seeds"
        )
        raise InputError(message, argument="widths")
    if not 0 < confidence < 1:
        message = f"confidence: expected a number between 0 and 1, got {confidence}"
        raise InputError(message, argument="confidence")


def fit_exponents(widths: ArrayLike, sizes: ArrayLike, *, confidence: float = 0.99) -> list[Fit]:
    """Fit log y = e log n + k to each row of `sizes`, all at the same widths.

    The result equals that of `fit_exponent` with correction=False, row by row. Coordinate checks
    use it: a bias of a few hundredths is far below the 0.25 that decides a verdict, and with three
    or four widths the third term would make the interval much wider. A correction of finite size
    shows in `upper`, the exponent at the larger half of the widths.

    With few points, a row may lie on a line by chance, and its interval would be too narrow. Rows
    of one study have similar noise: with fewer than six degrees of freedom, no row counts as less
    noisy than the median of all. Rows without noise are the exception: the output of a norm has a
    size that does not depend on the seed. In less than one of a thousand studies, a row of usual
    noise is as near to a line as they are.
    """
    n = np.asarray(widths, float)
    y = np.log(np.asarray(sizes, float))
    design = np.stack([np.log(n / n.max()), np.ones_like(n)], axis=1)
    freedom = len(n) - 2
    inverse = np.linalg.inv(design.T @ design)
    coefficients = y @ design @ inverse
    residual = ((y - coefficients @ design.T) ** 2).sum(axis=1)
    if freedom < FEW:
        residual = _at_least_usual(residual, freedom)
    deviations = np.sqrt(inverse[0, 0] * residual / freedom)
    reaches = stdtrit(freedom, (1 + confidence) / 2) * deviations + ROUNDING
    uppers = _upper_slopes(n, y)
    fits = []
    for exponent, reach, upper in zip(coefficients[:, 0], reaches, uppers, strict=True):
        low = float(exponent - reach)
        fits.append(Fit(float(exponent), low, float(exponent + reach), float(upper)))
    return fits


def _at_least_usual(residual: np.ndarray, freedom: int) -> np.ndarray:
    """Return sums of squared residuals, none below the median, except those of rows without noise.

    With the same noise in all rows, these sums are proportional to a chi-squared variable.
    """
    usual = np.median(residual)
    least = usual * chdtri(freedom, 1 - CHANCE / len(residual)) / chdtri(freedom, 0.5)
    return np.where(residual < least, residual, np.maximum(residual, usual))


def _upper_slopes(n: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the slope of each row at the larger half of the sizes, at least two of them."""
    distinct = np.unique(n)
    is_upper = n >= distinct[min(len(distinct) // 2, len(distinct) - 2)]
    x = np.log(n[is_upper])
    x = x - x.mean()
    return y[:, is_upper] @ x / (x @ x)
