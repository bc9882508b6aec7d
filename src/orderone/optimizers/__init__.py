"""Optimizers: one record for each."""
