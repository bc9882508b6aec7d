"""S1 Figure 6: training steps until the test accuracy is 0.25, against the learning rate, at the
critical line chi_1 = 1.

The paper claims that without dropout the curves of all depths collapse if the learning rate is
multiplied by L, and that with dropout they collapse without this factor, up to a limited depth. We
fit the powers of L, for learning rates and for steps, that collapse the curves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from orderone import theory
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.figures import Figure, Trace
from orderone.gallery.judge import below, opposite
from orderone.gallery.paper_scale import undecided
from orderone.gallery.s1 import collapse
from orderone.gallery.s1.deep_training import (
    Members,
    Training,
    device,
    members_of,
    panels_of,
    read_images,
    seed_of,
    start,
    train,
)

BIAS_VAR = 0.05
ENOUGH = 0.25  # test accuracy
FINER = 1.05  # ratio of successive steps at which accuracy is measured
LIMITS = {0.99: 120, 0.98: 55}  # keep rate -> printed limit of the depth
LAWS = {"6 ξ₂": 6, "12 ξ₂": 12}
SAME = 0.5  # largest difference of two ratios depth / xi_2 that count as equal
SLOWER = 0.25  # a long network is off the curve if its log tau is larger by more than this
ERRORS = 2.0  # and by this number of standard errors
THEORY = "theory"
PAPER_WIDTH = 400
PAPER_BATCH = 1000


@dataclass(frozen=True)
class Panel:
    letter: str
    keep: float
    depths: tuple[int, ...]
    longer: int | None = None  # a depth beyond the limit, for comparison (blue)
    claimed: float = 0.0  # claimed power of L


@dataclass(frozen=True)
class Settings:
    panels: tuple[Panel, ...]
    data: str
    subset: bool
    width: int
    batch: int
    steps: int
    rates: tuple[float, ...]
    images: int  # number of held-out images for the accuracy
    orthogonal: bool = True
    seeds: int = 1
    seed: int = 0  # seed of all random numbers


def parts(settings: Settings) -> Parts:
    measured: dict[str, Callable[[], pd.DataFrame]] = {THEORY: partial(scales, settings)}
    for panel in settings.panels:
        measured[f"panel {panel.letter}"] = partial(measure, panel, settings)
    return measured


def scales(settings: Settings) -> pd.DataFrame:
    """Return the weight variance of the critical line and xi_2 for each keep rate."""
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
    members = members_of("rate", settings.rates, settings.seeds)
    weight_vars = [theory.critical_weight_var("tanh", BIAS_VAR, panel.keep)] * len(members)
    depths = {*panel.depths, panel.longer} - {None}
    stacks = [Members(depth, weight_vars, members.rate.to_list()) for depth in depths]
    runs = start(training, stacks, images)
    held = images.held[0][: settings.images]
    classes = images.held[1][: settings.images]
    times = Times((len(runs), len(members)), settings.steps)

    def look(step: int) -> None:
        if step in times.at:
            times.record(step, np.array([run.accuracy(held, classes) for run in runs]))

    train(runs, settings.steps, f"panel {panel.letter}", look)
    frames = []
    for run, tau, best in zip(runs, times.first, times.best, strict=True):
        frame = members.assign(
            keep=panel.keep,
            depth=run.members.depth,
            longer=run.members.depth == panel.longer,
            claimed=panel.claimed,
            tau=tau,
            best=best,
            width=settings.width,
            batch=settings.batch,
        )
        frames.append(frame)
    return pd.concat(frames)


class Times:
    """The first measured step at which each member reached the accuracy, as in the paper."""

    first: np.ndarray  # (runs, members); nan if not reached
    best: np.ndarray  # best accuracy
    at: set[int]  # steps at which accuracy is measured

    def __init__(self, shape: tuple[int, int], steps: int) -> None:
        self.first = np.full(shape, np.nan)
        self.best = np.zeros(shape)
        number = 1 + int(np.log(steps) / np.log(FINER))
        self.at = set(np.geomspace(1, steps, number).round().astype(int).tolist())

    def record(self, step: int, accuracy: np.ndarray) -> None:
        self.first[(accuracy > ENOUGH) & np.isnan(self.first)] = step
        self.best = np.maximum(self.best, accuracy)


# --- the judge ------------------------------------------------------------------------------------


def judge(records: Records) -> list[Finding]:
    findings = []
    for letter, frame in panels_of(records).items():
        findings += _at_scale(_of_panel(letter, frame), frame)
    return [*findings, *_limits(records[THEORY])]


def _of_panel(letter: str, frame: pd.DataFrame) -> list[Finding]:
    longer = frame.longer.astype(bool)
    findings = [*_one_curve(letter, frame.loc[~longer]), _deepest(letter, frame.loc[~longer])]
    if longer.any():
        findings.append(_off(letter, frame.loc[~longer], frame.loc[longer]))
    return findings


def _at_scale(findings: list[Finding], frame: pd.DataFrame) -> list[Finding]:
    """Return the findings, unclear if networks or batches are smaller than those of the paper."""
    width = frame.width.min()
    batch = frame.batch.min()
    if width >= PAPER_WIDTH and batch >= PAPER_BATCH:
        return findings
    setting = (
        f"with width {width:g} and batches of {batch:g}; {PAPER_WIDTH} and {PAPER_BATCH:,} in the"
        " paper"
    )
    return undecided(findings, setting)


def _one_curve(letter: str, frame: pd.DataFrame) -> list[Finding]:
    """Judge two claims: the place of the curve along the learning rates, and its steps, which are
    tau / sqrt(L) in reference [7] of S1."""
    claimed = float(frame.claimed.iloc[0])
    if claimed:
        condition = "if the learning rate is multiplied by the depth"
    else:
        condition = "without scaling the learning rate"
    collapses = (
        f"({letter}) ρ = {frame.keep.iloc[0]:g}: curves of depths {_range(frame)} collapse"
        f" {condition}"
    )
    same = (
        f"({letter}) τ is then the same at every"
        f" depth{', without the factor √L of reference [7]' if claimed else ''}"
    )
    fitted = collapse.powers(frame)
    if fitted is None:
        few = f"only {len(collapse.reached(frame))} networks reached {ENOUGH}: too few"
        return [Finding(collapses, None, few), Finding(same, None, few)]
    spreads = (
        f"spread of log τ {fitted.spread:.2f}, and {collapse.spread(frame, claimed):.2f} as claimed"
    )
    return [
        Finding(
            collapses,
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
    """Judge the deepest networks if shallower ones learned; a single success may be chance."""
    deep = frame.loc[frame.depth == frame.depth.max()]
    reached = len(collapse.reached(deep))
    reached_at_all = len(collapse.reached(frame))
    numbers = (
        f"{reached} of {len(deep)} learning rates reached {ENOUGH}, {reached_at_all} of"
        f" {len(frame)} at all of these depths"
    )
    if reached_at_all and reached != 1:
        holds = bool(reached)
    else:
        holds = None
    return Finding(f"({letter}) {deep.depth.iloc[0]} layers can still be trained", holds, numbers)


def _off(letter: str, frame: pd.DataFrame, longer: pd.DataFrame) -> Finding:
    claim = f"({letter}) {longer.depth.iloc[0]} layers are too many: their curve is different"
    short = collapse.reached(frame)
    long = collapse.reached(longer)
    if collapse.powers(frame) is None:
        return Finding(claim, None, "too few networks learned")
    share = (
        f"{len(long)} of {len(longer)} learning rates reached {ENOUGH}, {len(short)} of"
        f" {len(frame)} at the other depths"
    )
    if not len(long):
        return Finding(claim, True, share)
    fit = collapse.Points.of(short).fit(float(frame.claimed.iloc[0]))
    apart = float(fit.apart(collapse.Points.of(long)).mean())
    error = fit.spread / np.sqrt(len(long))
    on_it = below(apart, SLOWER, ERRORS * error)
    numbers = (
        f"slower by e^{apart:.2f} (standard error {error:.2f}) at the same learning rates; {share}"
    )
    return Finding(claim, opposite(on_it), numbers)


def _limits(scales: pd.DataFrame) -> list[Finding]:
    """Judge the printed limits of the depth (erratum S1.10)."""
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
    either = "Curves collapse up to the depth of a law of trainable depth, 6 ξ₂ or 12 ξ₂"
    neither = f"{' and '.join(str(LIMITS[k]) for k in ratios)} layers are neither 6 ξ₂ nor 12 ξ₂"
    return [
        Finding(either, lawful, numbers, "ours"),
        Finding(neither, opposite(lawful), numbers, "corrected", "S1.10"),
    ]


# --- pictures -------------------------------------------------------------------------------------

SHORTEST = (105, 105, 120)
LONGEST = (60, 190, 90)
LONGER = "#3b7dd8"  # blue; the others from grey to green, since black is invisible on dark pages


def draw(records: Records) -> list[Picture | Grid]:
    pictures: list[Picture | Grid] = []
    for letter, frame in panels_of(records).items():
        pictures.append(_picture(letter, frame))
    return [*pictures, _table(records)]


def _picture(letter: str, frame: pd.DataFrame) -> Picture:
    beta = float(frame.claimed.iloc[0])
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
            f"the curves collapse as τ = L^γ f(rate × L^β) with β = {fitted.beta} and γ ="
            f" {fitted.gamma}."
        )
    title = f"({letter}) ρ = {frame.keep.iloc[0]:g}"
    figure: Figure = {"data": _curves(frame, beta), "layout": layout}
    return Picture(title, figure, alt, _lost_depths(frame))


def _curves(frame: pd.DataFrame, beta: float) -> list[Trace]:
    """Draw steps against rate L^beta, a curve for each depth."""
    data = []
    depths = sorted(frame.depth.unique())
    for depth, runs in frame.groupby("depth"):
        known = collapse.reached(runs).sort_values(["seed", "rate"])
        x = known.rate * float(str(depth)) ** beta
        colour = _shade(depths.index(depth) / max(len(depths) - 1, 1))
        if runs.longer.astype(bool).any():
            colour = LONGER
        curve = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"L = {depth}",
            "x": x.tolist(),
            "y": known.tau.tolist(),
            "line": {"color": colour, "width": 1.5},
            "marker": {"color": colour, "size": 7},
        }
        data.append(curve)
    return data


def _lost_depths(frame: pd.DataFrame) -> str:
    """Return a caption that names the depths at which no network learned."""
    depths = sorted(frame.depth.unique())
    learned = set(collapse.reached(frame).depth)
    lost = [str(depth) for depth in depths if depth not in learned]
    if not lost:
        return ""
    return f"L = {', '.join(lost)}: no learning rate reached {ENOUGH}."


def _shade(share: float) -> str:
    mixed = [round(a + share * (b - a)) for a, b in zip(SHORTEST, LONGEST, strict=True)]
    return f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})"


def _table(records: Records) -> Grid:
    """Return the table of the fastest learning rate of each depth."""
    rows = []
    for letter, frame in panels_of(records).items():
        for depth, runs in frame.groupby("depth"):
            known = collapse.reached(runs)
            rate = "none"
            tau = ""
            if len(known):
                fastest = known.loc[known.tau.idxmin()]
                rate = f"{fastest.rate:.2g}"
                tau = f"{fastest.tau:g}"
            learned = f"{len(known)} of {len(runs)}"
            rows.append((letter, f"{runs.keep.iloc[0]:g}", str(depth), rate, tau, learned))
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
    place="Figure 6",
    claim=(
        "At the critical line, the number of steps to a test accuracy of 0.25 depends on learning"
        " rate × depth without dropout, and on the learning rate alone with dropout, up to 120"
        " layers at ρ = 0.99 and 55 at 0.98."
    ),
    method=(
        "Tanh networks with σ_b² = 0.05 and orthogonal weights (the paper does not specify them) on"
        " χ₁ = 1, trained by SGD. The test accuracy is measured at steps 5 % apart; τ is the first"
        " step above 0.25. τ = L^γ f(rate L^β) is fitted to all depths, with a cubic log f; a"
        " collapse means the claimed β and γ = 0. Scale gpu: width 192, batches of 200 and 10,000"
        " images instead of 400, 1,000 and 50,000, so that 400 layers are twice the width."
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
            width=PAPER_WIDTH,
            batch=PAPER_BATCH,
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
