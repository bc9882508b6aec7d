"""What real networks do."""

from orderone.measure.fit import Fit, fit_exponent

__all__ = ["Fit", "fit_exponent"]
