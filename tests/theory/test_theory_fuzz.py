"""Random calls of the theory API answer within ten seconds, or raise with a message."""

# pyright: reportArgumentType=false

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refuses
from support.warm import WARM

from orderone import theory


def failures(first: int, last: int) -> str:
    """Make the calls without the type checks of the test suite; return those that fail."""
    words = ("support.theory_calls", str(first), str(last))
    done = WARM.module(*words, cwd=Path(__file__).parents[1], timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_300_calls_answer_or_refuse():
    assert failures(0, 300) == ""


@pytest.mark.slow
def test_10_000_calls_answer_or_refuse():
    assert failures(1000, 11_000) == ""


@pytest.mark.parametrize("number", [Decimal("0.5"), Fraction(1, 2), np.float32(0.5)])
def test_exact_numbers_are_numbers(number: object):
    smooth = theory.CovarianceSDE("shaped-smooth", phi="tanh", a=number)
    expected = theory.CovarianceSDE("shaped-smooth", phi="tanh", a=0.5)
    paths = [sde.sample(np.eye(2), 0.1, paths=2, dt=0.1) for sde in (smooth, expected)]
    np.testing.assert_array_equal(*paths)
    assert theory.limits.ShapedReLU(number).slopes(100) == (1.05, 0.9)
    found = theory.covariance_ode(np.eye(2), 0.5, number, -1.0)
    np.testing.assert_array_equal(found, theory.covariance_ode(np.eye(2), 0.5, 0.5, -1.0))


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("G", lambda: theory.finite_width.norm_moment(1, 1, 5, torch.tensor(1j))),
        ("V0", lambda: theory.resnet_ode(range(10**15), 0.5)),
        ("q", lambda: theory.MeanField("tanh").length_map(range(10**15))),
        ("x", lambda: theory.limits.distance(range(10**15), [1.0, 2.0])),
        ("x", lambda: theory.limits.ks([[1.0], [1.0, 2.0]], [1.0, 2.0])),
        ("u", lambda: theory.first_pass.rms_norm_backward(range(10**15), [1.0])),
        ("mlp", lambda: theory.transformer.relative_rates("neural-tangent", mlp=1e308)),
        ("mlp", lambda: theory.lr_factors("hybrid", mlp=1e-308)),
    ],
)
def test_what_is_no_number_is_refused(argument: str, call: Callable[[], object]):
    with refuses("invalid-argument", argument=argument):
        call()


def test_flags_are_true_or_false():
    with refuses("wrong-type", argument="antithetic"):
        theory.CovarianceSDE().sample(np.eye(2), paths=2, antithetic=torch.ones(3))


def test_a_stem_without_function_is_refused():
    with refuses("wrong-type", argument="s"):
        theory.transformer.tied_expansion("tanh", np.ones((2, 3)))
