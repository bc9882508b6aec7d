"""Optimizers: one file for each, with its record and its stacked update; `table` has them all."""
