"""What real networks do: sizes while they train, their exponents with a verdict, alignment, gradient metrics."""

from orderone.measure.aligned import MeasuredAlignment
from orderone.measure.alignment import alignment
from orderone.measure.check import Check
from orderone.measure.coord_check import coord_check
from orderone.measure.dropout_metrics import dropout_metrics, variance_law
from orderone.measure.fit import Fit, fit_exponent
from orderone.measure.gradient_metrics import gradient_metrics
from orderone.measure.probe import probe
from orderone.measure.recording import Probe
from orderone.measure.records import read, write

__all__ = [
    "Check",
    "Fit",
    "MeasuredAlignment",
    "Probe",
    "alignment",
    "coord_check",
    "dropout_metrics",
    "fit_exponent",
    "gradient_metrics",
    "probe",
    "read",
    "variance_law",
    "write",
]
