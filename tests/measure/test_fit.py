"""Fitted exponents: exact laws, coverage of the interval, the finite-width correction, and input
that is refused."""

import re

import numpy as np
import pytest
from support.errors import refuses

from orderone.measure import fit_exponent
from orderone.measure.fit import fit_noisy_exponent

WIDTHS = np.repeat([64, 128, 256, 512, 1024], 8)


@pytest.mark.parametrize("correction", [False, True])
@pytest.mark.parametrize("exponent", [-1.5, 0.0, 0.5])
def test_a_noiseless_law_is_found_exactly(exponent, correction):
    fit = fit_exponent(WIDTHS, 3.0 * WIDTHS**exponent, correction=correction)
    assert fit.exponent == pytest.approx(exponent, abs=1e-9)
    assert exponent in fit
    assert fit.high - fit.low < 1e-6


def test_fits_of_noisy_means_have_the_right_coverage_and_weights():
    rng, h = np.random.default_rng(0), np.array([0.5, 0.25, 0.125, 0.0625])
    noise = np.array([0.02, 0.01, 0.01, 0.005]) * h**2
    fits = [
        fit_noisy_exponent(h, -(h**2) + noise * rng.normal(size=4), noise, confidence=0.9)
        for _ in range(400)
    ]
    assert 0.87 < np.mean([2.0 in fit for fit in fits]) < 0.98
    lost = fit_noisy_exponent(h, [0.25, 0.0625, 0.9, 0.00390625], [1e-4, 1e-4, 10.0, 1e-4])
    assert lost.exponent == pytest.approx(2, abs=1e-3)
    bent = fit_noisy_exponent(h, h**2 * (1 + h), h**2 / 1e4)
    assert bent.high - bent.low > 0.1  # not by noise: it is no power law


def test_the_interval_has_the_right_coverage():
    rng = np.random.default_rng(0)
    fits = [
        fit_exponent(WIDTHS, WIDTHS**0.5 * np.exp(0.2 * rng.normal(size=40)), confidence=0.9)
        for _ in range(2000)
    ]
    covered = np.mean([0.5 in fit for fit in fits])
    assert covered == pytest.approx(0.9, abs=4 * np.sqrt(0.9 * 0.1 / 2000))


def test_the_correction_removes_the_bend_of_a_sum_of_two_laws():
    rng = np.random.default_rng(1)
    sizes = (WIDTHS**0.5 + 1.5) * np.exp(0.02 * rng.normal(size=40))
    assert 0.5 not in fit_exponent(WIDTHS, sizes, correction=False)
    assert 0.5 in fit_exponent(WIDTHS, sizes, correction=True)


@pytest.mark.parametrize(
    ("widths", "sizes", "message"),
    [
        ([64, 128, 256, 512], [1.0, 1.0, 1.0], "sizes: .*4 widths.* 3"),
        ([64, 64, 64, 64], [1.0, 2.0, 1.0, 2.0], "widths: .*got 1 and 4"),
        ([64, 128, 256], [1.0, 1.0, 1.0], "widths: .*got 3 and 3"),
        ([64, 128, 256, 512], [1.0, 0.0, 1.0, 1.0], "sizes: .*positive.* 0.0 to"),
        ([64, 128, 256, 512], [1.0, np.inf, 1.0, 1.0], "sizes: .*finite.* to inf"),
        ([64, 128, 256, 512], [1.0, np.nan, 1.0, 1.0], "sizes: .*finite.* nan"),
        ([0, 128, 256, 512], [1.0, 1.0, 1.0, 1.0], "widths: .*positive.* 0.0 to"),
        ([64, 128, 256, np.inf], [1.0, 1.0, 1.0, 1.0], "widths: .*finite.* to inf"),
    ],
)
def test_bad_measurements(widths, sizes, message):
    with refuses("invalid-argument", argument=message.partition(":")[0]) as caught:
        fit_exponent(widths, sizes)
    assert re.match(message, str(caught.value))


def test_bad_confidence():
    with refuses("invalid-argument", argument="confidence"):
        fit_exponent(WIDTHS, WIDTHS, confidence=1.0)


def test_no_exponent_is_printed_as_minus_zero():
    fit = fit_exponent([64, 128, 256, 512], [1, 1, 1, 0.9999])
    assert fit.exponent < 0
    assert "-0.00" not in str(fit)
