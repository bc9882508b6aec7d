"""S3 Theorem 2.2 and (2.14): residual networks with branches 1 / sqrt(d), compared with shaped
networks of depth d << n.

    dV/dt = J(rho) sqrt(V_aa V_bb)     residual networks, S3 (2.13)
    dV/dt = nu(rho) sqrt(V_aa V_bb)    shaped networks, S3 (3.18)

The paper identifies the two. But J = nu + rho / 2 (erratum S3.3): correlations obey the same
equation, and the residual covariance is e^{t/2} times the shaped one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderone.core.covariances import correlation
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import SHADES, Trace, panels, scatter, spans
from orderone.gallery.judge import below, finding, joined, only, together
from orderone.measure import sample_network
from orderone.theory.limits import correlation_ode, covariance_ode, resnet_ode

KINDS = {"resnet": "residual", "shaped-relu": "shaped"}
# The first of four inputs in a plane; the others at these correlations with it.
RHO0 = (-0.9, -0.5, 0.0)
TIMES = np.linspace(0, 1, 11)
# Two predictions differ by a gap; a measurement confirms one if its distance from it, noise
# included, is below this part of the gap.
SHARE = 0.2
SURE = 3.0  # standard errors
CURVE = np.linspace(0, 1, 41)


@dataclass(frozen=True)
class Settings:
    """Settings; the slopes of shaped networks are symmetric about 1, which minimises the effect of
    finite depth."""

    resnet: tuple[int, int, int]  # width, depth, networks
    shaped: tuple[int, int, int]  # of depth n^{2p}
    p: float = 0.25
    c_plus: float = 0.5
    c_minus: float = -0.5
    seed: int = 0


def parts(settings: Settings) -> Parts:
    return {kind: lambda kind=kind: measure(kind, settings) for kind in KINDS}


def measure(kind: str, settings: Settings) -> pd.DataFrame:
    """Return means over networks, with standard errors, of V_11, V_1j and rho_1j along the
    depth."""
    if kind == "resnet":
        width, depth, networks = settings.resnet
    else:
        width, depth, networks = settings.shaped
    c_plus = settings.c_plus
    c_minus = settings.c_minus
    p = settings.p  # residual networks ignore it
    V = sample_network(
        kind,
        _start(),
        width,
        depth,
        networks,
        settings.seed,
        c_plus=c_plus,
        c_minus=c_minus,
        p=p,
        layers=True,
    )
    rows = []
    for t in TIMES[1:]:
        layer = round(t * depth)
        now = V[:, layer - 1]
        rows.append((kind, layer / depth, "V11", 1.0, *_mean(now[:, 0, 0])))
        for j, rho0 in enumerate(RHO0, 1):
            rows.append((kind, layer / depth, "V12", rho0, *_mean(now[:, 0, j])))
            rows.append((kind, layer / depth, "rho", rho0, *_mean(correlation(now)[:, 0, j])))
    return pd.DataFrame(rows, columns=["kind", "t", "quantity", "rho0", "value", "noise"])


def _start() -> np.ndarray:
    angles = np.array([0.0, *np.arccos(RHO0)])
    return np.cos(angles[:, None] - angles[None, :])


def _mean(x: np.ndarray) -> tuple[float, float]:
    return float(x.mean()), float(x.std() / len(x) ** 0.5)


def _at_the_end(frame: pd.DataFrame) -> pd.DataFrame:
    return only(frame, t=frame.t.max()).set_index(["quantity", "rho0"])


def judge(records: Records) -> list[Finding]:
    residual = _at_the_end(records["resnet"])
    shaped = _at_the_end(records["shaped-relu"])
    end = residual.t.to_numpy()[:1]
    correlations = [key for key in residual.index if key[0] == "rho"]
    covariances = [key for key in residual.index if key[0] != "rho"]
    ode = {key: float(_predicted(key, end, resnet_ode)[0]) for key in residual.index}
    shaped_ode = {key: float(_predicted(key, end, covariance_ode)[0]) for key in residual.index}
    initial = {key: key[1] for key in correlations}
    return [
        _agree(
            "Covariances of residual networks obey (2.13)", residual, covariances, ode, shaped_ode
        ),
        _agree(
            "Correlations of residual networks obey dρ/dt = ν(ρ)",
            *(residual, correlations, ode, initial),
        ),
        _agree(
            "Correlations of shaped networks obey dρ/dt = ν(ρ) too",
            *(shaped, correlations, shaped_ode, initial),
        ),
        _agree(
            "Covariances of residual networks equal those of shaped networks, (2.14)",
            *(residual, covariances, shaped_ode, ode),
        ),
        _factor(residual.loc[("V11", 1.0)], shaped.loc[("V11", 1.0)]),
    ]


def _agree(
    claim: str, measured: pd.DataFrame, keys: list, predicted: dict, instead: dict
) -> Finding:
    """Judge whether all measurements are at `predicted`, relative to its distance from `instead`,
    the other prediction."""
    verdicts = []
    listed = []
    for key in keys:
        value = measured.value[key]
        noise = measured.noise[key]
        off = abs(value - predicted[key])
        gap = abs(predicted[key] - instead[key])
        verdicts.append(below(off, SHARE * gap, SURE * noise))
        listed.append(f"{_name(key)} {value:.3f} ± {noise:.3f} ({predicted[key]:.3f})")
    return finding(
        claim, together(verdicts), "at t = 1, with the prediction in brackets: " + ", ".join(listed)
    )


def _factor(residual: pd.Series, shaped: pd.Series) -> Finding:
    """Judge the measured ratio of the variances of both kinds of networks."""
    ratio = residual.value / shaped.value
    right = np.exp(residual.t / 2)
    noise = ratio * np.hypot(residual.noise / residual.value, shaped.noise / shaped.value)
    held = below(abs(ratio - right), SHARE * (right - 1), SURE * noise)
    numbers = f"ratio of V₁₁ at t = 1: {ratio:.3f} ± {noise:.3f}; e^1/2 = {right:.3f}"
    return finding("Residual covariances are e^(t/2) times the shaped ones", held, numbers, "S3.3")


def _predicted(key: tuple[str, float], t: np.ndarray, ode: Callable) -> np.ndarray:
    """Return the prediction of a quantity from its initial value, at times t."""
    quantity, rho0 = key
    if quantity == "rho":
        return correlation_ode(rho0, t)
    V = ode([[1.0, rho0], [rho0, 1.0]], t)
    return V[:, 0, 0] if quantity == "V11" else V[:, 0, 1]


def _name(key: tuple[str, float]) -> str:
    quantity, rho0 = key
    if quantity == "V11":
        return "V₁₁"
    return f"{'ρ' if quantity == 'rho' else 'V₁₂'} from {rho0:g}"


def draw(records: Records) -> list[Picture]:
    frame = joined(records)
    data = []
    for row, quantity in enumerate(("rho", "V12", "V11")):
        if quantity == "V11":
            shades = {1.0: SHADES[3]}
        else:
            shades = dict(zip(RHO0, SHADES, strict=False))
        for rho0, shade in shades.items():
            for kind in KINDS:
                some = only(frame, kind=kind, quantity=quantity, rho0=rho0)
                data += _traces(some, kind, (quantity, rho0), shade, row)
    layout = panels(
        ["correlation ρ", "covariance V₁₂", "variance V₁₁"],
        "t = layer / depth",
        share=True,
        height=260,
    )
    last = only(frame, t=frame.t.max(), quantity="V11").set_index("kind").value
    alt = (
        "Correlations of residual and shaped networks lie on the same curves; covariances do not:"
        f" the variance grows to {last['resnet']:.2f} in residual networks and is"
        f" {last['shaped-relu']:.2f} in shaped ones."
    )
    caption = (
        "Lines: (2.13) for residual, (3.18) for shaped networks. Marks: means over networks."
        " Colours: ρ at the start."
    )
    return [Picture("Residual and shaped networks", {"data": data, "layout": layout}, alt, caption)]


def _traces(
    some: pd.DataFrame, kind: str, key: tuple[str, float], shade: str, row: int
) -> list[Trace]:
    residual = kind == "resnet"
    named = row == 0 and key[1] == RHO0[0]
    curve = _predicted(key, CURVE, resnet_ode if residual else covariance_ode)
    line = {"color": shade, "dash": "solid" if residual else "dash", "width": 2}
    marker = {"color": shade, "symbol": "circle" if residual else "square-open", "size": 7}
    bars = spans(some.value, some.value - 2 * some.noise, some.value + 2 * some.noise)
    names = [f"{KINDS[kind]}: {what}" if named else "" for what in ("ODE", "networks")]
    return [
        scatter(CURVE.tolist(), curve.tolist(), names[0], row=row, line=line),
        scatter(some.t, some.value, names[1], row=row, mode="markers", marker=marker, error_y=bars),
    ]


EXPERIMENT = Experiment(
    name="s3-resnet",
    title="Residual against shaped networks",
    place="Remark 3.1, (2.13) and (2.14)",
    claim=(
        "A residual ReLU network with branches 1/√d and a shaped network of depth d << n have the"
        " same covariance in the limit."
    ),
    method=(
        "Both kinds of networks sampled layer by layer without weights, with the exact"
        " distribution; means of variances, covariances and correlations of four inputs along the"
        " depth, with standard errors, compared with both ODEs."
    ),
    scales={
        "small": Settings(resnet=(1000, 100, 256), shaped=(4096, 64, 384)),
        "paper": Settings(resnet=(4000, 400, 1024), shaped=(2**16, 256, 1024)),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S3.3",),
)
