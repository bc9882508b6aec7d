"""S3 Theorem 2.1: correlations and norms of shaped networks with depth = width, and the covariance
SDE.

    dV = b(V) dt + Sigma(V)^{1/2} dB,   b = nu(rho) sqrt(V_aa V_bb)
                                        S3 (2.7)
    nu(rho) = (c_+ - c_-)^2 / (2 pi) (sqrt(1 - rho^2) - rho arccos rho)                     S3 (2.8)

(3.7), (3.12) and (B.5) print nu with a plus before rho. Erratum S3.2: minus is right. Smooth
activations have the drift (2.9).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from orderone.core.inputs import Array
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import SHADES, panels
from orderone.gallery.judge import finding, only
from orderone.gallery.s3.densities import NETWORK, close, densities, distances, drawn, falling
from orderone.measure import sample_network
from orderone.measure.limit_comparison import correlations, logs
from orderone.theory.limits import CovarianceSDE, ShapedReLU
from orderone.theory.limits.drift import ReLUDrift

MINUS = "SDE"
PLUS = "SDE with plus"
NAMES = {MINUS: "SDE (2.7)", PLUS: "SDE with the ν of (3.7)"}
STYLES: dict[str, dict[str, object]] = {
    MINUS: {"color": SHADES[0], "width": 3},
    PLUS: {"color": SHADES[1], "width": 3, "dash": "dot"},
}
QUANTITIES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[float, float], str]] = {
    "rho": (correlations, (-1.0, 1.0), "correlation ρ"),
    "norm": (lambda V: logs(V[:, 0, 0]), (-6.0, 4.0), "log V₁₁"),
}
KINDS = {"shaped-relu": "shaped ReLU", "shaped-smooth": "shaped tanh"}


class PlusDrift(ReLUDrift):
    """Drift b with the nu of (3.7) as printed."""

    @staticmethod
    def bend(rho: Array, xp: Any) -> Array:
        return xp.sqrt((1 - rho) * (1 + rho)) + rho * xp.acos(rho)


@dataclass(frozen=True)
class PlusSDE(CovarianceSDE):
    @property
    def drift(self) -> PlusDrift:
        return PlusDrift(ShapedReLU(self.c_plus, self.c_minus).drift)


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...]
    width: int = 150
    rho0: float = 0.3
    c_plus: float = 0.0
    c_minus: float = -2.0  # large, so that the drift is visible despite the noise
    dt: float = 1e-2
    samples: int = 2**13
    seed: int = 0


def parts(settings: Settings) -> Parts:
    sampled = cache(lambda kind: samples(settings, kind, settings.width, settings.samples))
    measures = {"densities": _densities, "distances": lambda _, values: distances(values)}
    measured: dict[str, Callable[[], pd.DataFrame]] = {}
    for (name, measure), kind in product(measures.items(), KINDS):
        measured[f"{name} {kind}"] = lambda kind=kind, measure=measure: _each(
            sampled(kind), measure
        )
    measured["widths"] = partial(widths, settings)
    return measured


def samples(settings: Settings, kind: str, width: int, number: int) -> dict[str, np.ndarray]:
    """Sample covariances of two inputs in the last of `width` layers, and of the SDEs at t = 1."""
    V0 = [[1.0, settings.rho0], [settings.rho0, 1.0]]
    c = (settings.c_plus, settings.c_minus)
    samples_of = {
        NETWORK: sample_network(
            kind, V0, width, width, number, settings.seed, c_plus=c[0], c_minus=c[1]
        )
    }
    sdes = {MINUS: CovarianceSDE(kind, *c)}
    if kind == "shaped-relu":
        sdes[PLUS] = PlusSDE(kind, *c)
    for name, sde in sdes.items():
        samples_of[name] = sde.sample(V0, 1.0, number, settings.dt, settings.seed)
    return samples_of


def _each(
    sampled: dict[str, np.ndarray], measure: Callable[[str, dict], pd.DataFrame]
) -> pd.DataFrame:
    frames = []
    for quantity, (of, _, _) in QUANTITIES.items():
        values = {curve: of(V) for curve, V in sampled.items()}
        frames.append(measure(quantity, values).assign(quantity=quantity))
    return pd.concat(frames)


def _densities(quantity: str, values: dict[str, np.ndarray]) -> pd.DataFrame:
    return densities(values, *QUANTITIES[quantity][1], smooth=quantity != "rho")


def widths(settings: Settings) -> pd.DataFrame:
    """Return Wasserstein distances of the correlation, from half of the samples."""
    frames = []
    for width in settings.widths:
        sampled = samples(settings, "shaped-relu", width, settings.samples // 2)
        values = {curve: correlations(V) for curve, V in sampled.items()}
        frames.append(distances(values, "wasserstein").assign(width=width))
    frame = pd.concat(frames).drop(columns=["mean", "std"])
    return frame.loc[frame.curve != NETWORK]


def judge(records: Records) -> list[Finding]:
    relu = records["distances shaped-relu"].set_index(["quantity", "curve"])
    smooth = records["distances shaped-smooth"].set_index(["quantity", "curve"])
    return [
        close(
            "Shaped ReLU: the correlation has the law of the SDE (2.7) with (2.8)",
            relu.loc[("rho", MINUS)],
        ),
        close("Shaped ReLU: the norm has the law of the SDE", relu.loc[("norm", MINUS)]),
        close(
            "Shaped tanh: the correlation has the law of the SDE with (2.9)",
            smooth.loc[("rho", MINUS)],
        ),
        close(
            "Shaped tanh: the norm has the law of the SDE with (2.9)", smooth.loc[("norm", MINUS)]
        ),
        close(
            "Shaped ReLU: the correlation has the law of the SDE with the ν of (3.7), plus",
            relu.loc[("rho", PLUS)],
        ),
        _nearer(records["widths"]),
    ]


def _nearer(far: pd.DataFrame) -> Finding:
    """Judge whether the intervals of the two distances are disjoint at every width."""
    minus = only(far, curve=MINUS).set_index("width")
    plus = only(far, curve=PLUS).set_index("width")
    if (minus.high < plus.low).all():
        held = True
    elif (minus.low > plus.high).any():
        held = False
    else:
        held = None
    numbers = "; ".join(
        f"n = {n}: W1 {minus.distance[n]:.3f} [{minus.low[n]:.3f}, {minus.high[n]:.3f}] with minus,"
        f" {plus.distance[n]:.3f} [{plus.low[n]:.3f}, {plus.high[n]:.3f}] with plus"
        for n in (minus.index[0], minus.index[-1])
    )
    return finding(
        "ν has a minus, as in (2.8): at every width networks are nearer to the SDE with minus",
        held,
        numbers,
        "S3.2",
    )


def draw(records: Records) -> list[Picture]:
    last = records["widths"].groupby("curve").distance.last()
    names = {MINUS: "minus, (2.8)", PLUS: "plus, (3.7)"}
    alt = (
        f"At the largest width the distance is {last[MINUS]:.3f} with the ν of (2.8) and"
        f" {last[PLUS]:.3f} with the ν of (3.7)."
    )
    figure = falling(records["widths"], STYLES, names, "Wasserstein distance of ρ")
    pictures = [_picture(kind, records) for kind in KINDS]
    return [*pictures, Picture("Shaped ReLU: distance from two SDEs", figure, alt)]


def _picture(kind: str, records: Records) -> Picture:
    near = records[f"distances {kind}"].set_index(["quantity", "curve"]).distance
    data = []
    for row, quantity in enumerate(QUANTITIES):
        styles = STYLES
        if quantity != "rho":  # the norm does not depend on nu
            styles = {MINUS: STYLES[MINUS]}
        data += drawn(only(records[f"densities {kind}"], quantity=quantity), styles, NAMES, row)
    layout = panels(
        ["density"] * len(QUANTITIES), [words for _, _, words in QUANTITIES.values()], height=270
    )
    for row, (quantity, (_, span, _)) in enumerate(QUANTITIES.items()):
        tall = only(records[f"densities {kind}"], quantity=quantity, curve=NETWORK).density.max()
        layout[f"xaxis{row + 1}"]["range"] = list(span)
        layout[f"yaxis{row + 1}"]["range"] = [
            0,
            1.3 * tall,
        ]  # with a plus, correlations pile up at the ends
    alt = (
        f"Histograms over {KINDS[kind]} networks, with the curves of the SDE on them;"
        f" Kolmogorov-Smirnov distances {near['rho', MINUS]:.3f} for ρ and"
        f" {near['norm', MINUS]:.3f} for the norm."
    )
    return Picture(
        f"{KINDS[kind]}: network and SDE", {"data": data, "layout": layout | {"bargap": 0}}, alt
    )


EXPERIMENT = Experiment(
    name="s3-shaped",
    title="Shaped networks and the covariance SDE",
    place="Theorem 2.1, (2.7) and (2.8)",
    claim=(
        "With activations shaped at the rate n^-1/2 and depth = width, covariances of inputs have"
        " the distribution of an SDE."
    ),
    method=(
        "Networks sampled layer by layer without weights, with the exact distribution; the SDE by a"
        " scheme of weak order 2 that preserves positive matrices, with the ν of (2.8) and with the"
        " ν of (3.7). Distances with 99 % bootstrap intervals."
    ),
    scales={
        "small": Settings(widths=(20, 40, 80, 160)),
        "paper": Settings(widths=(20, 40, 80, 160, 320, 640), samples=2**15),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S3.2",),
)
