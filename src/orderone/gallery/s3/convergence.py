"""S3 Proposition 3.4: with shaping n^{-p}, 0 < p < 1/2, networks of depth d = n^{2p} converge to an
ODE.

    V_{l+1} = V_l + b(V_l) / d + Sigma^{1/2} xi / sqrt(n) + O(d^{-3/2})                     S3 (3.6)

Over d layers the noise adds up to sqrt(d / n) = n^{p - 1/2}, the spread of networks, and the
remainder to d^{-1/2} = n^{-p}, the distance of their mean from the ODE. At p = 0.4 the spread falls
by only a third from n = 64 to n = 4096; at p = 0.1 the mean converges slowly. Erratum S3.5: the
time t is layer t n^{2p}; the proposition prints t n, a much deeper layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.figures import GREY, SHADES, panels, scatter, spans
from orderone.gallery.judge import below, finding, joined, known
from orderone.measure import Fit, sample_network
from orderone.measure.fit import fit_noisy_exponent
from orderone.measure.limit_comparison import correlations
from orderone.theory.limits import correlation_ode

CONFIDENCE = 0.999
BEND = 0.05  # largest bias of a fit by narrow networks
TELLING = 0.25  # an interval as wide as that can refute a power but confirm none
SURE = 3.0  # standard errors
PRINTED = "layer n"


@dataclass(frozen=True)
class Settings:
    powers: tuple[float, ...]
    widths: tuple[int, ...]
    work: int  # neurons drawn for each width and power, over all networks
    fewest: int  # networks
    most: int
    rho0: float = 0.3
    printed: float = 0.25  # p of the networks that are as deep as the proposition prints
    seed: int = 0


def parts(settings: Settings) -> Parts:
    known = {
        f"p = {p:g}": lambda p=p: measure(settings, settings.widths, p, 2 * p)
        for p in settings.powers
    }
    deep = settings.widths[:-1]  # layer n of the widest networks would take longer than the rest
    return known | {PRINTED: lambda: measure(settings, deep, settings.printed, 1.0)}


def measure(
    settings: Settings, widths: Sequence[int], p: float, depth_power: float
) -> pd.DataFrame:
    """Return correlations of two inputs at layer n^{depth_power}, and of the ODE at t = 1."""
    rho0 = settings.rho0
    rows = []
    limit = float(correlation_ode(rho0, 1.0))
    for n in widths:
        depth = max(1, round(n**depth_power))
        number = min(settings.most, max(settings.fewest, settings.work // (n * depth)))
        V = sample_network(
            "shaped-relu", [[1.0, rho0], [rho0, 1.0]], n, depth, number, settings.seed, p=p
        )
        rho = correlations(V)
        rows.append(
            (
                p,
                n,
                depth,
                number,
                limit,
                rho.mean(),
                rho.std(),
                np.sqrt(np.mean((rho - limit) ** 2)),
            )
        )
    return pd.DataFrame(
        rows, columns=["p", "width", "depth", "networks", "limit", "centre", "spread", "error"]
    )


def judge(records: Records) -> list[Finding]:
    findings = []
    for p, frame in _powers(records).items():
        error = fit(frame, "error")
        spread = fit(frame, "spread")
        first = frame.iloc[0]
        last = frame.iloc[-1]
        numbers = (
            f"rms error ~ n^{error}; {first.error:.3f} at n = {first.width:.0f}, {last.error:.3f}"
            f" at {last.width:.0f}"
        )
        converges = below(error.exponent, 0.0, error.high - error.exponent)
        findings.append(
            finding(f"p = {p:g}: networks converge to the ODE at layer n^2p", converges, numbers)
        )
        there: bool | None = spread.low - BEND <= p - 0.5 <= spread.high + BEND
        if not known([spread.low, spread.high]) or (there and spread.high - spread.low > TELLING):
            there = None
        numbers = f"spread ~ n^{spread}; n^{p - 0.5:+.2f} by (3.6)"
        findings.append(
            finding(f"p = {p:g}: the spread of networks falls as n^(p - 1/2)", there, numbers)
        )
    printed = records[PRINTED].iloc[-1]
    right = _powers(records)[printed.p].iloc[-1]
    findings.append(_at("Proposition 3.4 as printed: the ODE at time t is layer tn", printed))
    return [*findings, _at("The ODE at time t is layer t n^2p", right, "S3.5")]


def fit(frame: pd.DataFrame, column: str) -> Fit:
    """Fit a power of the width; an RMS over N networks has the relative error 1 / sqrt(2 N)."""
    return fit_noisy_exponent(
        frame.width, frame[column], _noise(frame, column), confidence=CONFIDENCE
    )


def _noise(frame: pd.DataFrame, column: str) -> pd.Series:
    return frame[column] / np.sqrt(2 * frame.networks)


def _at(claim: str, line: pd.Series, erratum: str = "") -> Finding:
    """Judge whether the mean is within n^{-p} of the ODE, as (3.6) allows."""
    noise = line.spread / np.sqrt(line.networks)
    held = below(abs(line.centre - line.limit), line.width**-line.p, SURE * noise)
    numbers = (
        f"n = {line.width:.0f}, layer {line.depth:.0f}: ρ = {line.centre:.3f} ± {noise:.3f}; ODE"
        f" {line.limit:.3f}"
    )
    return finding(claim, held, numbers, erratum)


def draw(records: Records) -> list[Picture | Grid]:
    data = []
    powers = _powers(records)
    for (p, frame), shade in zip(powers.items(), SHADES, strict=False):
        law = frame.spread.iloc[0] * (frame.width / frame.width.iloc[0]) ** (p - 0.5)
        noise = _noise(frame, "error")
        bars = spans(frame.error, frame.error - noise, frame.error + noise)
        full, hollow = (
            {"color": shade, "size": 9, "symbol": symbol} for symbol in ("circle", "circle-open")
        )
        data.append(scatter(frame.width, law, line={"color": shade}))
        data.append(
            scatter(
                frame.width, frame.error, f"p = {p:g}", mode="markers", error_y=bars, marker=full
            )
        )
        data.append(scatter(frame.width, frame.spread, mode="markers", marker=hollow))
    hollow = {"color": GREY, "symbol": "circle-open", "size": 9}
    data.append(scatter([None], [None], "spread alone", mode="markers", marker=hollow))
    layout = panels(["rms distance of ρ from the ODE"], "width n", height=430, log="xy")
    layout["xaxis1"]["tickvals"] = sorted(set(joined(records).width.to_list()))
    layout["yaxis1"]["dtick"] = "D2"
    powers_text = ", ".join(
        f"n^{fit(frame, 'error').exponent:+.2f} for p = {p:g}" for p, frame in powers.items()
    )
    alt = (
        "Distance of shaped networks of depth n^2p from the ODE against the width, falling as"
        f" {powers_text}."
    )
    caption = (
        "Lines: n^(p - 1/2). Full marks: distance from the ODE; open marks: spread about the mean"
        " of the networks."
    )
    return [
        Picture(
            "Shaped networks converge to their ODE", {"data": data, "layout": layout}, alt, caption
        ),
        _grid(records),
    ]


def _grid(records: Records) -> Grid:
    rows = [
        (f"{p:g}", f"{p - 0.5:+.2f}", str(fit(frame, "spread")), str(fit(frame, "error")))
        for p, frame in _powers(records).items()
    ]
    return Grid("Powers of the width", ("p", "p - 1/2", "spread", "distance from the ODE"), rows)


def _powers(records: Records) -> dict[float, pd.DataFrame]:
    return {float(frame.p.iloc[0]): frame for part, frame in records.items() if part != PRINTED}


EXPERIMENT = Experiment(
    name="s3-convergence",
    title="Shaping weaker than n^-1/2: the ODE limit",
    place="Proposition 3.4",
    claim=(
        "For p in (0, 1/2) and depth n^2p, the covariance of a shaped ReLU network converges to an"
        " ODE."
    ),
    method=(
        "Networks sampled layer by layer without weights, with the exact distribution; the root"
        " mean square distance of the correlation of two inputs from the ODE at t = 1, and its"
        " spread, over widths; powers fitted with 99.9 % intervals."
    ),
    scales={
        "small": Settings(
            (0.1, 0.2, 0.25, 0.3, 0.4), (64, 256, 1024, 4096), work=2**24, fewest=96, most=2**11
        ),
        "paper": Settings(
            (0.1, 0.2, 0.25, 0.3, 0.4, 0.45), (64, 256, 1024, 4096, 16384), 2**28, 2**10, 2**14
        ),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S3.5",),
)
