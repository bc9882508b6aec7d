"""Mean field parameterization: unit variance, readout multiplier 1/n. S0 Table 1; equivalent to
`mup`."""

from orderone.rules.declare import Declared

MF = Declared("mf", a=(0, "1/2", 1, 0), b=(0, 0, 0, 0))
