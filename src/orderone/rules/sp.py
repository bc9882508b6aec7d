"""Standard parameterization: no multipliers, variance 1/fan-in. S0 appendix A; equivalent to
`ntk`."""

from orderone.rules.declare import Declared

SP = Declared("sp", a=(0, 0, 0, 0), b=(0, "1/2", "1/2", 0))
