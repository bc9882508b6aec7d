"""Mean field theory of deep dropout networks (S1): lengths, correlations, phases, depth scales, gradients."""

from orderone.theory.meanfield.mean_field import FixedPoint, MeanField, Trajectory

__all__ = ["FixedPoint", "MeanField", "Trajectory"]
