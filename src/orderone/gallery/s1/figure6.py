"""S1 Figure 6: training steps until the test accuracy is 0.25, against the learning rate, at the
critical line chi_1 = 1.

Without dropout the curves of all depths are said to be one if the rate is multiplied by L; with
dropout, up to a limited depth, without that. What is fitted are the powers of L, of the rates and
of the steps, that bring them together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from orderone import theory
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.judge import below, opposite
from orderone.gallery.s1 import collapse
from orderone.gallery.s1.deep_training import (
    Members,
    Run,
    Training,
    device,
    read_images,
    seed_of,
    train,
)

BIAS_VAR = 0.05
ENOUGH = 0.25  # test accuracy
FINER = 1.05  # ratio of the steps at which it is measured
LIMITS = {0.99: 120, 0.98: 55}  # layers, as printed
LAWS = {"6 ξ₂": 6, "12 ξ₂": 12}
SAME = 0.5  # of these numbers of scales
SLOWER = 0.25  # of log tau: a long network is off the curve if it is slower by more,
ERRORS = 2.0  # and by so many standard errors
THEORY = "theory"


@dataclass(frozen=True)
class Panel:
    letter: str
    keep: float
    depths: tuple[int, ...]
    longer: int | None = None  # the depth for comparison, blue
    claimed: float = 0.0  # power of L


@dataclass(frozen=True)
class Settings:
    panels: tuple[Panel, ...]
    data: str
    subset: bool
    width: int
    batch: int
    steps: int
    rates: tuple[float, ...]
    images: int  # held out, on which accuracy is measured
    orthogonal: bool = True
    seeds: int = 1
    seed: int = 0  # another one draws everything anew


def parts(settings: Settings) -> Parts:
    measured: dict[str, Callable[[], pd.DataFrame]] = {THEORY: partial(scales, settings)}
    for panel in settings.panels:
        measured[f"panel {panel.letter}"] = partial(measure, panel, settings)
    return measured


def scales(settings: Settings) -> pd.DataFrame:
    """The critical line, and what limits depth on it."""
    rows = []
    for panel in settings.panels:
        weight_var = theory.critical_weight_var("tanh", BIAS_VAR, panel.keep)
        xi2 = theory.MeanField("tanh", weight_var, BIAS_VAR, panel.keep).xi2
        rows.append((panel.keep, weight_var, xi2))
    return pd.DataFrame(rows, columns=["keep", "weight_var", "xi2"])


def measure(panel: Panel, settings: Settings) -> pd.DataFrame:
    images = read_images(settings.data, device(), settings.subset)
    training = Training(
        settings.width,
        settings.batch,
        BIAS_VAR,
        panel.keep,
        settings.orthogonal,
        "sgd",
        seed_of(panel.letter, settings.seed),
    )
    members = pd.DataFrame(
        {
            "rate": np.tile(settings.rates, settings.seeds),
            "seed": np.repeat(range(settings.seeds), len(settings.rates)),
        }
    )
    weight_var = theory.critical_weight_var("tanh", BIAS_VAR, panel.keep)
    # the longest chain starts first
    depths = sorted({*panel.depths, panel.longer} - {None}, reverse=True)
    runs = []
    for depth in depths:
        stacked = Members(depth, [weight_var] * len(members), members.rate.to_list())
        runs.append(Run(training, stacked, images))
    held = images.held[0][: settings.images]
    classes = images.held[1][: settings.images]
    times = Times((len(runs), len(members)), settings.steps)

    def look(step: int) -> None:
        if step in times.at:
            times.see(step, np.array([run.accuracy(held, classes) for run in runs]))

    train(runs, settings.steps, f"panel {panel.letter}", look)
    frames = []
    for depth, tau, best in zip(depths, times.first, times.best, strict=True):
        frame = members.assign(
            keep=panel.keep,
            depth=depth,
            longer=depth == panel.longer,
            claimed=panel.claimed,
            tau=tau,
            best=best,
        )
        frames.append(frame)
    return pd.concat(frames)


class Times:
    """The first of the steps looked at when members were good enough, as in the paper."""

    first: np.ndarray  # (runs, members); nan before
    best: np.ndarray  # accuracy
    at: set[int]  # steps to look at

    def __init__(self, shape: tuple[int, int], steps: int) -> None:
        self.first = np.full(shape, np.nan)
        self.best = np.zeros(shape)
        number = 1 + int(np.log(steps) / np.log(FINER))
        self.at = set(np.geomspace(1, steps, number).round().astype(int).tolist())

    def see(self, step: int, accuracy: np.ndarray) -> None:
        self.first[(accuracy > ENOUGH) & np.isnan(self.first)] = step
        self.best = np.maximum(self.best, accuracy)


# --- the judge ------------------------------------------------------------------------------------


def panels_of(records: Records) -> dict[str, pd.DataFrame]:
    panels: dict[str, pd.DataFrame] = {}
    for name, frame in sorted(records.items()):
        if name.startswith("panel") and len(frame):
            panels[name[-1]] = frame
    return panels


def judge(records: Records) -> list[Finding]:
    found = []
    for letter, frame in panels_of(records).items():
        longer = frame.longer.astype(bool)
        found += [*_one_curve(letter, frame.loc[~longer]), _deepest(letter, frame.loc[~longer])]
        if longer.any():
            found.append(_off(letter, frame.loc[~longer], frame.loc[longer]))
    return [*found, *_limits(records[THEORY])]


def _one_curve(letter: str, frame: pd.DataFrame) -> list[Finding]:
    """One curve is two things: its place along the rates, and the steps there. [7] found tau /
    sqrt(L)."""
    claimed = float(frame.claimed.iloc[0])
    if claimed:
        said = "if the rate is multiplied by the depth"
    else:
        said = "with rates as they are"
    alike = (
        f"({letter}) ρ = {frame.keep.iloc[0]:g}: curves of depths {_range(frame)} are alike {said}"
    )
    same = (
        f"({letter}) τ itself is then the same at every"
        f" depth{', without the factor √L of [7]' if claimed else ''}"
    )
    fitted = collapse.powers(frame)
    if fitted is None:
        few = f"{len(collapse.reached(frame))} networks came to {ENOUGH}: too few"
        return [Finding(alike, None, few), Finding(same, None, few)]
    spreads = (
        f"spread of log τ {fitted.spread:.2f}, and {collapse.spread(frame, claimed):.2f} as claimed"
    )
    return [
        Finding(
            alike,
            fitted.beta.near(claimed),
            f"τ = L^γ f(rate L^β) with β = {fitted.beta}; {spreads}",
        ),
        Finding(same, fitted.gamma.near(0.0), f"γ = {fitted.gamma}; fewest steps {_fewest(frame)}"),
    ]


def _range(frame: pd.DataFrame) -> str:
    return f"{frame.depth.min()} to {frame.depth.max()}"


def _fewest(frame: pd.DataFrame) -> str:
    least = collapse.reached(frame).groupby("depth").tau.min()
    return ", ".join(f"{tau:g} at L = {depth}" for depth, tau in least.items())


def _deepest(letter: str, frame: pd.DataFrame) -> Finding:
    """Told only if shallower ones did; a single rate may be chance."""
    deep = frame.loc[frame.depth == frame.depth.max()]
    came = len(collapse.reached(deep))
    all_came = len(collapse.reached(frame))
    numbers = (
        f"{came} of {len(deep)} rates came to {ENOUGH}, {all_came} of {len(frame)} at all of these"
        " depths"
    )
    holds = bool(came) if all_came and came != 1 else None
    return Finding(f"({letter}) {deep.depth.iloc[0]} layers can still be trained", holds, numbers)


def _off(letter: str, frame: pd.DataFrame, longer: pd.DataFrame) -> Finding:
    claim = f"({letter}) {longer.depth.iloc[0]} layers are too many: that curve is another one"
    short = collapse.reached(frame)
    long = collapse.reached(longer)
    if collapse.powers(frame) is None:
        return Finding(claim, None, "too few networks learned")
    share = (
        f"{len(long)} of {len(longer)} rates came to {ENOUGH}, {len(short)} of {len(frame)} of the"
        " others"
    )
    if not len(long):
        return Finding(claim, True, share)
    fit = collapse.Points.of(short).fit(float(frame.claimed.iloc[0]))
    apart = float(fit.apart(collapse.Points.of(long)).mean())
    error = fit.spread / np.sqrt(len(long))
    on_it = below(apart, SLOWER, ERRORS * error)
    numbers = f"slower by e^{apart:.2f} (standard error {error:.2f}) at the same rates; {share}"
    return Finding(claim, opposite(on_it), numbers)


def _limits(scales: pd.DataFrame) -> list[Finding]:
    """Erratum S1.10."""
    ratios: dict[float, float] = {}
    for keep, xi2 in zip(scales.keep, scales.xi2, strict=True):
        if keep in LIMITS:
            ratios[keep] = LIMITS[keep] / xi2
    if not ratios:
        return []
    numbers = ", ".join(
        f"{LIMITS[keep]} = {ratio:.1f} ξ₂ at ρ = {keep}" for keep, ratio in ratios.items()
    )
    lawful: bool | None = None
    if np.isfinite([*ratios.values()]).all():
        distances = np.abs(np.subtract.outer([*ratios.values()], [*LAWS.values()]))
        lawful = bool((distances < SAME).any(axis=1).all())
    said = (
        "The depths up to which curves are one are those of a law of trainable depth, 6 ξ₂ or 12 ξ₂"
    )
    neither = f"{' and '.join(str(LIMITS[k]) for k in ratios)} layers are neither"
    return [
        Finding(said, lawful, numbers),
        Finding(neither, opposite(lawful), numbers, "corrected", "S1.10"),
    ]


# --- pictures -------------------------------------------------------------------------------------

SHORTEST = (105, 105, 120)
LONGEST = (60, 190, 90)
LONGER = "#3b7dd8"  # black to green as far as dark pages allow; blue


def draw(records: Records) -> list[Picture | Grid]:
    pictures: list[Picture | Grid] = []
    for letter, frame in panels_of(records).items():
        pictures.append(_picture(letter, frame))
    return [*pictures, _table(records)]


def _picture(letter: str, frame: pd.DataFrame) -> Picture:
    beta = float(frame.claimed.iloc[0])
    data = []
    depths = sorted(frame.depth.unique())
    for depth, own in frame.groupby("depth"):
        known = collapse.reached(own).sort_values(["seed", "rate"])
        x = known.rate * float(str(depth)) ** beta
        if own.longer.astype(bool).any():
            colour = LONGER
        else:
            colour = _shade(depths.index(depth) / max(len(depths) - 1, 1))
        line = {"color": colour, "width": 1.5}
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"L = {depth}",
                "x": x.tolist(),
                "y": known.tau.tolist(),
                "line": line,
                "marker": {"color": colour, "size": 7},
            }
        )
    layout = {
        "height": 380,
        "margin": {"t": 30},
        "xaxis": {
            "type": "log",
            "title": {"text": "learning rate η × L" if beta else "learning rate η"},
        },
        "yaxis": {"type": "log", "title": {"text": f"steps τ to test accuracy {ENOUGH}"}},
        "legend": {"orientation": "h", "y": -0.25},
    }
    fitted = collapse.powers(frame.loc[~frame.longer.astype(bool)])
    alt = f"Steps against learning rates for depths {_range(frame)}; "
    if fitted is None:
        alt += "too few networks learned to compare the curves."
    else:
        alt += (
            f"the curves come together as τ = L^γ f(rate × L^β) with β = {fitted.beta} and γ ="
            f" {fitted.gamma}."
        )
    lost = [depth for depth in depths if depth not in set(collapse.reached(frame).depth)]
    if lost:
        caption = f"L = {', '.join(map(str, lost))}: no learning rate came to {ENOUGH}."
    else:
        caption = ""
    return Picture(
        f"({letter}) ρ = {frame.keep.iloc[0]:g}", {"data": data, "layout": layout}, alt, caption
    )


def _shade(share: float) -> str:
    mixed = [round(a + share * (b - a)) for a, b in zip(SHORTEST, LONGEST, strict=True)]
    return f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})"


def _table(records: Records) -> Grid:
    """The fastest rate of each depth."""
    rows = []
    for letter, frame in panels_of(records).items():
        for depth, own in frame.groupby("depth"):
            known = collapse.reached(own)
            rate = "none"
            tau = ""
            if len(known):
                fastest = known.loc[known.tau.idxmin()]
                rate = f"{fastest.rate:.2g}"
                tau = f"{fastest.tau:g}"
            learned = f"{len(known)} of {len(own)}"
            rows.append((letter, f"{own.keep.iloc[0]:g}", str(depth), rate, tau, learned))
    return Grid(
        "Fastest learning rates", ("panel", "ρ", "L", "rate", "τ", "rates that learned"), rows
    )


GPU_RATES = tuple(float(f"{rate:.3g}") for rate in np.geomspace(1e-4, 1, 13))
PANELS = (
    Panel("a", 1.0, (50, 100, 200, 400), claimed=1.0),
    Panel("b", 0.99, (20, 40, 80, 120), 300),
    Panel("c", 0.98, (10, 20, 40, 55), 200),
)

EXPERIMENT = Experiment(
    name="s1-figure6",
    title="Learning rate and depth",
    claim=(
        "At the critical line the steps to a test accuracy of 0.25 depend on learning rate × depth"
        " without dropout, and on the learning rate alone with dropout, up to 120 layers at ρ ="
        " 0.99 and 55 at 0.98."
    ),
    method=(
        "Tanh networks with σ_b² = 0.05 and orthogonal weights (the paper does not say which) on χ₁"
        " = 1, trained by SGD. The test accuracy is measured at steps 5 % apart; τ is the first"
        " above 0.25. τ = L^γ f(rate L^β) is fitted to all depths, log f a cubic; one curve means"
        " the claimed β and γ = 0. Gpu: width 192, batches of 200 and 10,000 images instead of 400,"
        " 1,000 and 50,000, so that 400 layers are twice the width."
    ),
    scales={
        "small": Settings(
            panels=(Panel("a", 1.0, (10, 20, 40), claimed=1.0), Panel("c", 0.98, (10, 20, 40), 80)),
            data="digits",
            subset=False,
            width=64,
            batch=32,
            steps=150,
            images=179,
            rates=tuple(float(f"{rate:.3g}") for rate in np.geomspace(3e-4, 0.1, 7)),
        ),
        "gpu": Settings(
            panels=PANELS,
            data="cifar10",
            subset=True,
            width=192,
            batch=200,
            steps=1000,
            rates=GPU_RATES,
            images=1000,
            seed=1,
        ),
        "paper": Settings(
            panels=(
                Panel("a", 1.0, (50, 100, 150, 200, 250, 300, 350, 400), claimed=1.0),
                Panel("b", 0.99, (20, 40, 60, 80, 100, 120), 300),
                Panel("c", 0.98, (10, 15, 20, 25, 30, 35, 40, 45, 50, 55), 200),
            ),
            data="cifar10",
            subset=False,
            width=400,
            batch=1000,
            steps=1000,
            rates=GPU_RATES,
            images=10_000,
        ),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.10",),
)
