"""Neural tangent parameterization: unit variance, multipliers 1/sqrt(fan-in). S0 Table 1;
equivalent to `sp`."""

from orderone.rules.declare import Declared

NTK = Declared("ntk", a=(0, "1/2", "1/2", 0), b=(0, 0, 0, 0))
