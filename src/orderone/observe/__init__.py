"""Observation of forward and backward passes: hooks, trace, moments."""
