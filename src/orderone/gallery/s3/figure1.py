"""S3 Figure 1: the densities of r = log(l^2 (1 - rho)) in an unshaped ReLU network and in its SDE.

    dr = [-2 + 2 (1 - c e^{r/2}) / t] dt + 2 sqrt(2) dB,   c = sqrt(2) / (3 pi)
                                                           S3 (4.8)
    dq = 2q [(1 - c q^{1/2}) / t - 1] dt + 2 sqrt(2) q dB                       S3 (4.7), as printed

By Itô's formula the printed (4.7) gives a constant -6 instead of -2: the two equations contradict
each other. Erratum S3.1: (4.8) is right, and so is (4.7) with +1.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import SHADES, Figure, panels
from orderone.gallery.judge import below, finding, only
from orderone.gallery.s3.densities import (
    NETWORK,
    close,
    densities,
    distances,
    drawn,
    falling,
    power,
)
from orderone.measure import sample_network
from orderone.measure.limit_comparison import correlations, logs
from orderone.theory.limits import UnshapedCorrelationSDE
from orderone.theory.limits.unshaped import C

EULER = "SDE (4.8)"
PRINTED = "SDE (4.7) printed"
EXACT = "(4.8) solved"
NAMES = {EULER: "SDE (4.8)", PRINTED: "SDE (4.7), as printed", EXACT: "(4.8) without step error"}
STYLES: dict[str, dict[str, object]] = {
    EULER: {"color": SHADES[0], "width": 3},
    EXACT: {"color": SHADES[2], "width": 2, "dash": "dash"},
    PRINTED: {"color": SHADES[1], "width": 3, "dash": "dot"},
}
RANGE = (-8.0, 9.0)
FALLING = -0.5  # between the powers of a constant distance, 0, and of one that falls as 1/n, -1
STARTS = (0.9, -1.0)  # 1 - rho_0 = 0.1 and 2: nearly equal inputs, and opposite inputs


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...]
    width: int = 150
    rho0: float = 0.3
    dt: float = 1e-2
    samples: int = 2**13
    seed: int = 0


def parts(settings: Settings) -> Parts:
    sampled = cache(lambda: samples(settings, settings.width, settings.samples))
    return {
        "densities": lambda: densities(sampled(), *RANGE),
        "distances": lambda: distances(sampled()),
        "widths": lambda: widths(settings),
        "starts": lambda: starts(settings),
    }


def samples(settings: Settings, width: int, number: int) -> dict[str, np.ndarray]:
    """Sample r in the last of `width` layers, and of the SDEs."""
    V0 = [[1.0, settings.rho0], [settings.rho0, 1.0]]
    V = sample_network("relu", V0, width, width, number, settings.seed)
    sde = UnshapedCorrelationSDE()
    common = {"paths": number, "dt": settings.dt, "seed": settings.seed + 1}
    return {
        NETWORK: logs(width**2 * (1 - correlations(V))),
        EULER: sde.sample(settings.rho0, **common),
        PRINTED: printed(settings.rho0, **common),
        EXACT: sde.sample(settings.rho0, scheme="exact", **common),
    }


def printed(rho0: float, paths: int, dt: float, seed: int) -> np.ndarray:
    """Sample log q of (4.7) with its printed sign at t = 1: -2 - 4 by Itô, in steps of (4.9)."""
    rng = np.random.default_rng(seed)
    r = np.full(paths, np.log(1 - rho0))
    for k in range(1, round(1 / dt) + 1):
        r += 2 * (1 - C * np.exp(r / 2)) / k - 6 * dt + np.sqrt(8 * dt) * rng.standard_normal(paths)
    return r


def widths(settings: Settings) -> pd.DataFrame:
    """Return Wasserstein distances to the solution of (4.8) and to the printed equation, from half
    of the samples."""
    frames = []
    for width in settings.widths:
        sampled = samples(settings, width, settings.samples // 2)
        compared = {curve: sampled[curve] for curve in (NETWORK, EXACT, PRINTED)}
        frames.append(distances(compared, "wasserstein").assign(width=width))
    frame = pd.concat(frames).drop(columns=["mean", "std"])
    return frame.loc[frame.curve != NETWORK]


def starts(settings: Settings) -> pd.DataFrame:
    """Compare the final distributions from two extreme starts, with the same noise."""
    sde = UnshapedCorrelationSDE()
    common = {"paths": settings.samples, "dt": settings.dt, "seed": settings.seed}
    nearly, opposite = (sde.sample(rho0, **common) for rho0 in STARTS)
    return distances({NETWORK: nearly, "opposite": opposite}).assign(rho0=STARTS)


def judge(records: Records) -> list[Finding]:
    near, start = (records[part].set_index("curve") for part in ("distances", "starts"))
    right, wrong = (only(records["widths"], curve=curve) for curve in (EXACT, PRINTED))
    return [
        close("The scheme (4.9) of the SDE (4.8) has the density of the network", near.loc[EULER]),
        close("The SDE (4.7), as printed, has the density of the network", near.loc[PRINTED]),
        _falls("Networks converge to the SDE (4.7), as printed, as they grow", wrong),
        _falls("Networks converge to the SDE with +1 in (4.7), which is (4.8)", right, "S3.1"),
        close("The final law depends little on the initial correlation", start.loc["opposite"]),
    ]


def _falls(claim: str, lines: pd.DataFrame, erratum: str = "") -> Finding:
    fit = power(lines)
    first = lines.iloc[0]
    last = lines.iloc[-1]
    numbers = (
        f"W1 ~ n^{fit}; {first.distance:.2f} at n = {first.width}, {last.distance:.2f} at n ="
        f" {last.width}"
    )
    return finding(claim, below(fit.exponent, FALLING, fit.high - fit.exponent), numbers, erratum)


def draw(records: Records) -> list[Picture]:
    near = records["distances"].set_index("curve")
    layout = panels(["density"], "r = log(ℓ²(1 − ρ))", height=330)
    layout["xaxis1"]["range"] = list(RANGE)
    layout["bargap"] = 0
    alt = (
        f"Histogram of r over networks, mean {near['mean'][NETWORK]:.2f}. The curve of (4.8) lies"
        f" on it, at a Kolmogorov-Smirnov distance of {near.distance[EULER]:.3f}; the curve of"
        f" (4.7) as printed lies to the left, at {near.distance[PRINTED]:.3f}."
    )
    figure: Figure = {"data": drawn(records["densities"], STYLES, NAMES), "layout": layout}
    names = {EXACT: "to (4.8)", PRINTED: "to (4.7), as printed"}
    apart = falling(
        records["widths"], {curve: STYLES[curve] for curve in names}, names, "Wasserstein distance"
    )
    last = records["widths"].groupby("curve").distance.last()
    apart_alt = (
        f"The distance from (4.8) falls with the width to {last[EXACT]:.2f}; from the printed (4.7)"
        f" it is {last[PRINTED]:.2f}."
    )
    return [
        Picture("Density of r", figure, alt),
        Picture("Distance of networks from the SDE", apart, apart_alt),
    ]


EXPERIMENT = Experiment(
    name="s3-figure1",
    title="Density of the rescaled correlation",
    place="Figure 1, Theorem 4.1 and (4.9)",
    claim=(
        "r = log(l²(1 - rho)) in an unshaped ReLU network of depth = width has the distribution of"
        " an SDE, simulated by (4.9), for every initial correlation."
    ),
    method=(
        "Networks sampled layer by layer without weights, with the exact distribution; the SDE by"
        " the scheme of the paper, the printed (4.7) by the same scheme, and (4.8) by its solution."
        " Kolmogorov-Smirnov and Wasserstein distances with 99 % bootstrap intervals."
    ),
    scales={
        "small": Settings(widths=(40, 80, 160, 320)),
        "paper": Settings(widths=(40, 80, 160, 320, 640, 1280)),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S3.1",),
)
