"""Measurements on networks: sizes in training, exponents with verdicts, alignment, gradient
metrics, layer covariances of random networks, and kernels of models."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.measure.alignment import alignment
from orderone.measure.alignment_ratios import MeasuredAlignment
from orderone.measure.check import Check
from orderone.measure.coord_check import coord_check
from orderone.measure.dropout_metrics import dropout_metrics, variance_law
from orderone.measure.fit import Fit, fit_exponent
from orderone.measure.gradient_metrics import gradient_metrics
from orderone.measure.noise_scale import NoiseScale, noise_scale
from orderone.measure.probe import probe
from orderone.measure.recording import Probe
from orderone.measure.records import read, write

if TYPE_CHECKING:
    from orderone.measure import kernels
    from orderone.measure.convergence import Convergence, ode_rate, unshaped_rate, weak_order
    from orderone.measure.limit_comparison import Comparison, compare_with_limit
    from orderone.measure.sampler import sample_network

__all__ = [
    "Check",
    "Comparison",
    "Convergence",
    "Fit",
    "MeasuredAlignment",
    "NoiseScale",
    "Probe",
    "alignment",
    "compare_with_limit",
    "coord_check",
    "dropout_metrics",
    "fit_exponent",
    "gradient_metrics",
    "kernels",
    "noise_scale",
    "ode_rate",
    "probe",
    "read",
    "sample_network",
    "unshaped_rate",
    "variance_law",
    "weak_order",
    "write",
]

_LAZY: dict[str, str | None] = {  # these import theory
    "kernels": None,
    "Comparison": "limit_comparison",
    "Convergence": "convergence",
    "compare_with_limit": "limit_comparison",
    "ode_rate": "convergence",
    "sample_network": "sampler",
    "unshaped_rate": "convergence",
    "weak_order": "convergence",
}
__getattr__: Callable[[str], object] = lazy_names(__name__, _LAZY)
