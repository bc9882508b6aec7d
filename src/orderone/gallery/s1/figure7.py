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
from torch import Tensor

from orderone import theory
from orderone.gallery.experiment import Experiment, Parts
from orderone.gallery.s1.deep_training import (
    Members,
    Run,
    Training,
    device,
    members_of,
    read_images,
    seed_of,
    start,
    train,
)
from orderone.gallery.s1.trainable_depth_findings import THEORY, UPDATES, judge
from orderone.gallery.s1.trainable_depth_pictures import CAPTIONS, draw

BIAS_VAR = 0.05
PRINTED_WIDTH = 300  # of reference [6] of S1, whose learning rates (a) and (b) use
FINE = tuple(np.round(np.arange(1, 4.001, 0.05), 2).tolist())  # weight variances of drawn curves
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
    Panel("a", "mnist", "sgd", False, 1.0, UPDATES["a"], 1e-3, "dropping"),
    Panel("b", "mnist", "rmsprop", False, 1.0, UPDATES["b"], 1e-5),
    Panel("c", "mnist", "sgd", True, 1.0, UPDATES["c"], 0.3, "inverse"),
    Panel("d", "cifar10", "sgd", True, 1.0, UPDATES["d"], 0.3, "inverse"),
    Panel("e", "mnist", "sgd", True, 0.99, UPDATES["e"], 6.4e-3),
    Panel("f", "mnist", "sgd", True, 0.98, UPDATES["f"], 6.4e-3),
    Panel("h", "mnist", "sgd", True, 0.95, UPDATES["h"], 6.4e-3),
    Panel("g", "mnist", "sgd", False, 0.98, UPDATES["g"], 6.4e-3),
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
            accuracies = _accuracies(run, measured_images, classes, panel.keep)
            settings_of_run = {"keep": panel.keep, "depth": run.members.depth, "step": step}
            frames.append(members.assign(**settings_of_run, **accuracies))

    train(runs, panel.steps, f"panel {panel.letter}", look)
    return pd.concat(frames)


def _accuracies(run: Run, images: Tensor, classes: Tensor, keep: float) -> dict[str, list[float]]:
    """Return the accuracy of each member without dropout, and with its masks."""
    accuracy = run.accuracy(images, classes)
    masked = accuracy
    if keep < 1:
        masked = run.accuracy(images, classes, masked=True)
    return {"accuracy": accuracy, "masked": masked}


def captions(settings: Settings) -> pd.DataFrame:
    rows = [(panel.letter, _caption(panel)) for panel in settings.panels]
    return pd.DataFrame(rows, columns=["letter", "caption"])


def _caption(panel: Panel) -> str:
    data = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}[panel.data]
    if panel.orthogonal:
        weights = "orthogonal"
    else:
        weights = "Gaussian"
    optimizer = {"sgd": "SGD", "rmsprop": "RMSprop"}[panel.optimizer]
    return f"{data}, {weights}, {optimizer}, ρ = {panel.keep:g}"


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
