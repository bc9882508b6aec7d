"""Scaling collapse: whether the normalized loss curves of all sizes coincide.

With the training loss L of one run, the share x of its training, and its loss at the end:

    l(x) = (L(x T) - offset) / (L(T) - offset),      l(1) = 1

Qiu et al. 2025 (arXiv 2507.02119) find that these curves of all sizes coincide when the size and
the length of training grow together as is best for the compute, and that they part when a
hyperparameter is scaled wrongly. Their offset is the irreducible loss; by default it is 0 here, as
an offset near the loss at the end makes any curves coincide within noise.

Losses are averaged over 16 equal windows from 10 % to 90 % of a training; the last tenth is
L(T). At each window a one-way analysis of variance compares the sizes with the seeds:

    F(x) = S Var_sizes[mean_seeds l] / mean_sizes[Var_seeds l]     (unequal S: weighted)

The largest F of all windows is compared with its distribution when the runs are assigned to sizes
at random. This test is exact if sizes make no difference to the mean nor to the noise, whatever the
distribution of the noise and however windows depend on one another. Noise that differs between
sizes makes "parts" more frequent than 1 - confidence, and seeds that share their data between sizes
make it rarer: the common part of the noise counts as noise between seeds only.
benchmarks/collapse_level.py measures both.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from orderone.core.errors import InputError
from orderone.core.text_table import wrapped

if TYPE_CHECKING:
    import pandas as pd

WINDOWS = 16
FIRST = 0.1  # share of the training before the first window: warm-up and the first fall
LAST = 0.9  # share of the training before the part whose mean is L(T)
SHORTEST = 20  # steps, so that every window has a loss
ASSIGNMENTS = 2000  # random assignments of runs to sizes
SIZES = 2  # at least
COLLAPSES = "collapses"
PARTS = "parts"


@dataclass(frozen=True)
class Collapse:
    """Verdict on the normalized loss curves of one rule; `frame` has the curves.

    `gap` is the largest standard deviation between sizes, and `noise` that between seeds in the
    same window, both relative to the mean curve. If the curves part, only windows where they do
    count.
    """

    rule: str
    axis: str
    lr: float
    offset: float
    sizes: tuple[int, ...]
    seeds: tuple[int, ...]  # number of runs of every size
    windows: np.ndarray  # (windows, 2): ends of the windows, shares of the training
    means: np.ndarray  # (sizes, windows): mean normalized curves
    spread: np.ndarray  # (windows,): standard deviation between seeds
    significant: np.ndarray  # (windows,): whether sizes differ there
    p: float  # probability of a difference this large if sizes make none
    confidence: float

    @property
    def verdict(self) -> str:
        """ "collapses" or "parts"."""
        if self.p < 1 - self.confidence:
            return PARTS
        return COLLAPSES

    @property
    def _gaps(self) -> np.ndarray:
        return self.means.std(0, ddof=1) / np.abs(self.means.mean(0))

    @property
    def _worst(self) -> int:
        """Window of the largest gap, among those where the curves part if they do."""
        gaps = self._gaps
        if self.verdict == PARTS:
            gaps = np.where(self.significant, gaps, -1)
        return int(gaps.argmax())

    @property
    def gap(self) -> float:
        """Largest relative standard deviation between the mean curves of the sizes."""
        return float(self._gaps[self._worst])

    @property
    def noise(self) -> float:
        """Relative standard deviation between seeds, where the gap is largest."""
        return float((self.spread / np.abs(self.means.mean(0)))[self._worst])

    @property
    def parts_at(self) -> tuple[tuple[float, float], ...]:
        """Shares of the training where the curves part, as intervals; none if they coincide."""
        if self.verdict == COLLAPSES:
            return ()
        intervals: list[tuple[float, float]] = []
        for (start, end), differs in zip(self.windows.tolist(), self.significant, strict=True):
            if not differs:
                continue
            if intervals and math.isclose(intervals[-1][1], start):
                intervals[-1] = (intervals[-1][0], end)
            else:
                intervals.append((start, end))
        return tuple(intervals)

    @property
    def farthest(self) -> int:
        """Size whose curve is farthest from the others where the gap is largest."""
        means = self.means[:, self._worst]
        away = np.abs(means - np.median(means))
        return self.sizes[int(away.argmax())]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """One row per size and window: share of the training, mean normalized loss, noise."""
        import pandas as pd

        rows: list[tuple[object, ...]] = []
        for size, mean in zip(self.sizes, self.means, strict=True):
            for k, (start, end) in enumerate(self.windows.tolist()):
                rows.append((size, (start + end) / 2, float(mean[k]), float(self.spread[k])))
        return pd.DataFrame(rows, columns=[self.axis, "share", "normalized", "noise"])

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        sizes = ", ".join(str(size) for size in self.sizes)
        start = f"{self.rule}: normalized loss curves of {self.axis}s {sizes} at lr {self.lr:.3g}"
        amount = f"{self.gap:.1%} between {self.axis}s, {self.noise:.1%} between seeds"
        if self.verdict == COLLAPSES:
            return f"{start} coincide within the noise of seeds ({amount})"
        places = ", ".join(f"{low:.0%} to {high:.0%}" for low, high in self.parts_at)
        return (
            f"{start} differ by more than the noise at {places} of the training ({amount});"
            f" {self.axis} {self.farthest} is farthest from the others"
        )

    def __str__(self) -> str:
        return "\n".join(wrapped(self.sentence, indent=0))


def collapse(
    rule: str,
    runs: Mapping[int, Sequence[np.ndarray]],
    *,
    axis: str,
    lr: float,
    offset: float,
    confidence: float,
) -> Collapse:
    """Compare the loss curves of all sizes; raise an InputError if there are too few.

    `runs` has the training losses of every seed, by size.
    """
    _check_enough(rule, runs, axis, confidence)
    curves: list[np.ndarray] = []
    groups: list[int] = []
    for k, size in enumerate(sorted(runs)):
        for losses in runs[size]:
            curves.append(_normalized(losses, offset))
            groups.append(k)
    values = np.stack(curves)
    labels = np.array(groups)
    ratios = _ratios(values, labels[None])[0]
    p = _probability(values, labels, float(ratios.max()))
    tail = _tail(ratios, len(runs) - 1, len(values) - len(runs))
    return Collapse(
        rule=rule,
        axis=axis,
        lr=lr,
        offset=offset,
        sizes=tuple(sorted(runs)),
        seeds=tuple(len(runs[size]) for size in sorted(runs)),
        windows=_windows(),
        means=np.stack([values[labels == k].mean(0) for k in range(len(runs))]),
        spread=_within(values, labels) ** 0.5,
        significant=(tail < (1 - confidence) / WINDOWS) | (ratios == ratios.max()),
        p=p,
        confidence=confidence,
    )


def _check_enough(
    rule: str, runs: Mapping[int, Sequence[np.ndarray]], axis: str, confidence: float
) -> None:
    if len(runs) < SIZES:
        raise InputError(
            f"collapse: {rule} has complete trainings of {len(runs)} {axis}s, but {SIZES} or more"
            f" are needed; add {axis}s",
            "needs-more-sizes",
            argument=axis,
        )
    numbers = [len(several) for several in runs.values()]
    if min(numbers) < 2 or 1 / _distinct(numbers) >= 1 - confidence:
        raise InputError(
            f"collapse: {rule} has {min(numbers)} to {max(numbers)} complete trainings of"
            f" {len(runs)} {axis}s at this learning rate; so few cannot show a"
            " difference beyond the noise of seeds. Run 3 or more seeds of 3 sizes, or 4 seeds of"
            " 2 sizes",
            "needs-more-seeds",
            argument="seed",
        )
    shortest = min(len(losses) for several in runs.values() for losses in several)
    if shortest < SHORTEST:
        raise InputError(
            f"collapse: expected trainings of {SHORTEST} or more steps, got {shortest}; train"
            " longer",
            "history-too-short",
            argument="steps",
        )


def _distinct(numbers: Sequence[int]) -> float:
    """Return the number of ways to divide the runs into groups of these sizes."""
    ways = math.factorial(sum(numbers))
    for number in numbers:
        ways //= math.factorial(number)
    for repeats in Counter(numbers).values():
        ways //= math.factorial(repeats)
    return float(ways)


def _windows() -> np.ndarray:
    ends = np.linspace(FIRST, LAST, WINDOWS + 1)
    return np.stack([ends[:-1], ends[1:]], axis=1)


def _normalized(losses: np.ndarray, offset: float) -> np.ndarray:
    """Return the mean of every window, relative to the mean of the last tenth."""
    steps = len(losses)
    values = losses.astype(float) - offset
    final = values[math.floor(LAST * steps) :].mean()
    if final <= 0:
        raise InputError(
            f"offset: expected less than the loss at the end of every training, got {offset:g} for"
            f" a loss of {final + offset:.4g}",
            argument="offset",
        )
    means: list[float] = []
    for start, end in _windows():
        first = math.floor(start * steps)
        last = max(math.floor(end * steps), first + 1)
        means.append(float(values[first:last].mean()))
    return np.array(means) / final


def _within(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the variance between runs of the same size, pooled, at every window."""
    total = np.zeros(values.shape[1])
    for k in np.unique(labels):
        part = values[labels == k]
        total += ((part - part.mean(0)) ** 2).sum(0)
    return total / (len(values) - len(np.unique(labels)))


