"""Judge the records of `figure7`: the distance of each curve from the measured boundary, left and
right of the critical line, and the best constant instead of 12.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Finding, Records
from orderone.gallery.judge import together
from orderone.gallery.paper_scale import at_scale
from orderone.gallery.s1 import boundary
from orderone.gallery.s1.boundary import Estimate, boundaries
from orderone.gallery.s1.deep_training import panels_of

FACTOR = 12.0
OLDER = 6.0
CURVES = ONE, OLD, TWO, LAST = "12 ξ₁", "6 ξ₂", "12 ξ₂", "min(12 ξ₁, 12 ξ₂)"
THEORY = "theory"  # the part of the records with the depth scales
# updates of each panel, as in the caption
UPDATES = {
    "a": 2000,
    "b": 1000,
    "c": 2000,
    "d": 3000,
    "e": 3000,
    "f": 3000,
    "g": 10000,
    "h": 3000,
}


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
        about_panel = _of_panel(f"({letter})", score, dropout=bool(frame.keep.iloc[0] < 1))
        findings += at_scale(about_panel, float(frame.step.max()), UPDATES[letter], "updates")
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
