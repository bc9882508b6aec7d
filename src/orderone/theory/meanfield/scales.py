"""Depth scales, and the depth to which a network can be trained.

    xi_i = 1 / abs(log abs(chi_i))                     S1 (6), (11); infinite at chi_i = 1
    L   <= min(12 xi_1, 12 xi_2)                       S1 section 5.2, measured on MNIST and CIFAR10
    L   <= 6 xi_2                                      the older law, Schoenholz et al. 2017

On the critical line chi_1 is 1 to within rounding, and the scale is infinite.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

import numpy as np

ROUNDING = 4e-15  # a chi closer to 1 than this counts as 1
DEPTHS_PER_SCALE = 12
DEPTHS_PER_SCALE_OLDER = 6


def depth_scale(chi: np.ndarray) -> np.ndarray:
    """Return xi for each chi: 0 for chi = 0 or infinity, inf for chi = 1.

    chi_2 of a function that is not monotonic may be negative; differences then change their sign.
    """
    critical = np.abs(chi - 1) <= ROUNDING
    with np.errstate(divide="ignore"):
        rate = np.abs(np.log(np.abs(np.where(critical, np.e, chi))))
    return np.where(critical, np.inf, 1 / rate)


def phase(chi1: np.ndarray, tolerance: np.ndarray | float) -> np.ndarray:
    """Return words: ordered if chi_1 < 1, chaotic if chi_1 > 1, critical within the tolerance."""
    side = np.where(chi1 < 1, "ordered", "chaotic")
    return np.where(np.abs(chi1 - 1) <= tolerance, "critical", side).astype(object)