def _ratios(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return F at every window, for every row of `labels` (assignments of runs to sizes)."""
    runs = len(values)
    sizes = int(labels.max()) + 1
    member = (labels[:, None, :] == np.arange(sizes)[:, None]).astype(float)
    numbers = member.sum(2)[:, :, None]
    grand = values.mean(0)
    away = values - grand
    between = ((member @ away) ** 2 / numbers).sum(1)  # (assignments, windows)
    within = np.maximum((away**2).sum(0) - between, 0)
    tiny = (1e-9 * np.abs(grand)) ** 2 + 1e-300  # runs that are equal but for rounding
    return (between / (sizes - 1)) / (within / (runs - sizes) + tiny)


def _probability(values: np.ndarray, labels: np.ndarray, found: float) -> float:
    """Return the share of random assignments of runs to sizes with an F as large as `found`."""
    rng = np.random.default_rng(0)
    assigned = rng.permuted(np.tile(labels, (ASSIGNMENTS, 1)), axis=1)
    larger = _ratios(values, assigned).max(1) >= found * (1 - 1e-9)
    return (1 + int(larger.sum())) / (1 + ASSIGNMENTS)


def _tail(ratios: np.ndarray, between: int, within: int) -> np.ndarray:
    """Return the probability of a larger F."""
    from scipy.special import fdtrc

    return np.asarray(fdtrc(between, within, ratios), float)
