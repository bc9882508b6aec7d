"""Maximal update parameterization: the readout is divided by another sqrt(n), so that (24) holds
even for omega = 1. S0 appendix B, Table 1; equivalent to `mf`."""

from orderone.rules.declare import Declared

MUP = Declared("mup", a=("-1/2", 0, "1/2", 0), b=("1/2", "1/2", "1/2", 0))
