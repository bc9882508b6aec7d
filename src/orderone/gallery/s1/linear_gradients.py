"""Gradient metrics of random linear dropout networks by layer, and the closed form (12) of S1
("Mean field theory for deep dropout networks"), for Figure 2.

The mean of g_ab with its sign needs many more networks than the mean of |g_ab|, and only the layers
near the output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Parts
from orderone.gallery.frames import Frame, Line
from orderone.gallery.s1 import dropout_rates as rates
from orderone.gallery.s1.dropout_batches import Batches, brief, measure
from orderone.theory import MeanField, linear_gradient_metrics
from orderone.theory.meanfield import linear_noise_level

WEIGHT_VAR = 0.5
BIAS_VAR = 0.1
KEEPS = (1.0, 0.9, 0.7, 0.6)  # not printed in the paper; (12) needs a rate above weight_var
CURVES = ("g_aa", "g_ab", "abs_g_ab")
LAST_FEW = 2  # distances from the output that count as the last few layers
FAR = 60  # at larger distances |g_ab| is at its noise floor, for keep rates below .8
NOISE_KEEP = 0.7
NOISE_AT = 15  # distance at which the floor is measured for each width
START_KEEP = 0.9  # for inputs that are not at the fixed point


@dataclass(frozen=True)
class Settings:
    width: int
    depth: int
    networks: int
    near_depth: int  # depth of the networks for the mean with its sign, which needs many of them
    near_networks: int
    widths: tuple[int, ...]
    width_networks: int
    batches: int = 8
    seed: int = 0


def parts(settings: Settings) -> Parts:
    all_layers = cache(lambda keep: deep(keep, settings))  # rates come from the same networks
    near = cache(lambda keep: nearby(keep, settings))

    def near_rates() -> pd.DataFrame:
        rows = []
        for keep in KEEPS:
            rows += fitted(keep, near(keep), settings)
        return pd.DataFrame(rows, columns=rates.COLUMNS)

    def far_rates() -> pd.DataFrame:
        rows = [far(keep, all_layers(keep), settings) for keep in KEEPS]
        return pd.DataFrame(rows, columns=rates.COLUMNS)

    measured: dict[str, Callable[[], pd.DataFrame]] = {}
    for keep in KEEPS:
        measured[f"keep {keep:g}"] = lambda keep=keep: whole(keep, all_layers(keep), settings)
    for keep in KEEPS:
        measured[f"keep {keep:g} near"] = lambda keep=keep: signed(keep, near(keep))
    measured["rates"] = near_rates
    measured["far rates"] = far_rates
    measured["widths"] = partial(noise, settings)
    measured["start"] = partial(started, settings)
    return measured


def network(keep: float) -> MeanField:
    return MeanField("linear", weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, keep=keep)


def deep(keep: float, settings: Settings) -> Batches:
    size = settings.networks // settings.batches
    seed = (settings.seed, 2, int(100 * keep))
    return measure(network(keep), settings.width, settings.depth, settings.batches, size, seed)


def nearby(keep: float, settings: Settings) -> Batches:
    size = settings.near_networks // settings.batches
    seed = (settings.seed, 3, int(100 * keep))
    return measure(network(keep), settings.width, settings.near_depth, settings.batches, size, seed)


def whole(keep: float, batches: Batches, settings: Settings) -> Frame:
    """Return all layers near the output and every second layer elsewhere."""
    level = linear_noise_level(keep, network(keep).c_star)
    frame = _with_theory(keep, batches)
    if keep == 1:
        frame["floor"] = frame.printed_aa
    else:
        frame["floor"] = (2 / np.pi / settings.width) ** 0.5 * level * frame.printed_aa
    frame = brief(frame)
    return frame[(frame.layer % 2 == 1) | (frame.layer > settings.depth - 31)]


def signed(keep: float, batches: Batches) -> Frame:
    return _with_theory(keep, batches)


def _with_theory(keep: float, batches: Batches) -> Frame:
    pooled = batches.pooled()
    g = linear_gradient_metrics(WEIGHT_VAR, BIAS_VAR, keep, batches.depth)
    frame = rates.curve(pooled, CURVES).assign(printed_aa=g.g_aa, printed_ab=g.g_ab)
    return brief(frame.assign(keep=keep, networks=pooled.networks))


def fitted(keep: float, batches: Batches, settings: Settings) -> list[tuple[object, ...]]:
    """Fit the factor per layer of the mean with its sign, as far as it is above the noise."""
    far = rates.resolved(network(keep), batches, settings.width)
    return [
        rates.line(
            f"ρ = {keep:g}", network(keep), batches, quantity, settings.width, LAST_FEW + 1, far
        )
        for quantity in ("g_aa", "g_ab")
    ]


def far(keep: float, batches: Batches, settings: Settings) -> tuple[object, ...]:
    near = FAR * settings.depth // 200
    return rates.line(
        f"ρ = {keep:g}",
        network(keep),
        batches,
        "abs_g_ab",
        settings.width,
        near,
        settings.depth - 2,
    )


def noise(settings: Settings) -> Frame:
    """Return std(g_ab) / g_aa in one layer, for networks of several widths."""
    rows = []
    level = linear_noise_level(NOISE_KEEP, network(NOISE_KEEP).c_star)
    for width in settings.widths:
        size = settings.width_networks // settings.batches
        seed = (settings.seed, 4, width)
        batches = measure(network(NOISE_KEEP), width, NOISE_AT + 1, settings.batches, size, seed)
        fit = batches.jackknife(
            lambda m: float(np.log(m.of("g_ab")[1][0] ** 0.5 / m.of("g_aa")[0][0]))
        )
        rows.append(
            (width, np.exp(fit.exponent), np.exp(fit.low), np.exp(fit.high), level / width**0.5)
        )
    return brief(pd.DataFrame(rows, columns=["width", "noise", "low", "high", "theory"]))


def started(settings: Settings) -> Frame:
    """Measure g_aa for uncorrelated inputs of length one, which are not at the fixed point."""
    size = settings.near_networks // settings.batches
    depth = 20
    seed = (settings.seed, 5)
    batches = measure(
        network(START_KEEP), settings.width, depth, settings.batches, size, seed, start=(1.0, 0.0)
    )
    mean, _, se = batches.pooled().of("g_aa")
    printed = linear_gradient_metrics(WEIGHT_VAR, BIAS_VAR, START_KEEP, depth).g_aa
    general = linear_gradient_metrics(
        WEIGHT_VAR, BIAS_VAR, START_KEEP, depth, q0=1.0, qab0=0.0
    ).g_aa
    layers = np.arange(1, depth + 1)
    return brief(
        pd.DataFrame(
            {"layer": layers, "mean": mean, "se": se, "printed": printed, "general": general}
        )
    )


def standard_error(frame: Frame, quantity: str) -> Line:
    return (frame[f"{quantity}_var"] / frame.networks) ** 0.5
