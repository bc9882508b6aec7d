"""Lengths and correlations after one random dropout layer, predicted and measured, and in the last
layer of deep networks.

The networks are those of Figure 1 of S1 ("Mean field theory for deep dropout networks"), and two
more without dropout.
"""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from orderone.gallery.experiment import Parts
from orderone.gallery.frames import Frame
from orderone.gallery.s1.dropout_batches import brief, measure, seed_of
from orderone.nn import from_layers
from orderone.theory import MeanField, kernels

KEEPS = (1.0, 0.7, 0.4)
SMOOTH = 61  # points of a theory curve


class Panel(NamedTuple):
    activation: str
    weight_var: float
    bias_var: float
    of: str  # "q" or "c"
    largest: float = 1.0  # end of the axes


PANELS = {
    "a": Panel("linear", 0.5**2, 1.5**2, "q", 10.0),
    "b": Panel("tanh", 2.5**2, 0.5**2, "q", 18.0),
    "c": Panel("relu", 0.9**2, 0.5**2, "c"),
    "d": Panel("erf", 0.9**2, 0.5**2, "c"),
}
CHAOTIC = {
    "e": Panel("tanh", 2.5, 0.05, "c"),
    "f": Panel("hard-tanh", 1.4, 0.1, "c"),
}  # no dropout: erratum S1.1


@dataclass(frozen=True)
class Settings:
    width: int
    networks: int
    points: int  # dots on each curve
    depth: int  # layers in which a signal approaches its fixed point
    batches: int
    seed: int = 0


def parts(settings: Settings) -> Parts:
    networks = [*product(PANELS, KEEPS), *product(CHAOTIC, (1.0,))]
    return {
        "theory": lambda: pd.concat([curve(name, keep) for name, keep in networks]),
        "maps": lambda: pd.concat([one_layer(name, keep, settings) for name, keep in networks]),
        "fixed points": lambda: pd.DataFrame(
            [deep(name, keep, settings) for name, keep in networks]
        ),
    }


def curve(name: str, keep: float) -> Frame:
    panel = (PANELS | CHAOTIC)[name]
    x = np.linspace(0, panel.largest, SMOOTH)
    return brief(
        pd.DataFrame(
            {"panel": name, "keep": keep, "x": x, "y": _map(panel, mean_field(panel, keep), x)}
        )
    )


def _map(panel: Panel, network: MeanField, x: np.ndarray) -> np.ndarray:
    if panel.of == "q":
        return network.length_map(x)
    return network.correlation_map(x)


def one_layer(name: str, keep: float, settings: Settings) -> Frame:
    """Apply layers (activation, dropout, weights) to pairs of Gaussian pre-activations; return the
    lengths and correlations of the outputs."""
    panel = (PANELS | CHAOTIC)[name]
    network = mean_field(panel, keep)
    x = np.linspace(0, panel.largest, settings.points)
    if panel.of == "q":
        lengths = x
    else:
        lengths = np.full_like(x, _length(network))
    if panel.of == "c":
        correlations = x
    else:
        correlations = np.zeros_like(x)
    after = _simulate(
        network, lengths, correlations, settings, seed_of(settings.seed, ord(name), int(100 * keep))
    )
    if panel.of == "q":
        values = after[:, :, 0]
    else:
        values = after[:, :, 2] / np.sqrt(after[:, :, 0] * after[:, :, 1])
    std = values.std(0, ddof=1)
    columns = {
        "x": x,
        "theory": _map(panel, network, x),
        "mean": values.mean(0),
        "se": std / len(values) ** 0.5,
        "std": std,
    }
    return brief(pd.DataFrame({"panel": name, "keep": keep, "width": settings.width, **columns}))


def _simulate(
    network: MeanField, q: np.ndarray, c: np.ndarray, settings: Settings, seed: int
) -> np.ndarray:
    """Return q_aa, q_bb and q_ab after one layer, (networks, points, 3).

    All pairs have the same weights; each pair has separate masks.
    """
    weight_var, bias_var, keep = (float(v) for v in network.one())
    description = kernels.Sequential(
        kernels.Activation(network.activation),
        kernels.Dropout(keep),
        kernels.Dense(weight_var, bias_var),
    )
    Q = torch.as_tensor(q, dtype=torch.float32)[:, None]
    C = torch.as_tensor(c, dtype=torch.float32)[:, None]
    products = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for _ in range(settings.networks):
            layer = from_layers(description, settings.width, settings.width)
            one, other = torch.randn(2, len(q), settings.width)
            a = layer(Q.sqrt() * one)
            b = layer(Q.sqrt() * (C * one + (1 - C**2).sqrt() * other))
            products.append(torch.stack([(a * a).mean(-1), (b * b).mean(-1), (a * b).mean(-1)], -1))
    return torch.stack(products).double().numpy()


def deep(name: str, keep: float, settings: Settings) -> dict[str, object]:
    """Return length and correlation after many layers, for uncorrelated inputs of length one."""
    panel = (PANELS | CHAOTIC)[name]
    network = mean_field(panel, keep)
    size = settings.networks // settings.batches
    seed = (settings.seed, 1, ord(name), int(100 * keep))
    batches = measure(
        network, settings.width, settings.depth, settings.batches, size, seed, start=(1.0, 0.0)
    )
    pooled = batches.pooled()
    q, _, q_se = pooled.of("q_aa")
    c, _, c_se = pooled.of("c_ab")
    half = settings.depth // 2
    growth = batches.jackknife(
        lambda moments: float(np.log(np.divide(*moments.of("q_aa")[0][[-1, half - 1]])))
    )
    return {
        "panel": name,
        "activation": panel.activation,
        "keep": keep,
        "width": settings.width,
        "depth": settings.depth,
        "status": network.status,
        "q_star": network.q_star,
        "c_star": network.c_star,
        "chi1": network.chi1,
        "chi2": network.chi2,
        "q": q[-1],
        "q_se": q_se[-1],
        "c": c[-1],
        "c_se": c_se[-1],
        "growth": growth.exponent,
        "growth_low": growth.low,
        "growth_high": growth.high,
        "growth_expected": float(
            np.log(np.divide(*network.trajectory(1.0, 0.0, settings.depth).q[[-1, half]]))
        ),
    }


def mean_field(panel: Panel, keep: float) -> MeanField:
    return MeanField(
        panel.activation, weight_var=panel.weight_var, bias_var=panel.bias_var, keep=keep
    )


def _length(network: MeanField) -> float:
    """Return q*, or, if there is none, a length at which biases are negligible."""
    if network.status == "converged":
        return network.q_star
    return 1e6
