"""Gaussian averages of functions without closed forms: of one variable, or a pair."""

from orderone.theory.gaussian.adaptive import expect
from orderone.theory.gaussian.adaptive_pairs import expect_pair
from orderone.theory.gaussian.average import average

__all__ = ["average", "expect", "expect_pair"]
