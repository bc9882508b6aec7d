"""S1 Figure 7: trainable depth. Eight panels with accuracies over the initial weight variance and
the depth, and the curves 12 xi_1, 6 xi_2 and 12 xi_2.

The claim of the paper, L <= min(12 xi_1, 12 xi_2), gets scores: the distance of each curve from the
measured boundary, left and right of the critical line, and the best constant instead of 12.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from orderone import theory
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.figures import Trace
from orderone.gallery.judge import together
from orderone.gallery.s1 import boundary
from orderone.gallery.s1.boundary import Estimate, boundaries
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
FACTOR = 12.0
OLDER = 6.0
PRINTED_WIDTH = 300  # of reference [6] of S1, whose learning rates (a) and (b) use
CURVES = ONE, OLD, TWO, LAST = "12 ξ₁", "6 ξ₂", "12 ξ₂", "min(12 ξ₁, 12 ξ₂)"
FINE = tuple(np.round(np.arange(1, 4.001, 0.05), 2).tolist())  # weight variances of drawn curves
THEORY = "theory"
CAPTIONS = "captions"
# parts of the steps after which accuracy is measured; the last one is judged
SHARES = (1 / 8, 1 / 4, 1 / 2, 1)


@dataclass(frozen=True)
class Panel:
    """Settings of a panel.

    The learning rate is "constant" in depth, "dropping" to a tenth beyond 200 layers, or "inverse":
    rate / L.
    """

    letter: str
    data: str
    optimizer: str
    orthogonal: bool
    keep: float
    steps: int
    rate: float
    law: str = "constant"

    def rate_at(self, depth: int) -> float:
        """Return the learning rate of a depth."""
        if self.law == "inverse":
            return self.rate * (1 / depth)
        if self.law == "dropping" and depth > 200:
            return self.rate * 0.1
        return self.rate


@dataclass(frozen=True)
class Settings:
    panels: tuple[Panel, ...]
    width: int
    batch: int
    depths: tuple[int, ...]
    weight_vars: tuple[float, ...]
    images: int  # number of training images for the accuracy
    subset: bool  # use the small files of `orderone.gallery.subsets`
    seeds: int = 1
    seed: int = 0  # seed of all random numbers


# As in the caption; the learning rates of (c), (e) to (h) and c of (d) are not printed.
PANELS = (
    Panel("a", "mnist", "sgd", False, 1.0, 2000, 1e-3, "dropping"),
    Panel("b", "mnist", "rmsprop", False, 1.0, 1000, 1e-5),
    Panel("c", "mnist", "sgd", True, 1.0, 2000, 0.3, "inverse"),
    Panel("d", "cifar10", "sgd", True, 1.0, 3000, 0.3, "inverse"),
    Panel("e", "mnist", "sgd", True, 0.99, 3000, 6.4e-3),
    Panel("f", "mnist", "sgd", True, 0.98, 3000, 6.4e-3),
    Panel("h", "mnist", "sgd", True, 0.95, 3000, 6.4e-3),
    Panel("g", "mnist", "sgd", False, 0.98, 10000, 6.4e-3),
)


def scaled(panels: Sequence[Panel], width: int) -> tuple[Panel, ...]:
    """Scale learning rates to another width: the tangent kernel is proportional to the width."""
    return tuple(replace(panel, rate=panel.rate * PRINTED_WIDTH / width) for panel in panels)


def parts(settings: Settings) -> Parts:
    measured: dict[str, Callable[[], pd.DataFrame]] = {
        THEORY: partial(curves, settings),
        CAPTIONS: partial(captions, settings),
    }
    for panel in settings.panels:
        measured[f"panel {panel.letter}"] = partial(measure, panel, settings)
    return measured


def curves(settings: Settings) -> pd.DataFrame:
    """Return the depth scales and the critical weight variance of each keep rate."""
    weight_vars = np.unique([*FINE, *settings.weight_vars])
    frames = []
    for keep in dict.fromkeys(panel.keep for panel in settings.panels):
        field = theory.MeanField("tanh", weight_vars, BIAS_VAR, keep)
        critical = theory.critical_weight_var("tanh", BIAS_VAR, keep)
        frames.append(
            pd.DataFrame(
                {
                    "keep": keep,
                    "weight_var": weight_vars,
                    "xi1": field.xi1,
                    "xi2": field.xi2,
                    "critical": critical,
                }
            )
        )
    return pd.concat(frames)


def measure(panel: Panel, settings: Settings) -> pd.DataFrame:
    """Train all depths concurrently; return their accuracies."""
    images = read_images(panel.data, device(), settings.subset)
    members = members_of("weight_var", settings.weight_vars, settings.seeds)
    training = Training(
        settings.width,
        settings.batch,
        BIAS_VAR,
        panel.keep,
        panel.orthogonal,
        panel.optimizer,
        seed_of(panel.letter, settings.seed),
    )
    stacks = []
    for depth in settings.depths:
        rates = [panel.rate_at(depth)] * len(members)
        stacks.append(Members(depth, members.weight_var.to_list(), rates))
    runs = start(training, stacks, images)
    measured_images = images.train[0][: settings.images]
    classes = images.train[1][: settings.images]
    steps = {round(share * panel.steps) for share in SHARES}
    frames = []

    def look(step: int) -> None:
        if step not in steps:
            return
        for run in runs:
            accuracy = run.accuracy(measured_images, classes)
            if panel.keep < 1:
                masked = run.accuracy(measured_images, classes, masked=True)
            else:
                masked = accuracy
            frame = members.assign(
                keep=panel.keep,
                depth=run.members.depth,
                step=step,
                accuracy=accuracy,
                masked=masked,
            )
            frames.append(frame)

    train(runs, panel.steps, f"panel {panel.letter}", look)
    return pd.concat(frames)


def captions(settings: Settings) -> pd.DataFrame:
    rows = [(panel.letter, _caption(panel)) for panel in settings.panels]
    return pd.DataFrame(rows, columns=["letter", "caption"])


def _caption(panel: Panel) -> str:
    data = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}[panel.data]
    weights = "orthogonal" if panel.orthogonal else "Gaussian"
    optimizer = {"sgd": "SGD", "rmsprop": "RMSprop"}[panel.optimizer]
    return f"{data}, {weights}, {optimizer}, ρ = {panel.keep:g}"


# --- the score ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """Boundaries of a panel with the depth scales at each of them."""

    edges: pd.DataFrame  # weight_var, seed, low, high, xi1, xi2, critical

    def side(self, name: str) -> "Scored":
        """Return one side: "right" is beyond the critical line where xi_1 < xi_2; the rest is
        "left"."""
        right = (self.edges.weight_var > self.edges.critical) & (self.edges.xi1 < self.edges.xi2)
        if name == "right":
            return Scored(self.edges.loc[right])
        return Scored(self.edges.loc[~right])

    def curve(self, name: str) -> np.ndarray:
        one = FACTOR * self.edges.xi1.to_numpy()
        two = FACTOR * self.edges.xi2.to_numpy()
        return {ONE: one, OLD: two * OLDER / FACTOR, TWO: two, LAST: np.minimum(one, two)}[name]

    def misfit(self, name: str) -> Estimate:
        return boundary.misfit(self.edges, self.curve(name))

    def bias(self, name: str) -> Estimate:
        return boundary.bias(self.edges, self.curve(name))

    def worse_by(self, name: str, other: str) -> Estimate:
        return boundary.worse_by(self.edges, self.curve(name), self.curve(other))

    def same(self, name: str, other: str) -> bool:
        return np.allclose(self.curve(name), self.curve(other), rtol=1e-3)

    @property
    def factor(self) -> Estimate:
        return boundary.factor(self.edges, self.curve(LAST) / FACTOR)


def scored(frame: pd.DataFrame, lines: pd.DataFrame, step: int | None = None) -> Scored:
    """Return the boundaries after `step` steps, by default after all."""
    if step is None:
        step = frame.step.max()
    now = frame.loc[frame.step == step]
    edges = boundaries(now.assign(weight_var=now.weight_var.astype(float)))
    curves_of_panel = lines.loc[np.isclose(lines.keep, frame.keep.iloc[0])]
    return Scored(edges.merge(curves_of_panel.drop(columns="keep").astype(float), on="weight_var"))


def judge(records: Records) -> list[Finding]:
    findings: list[Finding] = []
    for letter, frame in panels_of(records).items():
        score = scored(frame, records[THEORY])
        findings += _of_panel(f"({letter})", score, dropout=bool(frame.keep.iloc[0] < 1))
    return findings


def _of_panel(name: str, score: Scored, dropout: bool) -> list[Finding]:
    left = score.side("left")
    right = score.side("right")
    under = score.bias(OLD)
    over = right.bias(TWO)
    findings = [
        _best(name, score),
        Finding(
            f"{name} 6 ξ₂ underestimates the trainable depth",
            under.below(0.0),
            f"mean log(6 ξ₂ / depth) {under}",
        ),
        Finding(
            f"{name} on the right 12 ξ₂ overestimates the trainable depth",
            over.above(0.0),
            f"mean log(12 ξ₂ / depth) {over}",
        ),
        _constant(name, score),
    ]
    if dropout:
        return [
            *findings,
            _limit(name, left, TWO, ONE, "left"),
            _limit(name, right, ONE, TWO, "right"),
        ]
    return findings


def _limit(name: str, score: Scored, curve: str, other: str, side: str) -> Finding:
    gain = score.worse_by(curve, other)
    numbers = (
        f"mean |log distance| {score.misfit(curve)} and {score.misfit(other)}, difference {gain}"
    )
    claim = f"{name} on the {side} {curve} limits the trainable depth, not {other}"
    return Finding(claim, gain.below(0.0), numbers)


def _best(name: str, score: Scored) -> Finding:
    """Compare with each other curve over the same columns: False if one is nearer, None if one may
    be."""
    verdicts = []
    misfits = [f"{LAST}: {score.misfit(LAST)}"]
    for curve in CURVES[:-1]:
        if not score.same(curve, LAST):
            verdicts.append(score.worse_by(LAST, curve).below(0.0))
            misfits.append(f"{curve}: {score.misfit(curve)}")
    return Finding(
        f"{name} no curve is nearer to the boundary than {LAST}",
        together(verdicts),
        f"mean |log distance| {', '.join(misfits)}",
    )


def _constant(name: str, score: Scored) -> Finding:
    k = score.factor
    left = score.side("left").factor
    right = score.side("right").factor
    numbers = f"least squares: {k}; left {left}; right {right}"
    return Finding(f"{name} the constant is 12", k.has(FACTOR, FACTOR / OLDER), numbers)


# --- pictures -------------------------------------------------------------------------------------

SCALE: list[list[object]] = [
    [0.0, "#000000"],
    [0.3, "#5c1010"],
    [0.55, "#b5421a"],
    [0.8, "#f0a020"],
    [1.0, "#fff04a"],
]
LINES = {ONE: ("#ffffff", "solid"), OLD: ("#31d843", "dash"), TWO: ("#ffffff", "dash")}


def draw(records: Records) -> list[Picture | Grid]:
    panels = panels_of(records)
    names = dict(zip(*records[CAPTIONS].to_numpy().T, strict=True))
    lines = records[THEORY]
    pictures: list[Picture | Grid] = []
    for letter, frame in panels.items():
        pictures.append(_picture(f"({letter}) {names.get(letter, '')}", frame, lines))
    return [*pictures, _constants(panels, lines), _table(panels, lines)]


def _picture(title: str, frame: pd.DataFrame, lines: pd.DataFrame) -> Picture:
    score = scored(frame, lines)
    scales = lines.loc[np.isclose(lines.keep, frame.keep.iloc[0])]
    last = frame[frame.step == frame.step.max()]
    cells = last.pivot_table(index="depth", columns="weight_var", values="accuracy", aggfunc="mean")
    title = f"{title}, {frame.step.max()} steps"
    data: list[Trace] = [
        {
            "type": "heatmap",
            "x": cells.columns.tolist(),
            "y": cells.index.tolist(),
            "z": cells.to_numpy().tolist(),
            "colorscale": SCALE,
            "zmin": 0,
            "zmax": 1,
            "colorbar": {"title": {"text": "accuracy"}, "thickness": 12},
            "hovertemplate": "σ_w² = %{x}<br>L = %{y}<br>accuracy %{z:.2f}<extra></extra>",
        }
    ]
    shallowest = float(frame.depth.min())
    deepest = float(frame.depth.max())
    for name, (colour, dash) in LINES.items():
        data += _line(name, colour, dash, scales, deepest)
    data.append(_dots(score.edges))
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "σ_w²"}, "range": [1, 4]},
        "yaxis": {"title": {"text": "depth L"}, "range": [shallowest, deepest]},
        "margin": {"t": 30},
        "legend": {
            "orientation": "h",
            "y": -0.25,
            "bgcolor": "#555555",
            "font": {"color": "#ffffff"},
        },  # two lines are white
    }
    alt = (
        f"Training accuracy from {cells.min().min():.2f} (black) to {cells.max().max():.2f}"
        f" (yellow). The boundary is at {score.factor} times the smaller depth scale; the paper"
        " says 12."
    )
    return Picture(title, {"data": data, "layout": layout}, alt)


def _line(name: str, colour: str, dash: str, scales: pd.DataFrame, deepest: float) -> list[Trace]:
    """Draw a curve with a dark edge, which is visible on yellow; clip parts far above the map."""
    depth = Scored(scales).curve(name)
    points = {
        "x": scales.weight_var.tolist(),
        "y": np.where(depth < 4 * deepest, depth, 4 * deepest).tolist(),
    }
    both = {"type": "scatter", "mode": "lines", **points, "hoverinfo": "skip"}
    seam = both | {"line": {"color": "#303030", "width": 4, "dash": dash}, "showlegend": False}
    return [seam, both | {"name": name, "line": {"color": colour, "width": 2, "dash": dash}}]


def _dots(edges: pd.DataFrame) -> Trace:
    inside = edges[edges.low == edges.high]
    marker = {
        "symbol": "circle",
        "size": 7,
        "color": "#38b6ff",
        "line": {"color": "#303030", "width": 1},
    }
    points = {"x": inside.weight_var.tolist(), "y": inside.low.round(1).tolist()}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "measured boundary",
        "marker": marker,
        **points,
    }


def _constants(panels: dict[str, pd.DataFrame], lines: pd.DataFrame) -> Picture:
    """Draw the fitted constant, which the paper says is 12, against training steps."""
    data = []
    words = []
    for letter, frame in panels.items():
        steps: list[int] = []
        constants: list[Estimate] = []
        above: list[float] = []
        below: list[float] = []
        for step in sorted(frame.step.unique()):
            k = scored(frame, lines, int(step)).factor
            steps.append(int(step))
            constants.append(k)
            above.append(k.high - k.value)
            below.append(k.value - k.low)
        bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        points = {"x": steps, "y": [k.value for k in constants], "error_y": bars}
        data.append({"type": "scatter", "mode": "lines+markers", "name": f"({letter})", **points})
        words.append(f"({letter}) {_short(constants[0])} to {_short(constants[-1])}")
    layout = {
        "height": 380,
        "margin": {"t": 30},
        "xaxis": {"type": "log", "title": {"text": "training steps"}},
        "yaxis": {"type": "log", "title": {"text": "k of L = k min(ξ₁, ξ₂)"}},
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": FACTOR,
                "y1": FACTOR,
                "line": {"dash": "dot", "width": 1.5, "color": "#8a8a8a"},
            }
        ],
        "legend": {"orientation": "h", "y": -0.25},
    }
    alt = f"The constant of each panel against training steps, and 12 (dotted): {', '.join(words)}."
    return Picture("The constant against training steps", {"data": data, "layout": layout}, alt)


def _short(k: Estimate) -> str:
    if np.isfinite(k.value):
        return f"{k.value:.1f}"
    return "unknown"


def _table(panels: dict[str, pd.DataFrame], lines: pd.DataFrame) -> Grid:
    rows = []
    for letter, frame in panels.items():
        whole = scored(frame, lines)
        for side, score in (
            ("left", whole.side("left")),
            ("right", whole.side("right")),
            ("both", whole),
        ):
            misfits = [str(score.misfit(curve)) for curve in CURVES]
            rows.append(
                (
                    letter,
                    side,
                    f"{boundary.known(score.edges)} of {len(score.edges)}",
                    *misfits,
                    str(score.factor),
                )
            )
    head = ("panel", "side", "columns with a boundary", *CURVES, "constant instead of 12")
    return Grid("Mean |log(curve / boundary)|, with 95 % intervals", head, rows)


DEPTHS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 250)
WEIGHT_VARS = (1.0, 1.15, 1.3, 1.45, 1.6, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0)
GPU_WIDTH = 192
GPU_STEPS = {"g": 5000}  # half of the printed number

EXPERIMENT = Experiment(
    name="s1-figure7",
    title="Trainable depth",
    place="Figure 7",
    claim=(
        "Networks can be trained if L <= min(12 ξ₁, 12 ξ₂). 6 ξ₂ underestimates this depth, and 12"
        " ξ₂ alone overestimates it on the right of the critical line."
    ),
    method=(
        "Training accuracy of tanh networks with σ_b² = 0.05 over initial weight variances and"
        " depths, measured without dropout. The boundary is where accuracy falls below halfway"
        " between chance and the best of the panel. The score of a curve is its mean distance in"
        " log depth, with bootstrap intervals over columns. The paper prints learning rates for (a)"
        " and (b) only, which are scaled by 300 / width; the others are near the fastest at the"
        " critical line, c / L without dropout."
    ),
    scales={
        "small": Settings(
            panels=(
                Panel("a", "digits", "sgd", False, 1.0, 160, 0.02),
                Panel("f", "digits", "sgd", True, 0.98, 160, 0.02),
            ),
            width=64,
            batch=32,
            depths=(6, 10, 16, 25, 40, 63),
            weight_vars=(1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0),
            images=500,
            subset=False,
        ),
        "gpu": Settings(
            panels=tuple(
                replace(panel, steps=GPU_STEPS.get(panel.letter, panel.steps))
                for panel in scaled(PANELS, GPU_WIDTH)
            ),
            width=GPU_WIDTH,
            batch=100,
            depths=DEPTHS,
            weight_vars=WEIGHT_VARS,
            images=4000,
            subset=True,
            seed=1,
        ),
        "paper": Settings(
            panels=PANELS,
            width=PRINTED_WIDTH,
            batch=100,
            depths=tuple(range(10, 251, 10)),
            weight_vars=tuple(np.round(np.arange(1, 4.01, 0.1), 1).tolist()),
            images=10_000,
            subset=False,
        ),
    },
    parts=parts,
    judge=judge,
    draw=draw,
)
