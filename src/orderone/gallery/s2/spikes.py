"""Spikes of a training loss: it rises by far more than its noise and stays there for some steps.

    spike:  HOLD or more losses in a row above   m + FACTOR s,   m the median and s the noise of the
                                                 WINDOW losses before

s is the median distance from m, scaled to the standard deviation of a normal distribution. Normal
noise exceeds five standard deviations at one step in 3 million, and hardly ever at three steps in a
row. A slow rise moves m too, and is not a spike.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

WINDOW = 50
FACTOR = 5.0
HOLD = 3
_NORMAL = 1.4826  # standard deviation over median distance, for a normal distribution


def spikes(
    losses: np.ndarray, window: int = WINDOW, factor: float = FACTOR, hold: int = HOLD
) -> np.ndarray:
    """Return the steps at which spikes begin; losses that are not finite count as infinite.

    The first `window` steps have no spikes, because nothing is before them.
    """
    losses = np.asarray(losses, float)
    if len(losses) <= window:
        return np.array([], int)
    with np.errstate(invalid="ignore"):
        filled = np.where(np.isfinite(losses), losses, np.inf)
        before = sliding_window_view(filled[:-1], window)
        middle = np.median(before, axis=1)
        noise = _NORMAL * np.median(np.abs(before - middle[:, None]), axis=1)
        above = np.concatenate([np.zeros(window, bool), filled[window:] > middle + factor * noise])
    starts = np.flatnonzero(above & ~np.concatenate([[False], above[:-1]]))
    ends = np.flatnonzero(above & ~np.concatenate([above[1:], [False]])) + 1
    return starts[ends - starts >= hold]
