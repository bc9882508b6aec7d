"""S1 Figure 1: one layer's map of lengths and of correlations, and the fixed points where it meets the unity line.

    q' = (weight_var / keep) E phi(sqrt(q) z)^2 + bias_var                                               S1 (2)
    c' = (weight_var E phi(u_a) phi(u_b) + bias_var) / q*,    lengths at their fixed point q*            S1 (3), (4)

The caption gives deviations: weight_var = sigma_w^2, and rho is the keep rate (erratum S1.8). Panel (c) at rho = .4 has no
q*: its lengths grow for ever (erratum S1.2), and its map is that of normalised signals. Erratum S1.1: without dropout c* is
1 only if chi_1 <= 1; panel (e), which is not in the paper, shows two networks where it is not.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from orderone.gallery.dropout_batches import brief, measure, seed_of
from orderone.gallery.dropout_pictures import KEEP, NEUTRAL, SERIES, dots, layout, line, shade
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.frames import Frame
from orderone.gallery.judging import known
from orderone.nn import from_layers
from orderone.theory import MeanField, kernels

KEEPS = (1.0, 0.7, 0.4)
SIGMAS = 4.5  # beyond which a dot is off its line: a hundred dots would show one in a thousand times
CURVATURE = 3  # c_ab of a finite network is a ratio of means: off by about 1/N, amplified 1 / (1 - chi_2) by depth
SMOOTH = 61  # points of a theory curve
SAME = 1e-3  # 1 - c below this counts as c = 1: single precision, and signals still on their way


class Panel(NamedTuple):
    activation: str
    weight_var: float
    bias_var: float
    of: str  # "q" or "c"
    largest: float = 1.0  # where the axes end


PANELS = {
    "a": Panel("linear", 0.5**2, 1.5**2, "q", 10.0),
    "b": Panel("tanh", 2.5**2, 0.5**2, "q", 18.0),
    "c": Panel("relu", 0.9**2, 0.5**2, "c"),
    "d": Panel("erf", 0.9**2, 0.5**2, "c"),
}
CHAOTIC = {"e": Panel("tanh", 2.5, 0.05, "c"), "f": Panel("hard-tanh", 1.4, 0.1, "c")}  # no dropout: erratum S1.1


@dataclass(frozen=True)
class Settings:
    width: int
    networks: int
    points: int  # dots of each curve
    depth: int  # layers in which a signal comes to its fixed point
    batches: int
    seed: int = 0


def parts(settings: Settings) -> Parts:
    return {
        "theory": lambda: pd.concat(
            [curve(name, keep) for name in PANELS for keep in KEEPS] + [curve(name, 1.0) for name in CHAOTIC]
        ),
        "maps": lambda: pd.concat(
            [one_layer(name, keep, settings) for name in PANELS for keep in KEEPS]
            + [one_layer(name, 1.0, settings) for name in CHAOTIC]
        ),
        "fixed points": lambda: pd.DataFrame(
            [deep(name, keep, settings) for name in PANELS for keep in KEEPS]
            + [deep(name, 1.0, settings) for name in CHAOTIC]
        ),
    }


def curve(name: str, keep: float) -> Frame:
    panel = (PANELS | CHAOTIC)[name]
    x = np.linspace(0, panel.largest, SMOOTH)
    return brief(pd.DataFrame({"panel": name, "keep": keep, "x": x, "y": _map(panel, mean_field(panel, keep), x)}))


def _map(panel: Panel, network: MeanField, x: np.ndarray) -> np.ndarray:
    return network.length_map(x) if panel.of == "q" else network.correlation_map(x)


def one_layer(name: str, keep: float, settings: Settings) -> Frame:
    """Real layers (activation, dropout, weights) on pairs of Gaussian pre-activations: lengths and correlations after."""
    panel = (PANELS | CHAOTIC)[name]
    network = mean_field(panel, keep)
    x = np.linspace(0, panel.largest, settings.points)
    lengths = x if panel.of == "q" else np.full_like(x, _length(network))
    correlations = x if panel.of == "c" else np.zeros_like(x)
    after = _simulate(network, lengths, correlations, settings, seed_of(settings.seed, ord(name), int(100 * keep)))
    values = after[:, :, 0] if panel.of == "q" else after[:, :, 2] / np.sqrt(after[:, :, 0] * after[:, :, 1])
    std = values.std(0, ddof=1)
    columns = {
        "x": x,
        "theory": _map(panel, network, x),
        "mean": values.mean(0),
        "se": std / len(values) ** 0.5,
        "std": std,
    }
    return brief(pd.DataFrame({"panel": name, "keep": keep, "width": settings.width, **columns}))


def _simulate(network: MeanField, q: np.ndarray, c: np.ndarray, settings: Settings, seed: int) -> np.ndarray:
    """(networks, points, 3): q_aa, q_bb, q_ab after one layer; all pairs meet the same weights, each its own masks."""
    weight_var, bias_var, keep = (float(v) for v in network.one())
    description = kernels.Sequential(
        kernels.Activation(network.activation), kernels.Dropout(keep), kernels.Dense(weight_var, bias_var)
    )
    Q, C = torch.as_tensor(q, dtype=torch.float32)[:, None], torch.as_tensor(c, dtype=torch.float32)[:, None]
    found = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for _ in range(settings.networks):
            layer = from_layers(description, settings.width, settings.width)
            one, other = torch.randn(2, len(q), settings.width)
            a, b = (layer(Q.sqrt() * z) for z in (one, C * one + (1 - C**2).sqrt() * other))
            found.append(torch.stack([(a * a).mean(-1), (b * b).mean(-1), (a * b).mean(-1)], -1))
    return torch.stack(found).double().numpy()


def deep(name: str, keep: float, settings: Settings) -> dict[str, object]:
    """Where unrelated inputs of length one have come to after many layers."""
    panel = (PANELS | CHAOTIC)[name]
    network = mean_field(panel, keep)
    size = settings.networks // settings.batches
    seed = (settings.seed, 1, ord(name), int(100 * keep))
    batches = measure(network, settings.width, settings.depth, settings.batches, size, seed, start=(1.0, 0.0))
    (q, _, q_se), (c, _, c_se) = (batches.pooled().of(quantity) for quantity in ("q_aa", "c_ab"))
    half = settings.depth // 2
    growth = batches.jackknife(lambda moments: float(np.log(np.divide(*moments.of("q_aa")[0][[-1, half - 1]]))))
    return {
        "panel": name, "activation": panel.activation, "keep": keep, "width": settings.width, "depth": settings.depth,
        "status": network.status, "q_star": network.q_star, "c_star": network.c_star,
        "chi1": network.chi1, "chi2": network.chi2, "q": q[-1], "q_se": q_se[-1], "c": c[-1], "c_se": c_se[-1],
        "growth": growth.exponent, "growth_low": growth.low, "growth_high": growth.high,
        "growth_expected": float(np.log(np.divide(*network.trajectory(1.0, 0.0, settings.depth).q[[-1, half]]))),
    }  # fmt: skip


def mean_field(panel: Panel, keep: float) -> MeanField:
    return MeanField(panel.activation, weight_var=panel.weight_var, bias_var=panel.bias_var, keep=keep)


def _length(network: MeanField) -> float:
    """q*, or where there is none, a length beside which biases are nothing."""
    return network.q_star if network.status == "converged" else 1e6


def judge(records: Records) -> list[Finding]:
    maps, fixed = records["maps"], records["fixed points"]
    return [
        *(_on_the_line(maps[maps.panel == name], name) for name in PANELS),
        _longer(fixed[fixed.panel.isin(["a", "b"])]),
        _only_without_dropout(fixed[fixed.panel.isin(["c", "d"])]),
        _always_one(fixed[fixed.keep == 1]),
        _one_if_ordered(fixed[fixed.keep == 1]),
        _every_length_ends(fixed),
        _ends_unless_it_diverges(fixed),
    ]


def _on_the_line(lines: Frame, name: str) -> Finding:
    allowed = 0 if PANELS[name].of == "q" else CURVATURE / lines.width
    z = (lines["mean"] - lines.theory).abs() / (lines.se + 1e-6 + allowed / SIGMAS)
    what = "lengths" if PANELS[name].of == "q" else "correlations"
    numbers = (
        f"{len(lines)} dots of {lines.width.iloc[0]} units; the farthest {z.max():.1f} standard errors off its line"
    )
    holds = bool(z.max() < SIGMAS) if known(z) else None
    return Finding(f"({name}) one layer maps {what} as mean field theory says", holds, numbers)


def _longer(lines: Frame) -> Finding:
    """Within a panel, by decreasing keep rate."""
    steps = [lines[lines.panel == name].sort_values("keep", ascending=False) for name in ("a", "b")]
    larger = all((np.diff(s.q) > SIGMAS * np.hypot(s.q_se[1:], s.q_se[:-1].to_numpy())).all() for s in steps)
    near = ((lines.q - lines.q_star).abs() <= SIGMAS * lines.q_se + CURVATURE / lines.width * lines.q_star).all()
    numbers = "; ".join(
        f"({e.panel}) ρ = {e.keep:g}: {e.q:.3f} ± {e.q_se:.3f}, q* {e.q_star:.4g}" for e in lines.itertuples()
    )
    holds = bool(larger and near) if known(lines.q, lines.q_se) else None
    return Finding("The fewer units are kept, the longer signals come to be", holds, numbers)


def _only_without_dropout(lines: Frame) -> Finding:
    """Panels (c) and (d), whose networks are in the ordered phase without dropout."""
    whole, dropped = lines[lines.keep == 1], lines[lines.keep < 1]
    holds = bool((1 - whole.c < SAME).all() and (1 - dropped.c > SAME + SIGMAS * dropped.c_se).all())
    told = holds if known(whole.c, dropped.c, dropped.c_se) else None
    return Finding("(c), (d) correlations come to 1 without dropout and only then", told, _correlations(lines))


def _always_one(lines: Frame) -> Finding:
    holds = bool((1 - lines.c < SAME + SIGMAS * lines.c_se).all()) if known(lines.c, lines.c_se) else None
    return Finding("Without dropout, correlations always come to 1", holds, _correlations(lines))


def _one_if_ordered(lines: Frame) -> Finding:
    """Every measured correlation is c*, and c* is 1 in the ordered phase only."""
    finite = CURVATURE / lines.width / (1 - lines.chi2).clip(lower=1e-3)
    settled = lines.chi2**lines.depth  # what is left of where they started
    near = (lines.c - lines.c_star).abs() <= SAME + SIGMAS * lines.c_se + finite + settled
    split = (1 - lines.c < SAME + SIGMAS * lines.c_se) == (lines.chi1 <= 1)
    numbers = "; ".join(
        f"{e.activation} χ₁ {e.chi1:.3f}: c {e.c:.4f} ± {e.c_se:.4f}, c* {e.c_star:.4f}" for e in lines.itertuples()
    )
    claim = "Without dropout, correlations come to 1 if χ₁ ≤ 1, and to c* < 1 otherwise"
    holds = bool((near & split).all()) if known(lines.c, lines.c_se, lines.c_star) else None
    return Finding(claim, holds, numbers, "corrected", "S1.1")


def _every_length_ends(fixed: Frame) -> Finding:
    """The second half of the layers changes nothing."""
    grows = fixed.growth_low > SAME
    holds = not grows.any() if known(fixed.growth_low) else None
    return Finding("All of these lengths have fixed points", holds, _growing(fixed[grows]))


def _ends_unless_it_diverges(fixed: Frame) -> Finding:
    lines = fixed[fixed.status == "diverges"]
    right = (lines.growth_low > SAME) & lines.growth_expected.between(lines.growth_low, lines.growth_high)
    claim = "(c) at ρ = .4 lengths grow for ever, since σ_w² > 2ρ; only correlations have a limit"
    return Finding(claim, bool(right.all()) if known(lines.growth_low) else None, _growing(lines), "corrected", "S1.2")


def _growing(lines: Frame) -> str:
    said = (
        f"({e.panel}) {e.activation} ρ = {e.keep:g}: layers {e.depth // 2} to {e.depth} lengthen signals by a factor "
        f"{np.exp(e.growth):.2f} [{np.exp(e.growth_low):.2f}, {np.exp(e.growth_high):.2f}], "
        f"in theory {np.exp(e.growth_expected):.2f}"
        for e in lines.itertuples()
    )
    return "; ".join(said) or "none of them grows"


def _correlations(lines: Frame) -> str:
    return "; ".join(f"({e.panel}) {e.activation} ρ = {e.keep:g}: {e.c:.4f} ± {e.c_se:.4f}" for e in lines.itertuples())


def draw(records: Records) -> list[Picture]:
    return [*(_picture(name, _of(records, [name])) for name in PANELS), _chaotic(_of(records, list(CHAOTIC)))]


def _of(records: Records, panels: list[str]) -> dict[str, Frame]:
    return {part: frame[frame.panel.isin(panels)] for part, frame in records.items()}


def _picture(name: str, records: dict[str, Frame]) -> Picture:
    panel = PANELS[name]
    data = [_unity(panel.largest)]
    for point in records["fixed points"].itertuples():
        data += _curve(records, name, point, f"ρ = {point.keep:g}", KEEP[point.keep])
    ends = ", ".join(f"{_at(point, panel.of)} at ρ = {point.keep:g}" for point in records["fixed points"].itertuples())
    symbol = "q<sub>aa</sub>" if panel.of == "q" else "c<sub>ab</sub>"
    title = f"({name}) {panel.activation}: σ_w = {panel.weight_var**0.5:g}, σ_b = {panel.bias_var**0.5:g}"
    alt = f"Theory curves for three keep rates with simulated dots on them; they cross the unity line at {ends}."
    caption = (
        "Lines: theory. Dots: networks, with standard errors; shades: one standard deviation over networks. "
        "Diamonds: where deep networks end. ρ is the keep rate."
    )
    figure = {"data": data, "layout": layout(f"{symbol}<sup>l−1</sup>", f"{symbol}<sup>l</sup>")}
    return Picture(title, figure, alt, caption)


def _chaotic(records: dict[str, Frame]) -> Picture:
    data = [_unity(1.0)]
    for colour, point in zip(SERIES[3:], records["fixed points"].itertuples(), strict=False):
        panel = CHAOTIC[point.panel]
        label = f"{panel.activation}, σ_w² = {panel.weight_var:g}, σ_b² = {panel.bias_var:g}"
        data += _curve(records, point.panel, point, label, colour)
    ends = " and ".join(f"{e.c:.3f} ({e.activation})" for e in records["fixed points"].itertuples())
    alt = f"Correlation maps of two networks without dropout cross the unity line at {ends}, below 1."
    figure = {"data": data, "layout": layout("c<sub>ab</sub><sup>l−1</sup>", "c<sub>ab</sub><sup>l</sup>")}
    caption = "Not in the paper: in the chaotic phase c* is below 1 without any dropout (erratum S1.1)."
    return Picture("(e) Two networks without dropout, ρ = 1", figure, alt, caption)


def _unity(end: float) -> dict:
    return line([0, end], [0, end], "unity", NEUTRAL, "dash")


def _curve(records: dict[str, Frame], name: str, point: Any, label: str, colour: str) -> list[dict]:
    """Theory, dots in their shade, and the fixed point, with one entry in the legend."""
    theory, maps = (f[(f.panel == name) & (f.keep == point.keep)] for f in (records["theory"], records["maps"]))
    group = {"legendgroup": label, "showlegend": False}
    return [
        shade(maps.x, maps["mean"] - maps["std"], maps["mean"] + maps["std"], label, colour, **group),
        line(theory.x, theory.y, label, colour, legendgroup=label),
        dots(maps.x, maps["mean"], f"{label}, networks", colour, maps.se, **group),
        *_fixed_point(point, (PANELS | CHAOTIC)[name].of, label, colour, group),
    ]


def _fixed_point(point: Any, of: str, label: str, colour: str, group: dict) -> list[dict]:
    if of == "q" and point.status == "diverges":
        return []
    value, se = (point.q, point.q_se) if of == "q" else (point.c, point.c_se)
    marker = {"symbol": "diamond-open", "size": 13, "line": {"width": 2}}
    return [dots([value], [value], f"{label}, fixed point", colour, [se], marker=marker, **group)]


def _at(point: Any, of: str) -> str:
    return f"{point.q:.3g}" if of == "q" else f"{point.c:.3f}"


EXPERIMENT = Experiment(
    name="s1-figure1",
    title="Length and correlation maps",
    claim="One layer of a wide dropout network maps lengths and correlations as mean field theory says; the fewer units "
    "are kept, the longer signals become; correlations come to 1 without dropout, and only then.",
    method="Dots: real layers (activation, dropout, Gaussian weights and biases) on Gaussian pre-activations of given "
    "length and correlation. Fixed points: last layers of deep networks with unrelated inputs. Theory: `theory.MeanField`.",
    scales={
        "small": Settings(width=1000, networks=48, points=11, depth=100, batches=8),
        "paper": Settings(width=1000, networks=200, points=21, depth=200, batches=8),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.1", "S1.2", "S1.8"),
)  # fmt: skip
