"""Kernels and tangent kernels of Transformers at initialization, over widths, seeds, heads and
depths, for S2 ("Effective Theory of Transformers at Initialization").

    G_tt' = mean_i z_i(t) z_i(t'),     Theta_tt' = sum_G lambda_G  dz_0(t)/dtheta . dz_0(t')/dtheta
                                       over groups G

Two tokens with x.x / n_in = 1 and x.x' / n_in = 1/2, encoders of attention and MLP, GELU, all
constants of order one equal to 1 (C_PE 1/4), learning rates of SGD. Networks have sqrt(n) heads of
sqrt(n) channels.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import isqrt

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from orderone import theory
from orderone.nn import VisionTransformer
from orderone.nn.transformer.attention import Attention
from orderone.nn.transformer.shape import Shape
from orderone.theory import lr_factors

G0: np.ndarray = np.array([[1, 0.5], [0.5, 1]])
C = {"patch": 1.0, "PE": 0.25, **dict.fromkeys("QKVUWX", 1.0), "head": 1.0}
N_IN = 16
N_OUT = 4
MLP = 4
EPS = 1e-5
OPPOSITE = -0.8
STRONG = 3.0  # F_12, C_Q = C_K of erratum S2.5
ENTRIES = {"11": (0, 0), "12": (0, 1)}


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...]  # squares
    seeds: int
    head_widths: tuple[int, ...]
    heads: tuple[int, ...]
    head_seeds: int
    depths: tuple[int, ...]  # encoders in theory
    measured_depths: tuple[int, ...]  # and in networks, of the width
    depth_width: int
    depth_seeds: int


# --- networks -------------------------------------------------------------------------------------


def tokens() -> Tensor:
    """Return two rows of N_IN numbers whose products are exactly G0."""
    return torch.tensor(np.linalg.cholesky(G0) @ np.eye(2, N_IN) * N_IN**0.5, dtype=torch.float32)[
        None
    ]


def network(n: int, encoders: int, seed: int) -> VisionTransformer:
    torch.default_generator.manual_seed(seed)
    return VisionTransformer(
        image=2,
        patch=1,
        classes=N_OUT,
        width=n,
        heads=isqrt(n),
        depth=encoders,
        channels=N_IN,
        eps=EPS,
        C=C,
    )


def streams(model: VisionTransformer) -> tuple[list[Tensor], Tensor]:
    """Return the residual stream after the stem and after each block, and the outputs of both
    tokens."""
    z = model.patchify(tokens()) + model.positions(2)
    residual_streams = [z]
    for block in model.layers:
        z = z + block.attention(block.attention_norm(z))  # type: ignore[operator]
        residual_streams += [z, z := z + block.mlp(block.mlp_norm(z))]  # type: ignore[operator]
    return residual_streams, model.head(model.norm(z))


def group_of(name: str) -> str:
    last = name.removesuffix(".weight").split(".")[-1]
    known = {
        "patchify": "patch",
        "positions": "PE",
        "query": "Q",
        "key": "K",
        "value": "V",
        "out": "U",
        "up": "W",
    }
    return {**known, "down": "X", "head": "head", "bias": "head_bias"}[last]


def tangent(model: VisionTransformer, output: Tensor) -> dict[str, np.ndarray]:
    """Return Theta (2, 2) of the first output, by group."""
    named = dict(model.named_parameters())
    factors = lr_factors(
        "neural-tangent", "sgd", n=model.head.in_features, n_in=N_IN, n_out=N_OUT, mlp=MLP
    )
    rows = [
        torch.autograd.grad(output[0, t, 0], list(named.values()), retain_graph=True)
        for t in range(2)
    ]
    kernels: dict[str, np.ndarray] = {}
    for name, first, second in zip(named, *rows, strict=True):
        group = group_of(name)
        pair = torch.stack((first.flatten(), second.flatten()))
        rate = factors["QKVU" if group in "QKVU" else group]
        kernels[group] = kernels.get(group, 0) + rate * (pair @ pair.T).double().numpy()
    return kernels


def measured(n: int, encoders: int, seed: int) -> dict[tuple[str, str, str], float]:
    """Return the entries 11 and 12 of G in every place, and of Theta of the outputs by group."""
    model = network(n, encoders, seed)
    residual_streams, output = streams(model)
    kernels: list[tuple[str, str, np.ndarray]] = []
    for k, z in enumerate(residual_streams):
        kernels.append(("G", place(k), (z[0] @ z[0].T / n).detach().double().numpy()))
    thetas = tangent(model, output)
    thetas["all"] = sum(thetas.values(), np.zeros((2, 2)))
    for group, theta in thetas.items():
        kernels.append(("Theta", group, theta))
    return _entries(kernels)


def _entries(
    kernels: Iterable[tuple[str, str, np.ndarray]],
) -> dict[tuple[str, str, str], float]:
    """Return the entries 11 and 12 of named kernels."""
    entries = {}
    for what, where, kernel in kernels:
        for entry, ij in ENTRIES.items():
            entries[what, where, entry] = float(kernel[ij])
    return entries


def place(k: int) -> str:
    if k == 0:
        return "stem"
    return f"block {k} ({'MLP' if k % 2 == 0 else 'attention'})"


@cache
def predicted(encoders: int) -> dict[tuple[str, str, str], float]:
    prediction = theory.Transformer("AM" * encoders, "gelu", C=C, eps=EPS).predict(G0)
    kernels: list[tuple[str, str, np.ndarray]] = []
    for k, kernel in enumerate(prediction.kernels):
        kernels.append(("G", place(k), kernel))
    for group, theta in prediction.contributions[-1].items():
        kernels.append(("Theta", group, theta))
    kernels.append(("Theta", "all", prediction.ntk[-1]))
    return _entries(kernels)


# --- measuring ------------------------------------------------------------------------------------


def kernels_of(settings: Settings) -> Iterator[tuple[object, ...]]:
    """Yield width, what, where, entry, theory, mean and error of networks of two encoders."""
    expected = predicted(2)
    for n in settings.widths:
        with torch.random.fork_rng(devices=[]):
            drawn = [measured(n, 2, seed) for seed in range(settings.seeds)]
        for key in drawn[0]:
            values = np.array([each[key] for each in drawn])
            yield (n, *key, expected[key], values.mean(), values.std(ddof=1) / len(values) ** 0.5)


def heads_of(settings: Settings) -> Iterator[tuple[object, ...]]:
    """Yield heads, width, theory, std and error of G_12 after one block of attention whose input
    has exactly the kernel F."""
    F = np.array([[1, OPPOSITE], [OPPOSITE, 1]])
    strong = C | {"Q": STRONG, "K": STRONG}
    expected = theory.Transformer("A", C={"Q": STRONG, "K": STRONG, "PE": 0.0}).predict(F)
    for heads in settings.heads:
        for n in settings.head_widths:
            shape = Shape(n, heads, MLP, "gelu", False, False, EPS, 0.0, strong)
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.default_generator.manual_seed(n + heads)
                s = torch.tensor(
                    np.linalg.cholesky(F) @ np.eye(2, n) * n**0.5, dtype=torch.float32
                )[None]
                drawn = np.array(
                    [float(_product(Attention(shape)(s), n)) for _ in range(settings.head_seeds)]
                )
            std = drawn.std(ddof=1)
            error = np.sqrt(((drawn - drawn.mean()) ** 2).var() / len(drawn)) / (2 * std)
            yield heads, n, float(expected.head_std(heads)[-1][0, 1]), std, error


def _product(branch: Tensor, n: int) -> Tensor:
    return (branch[0, 0] * branch[0, 1]).sum() / n


def depths_of(settings: Settings) -> Iterator[tuple[object, ...]]:
    """Yield encoders, what, theory, mean and error; the last two are nan if nothing is measured."""
    for encoders in settings.depths:
        keys = {"G": ("G", place(2 * encoders), "11"), "Theta": ("Theta", "all", "11")}
        drawn: list[dict] = []
        if encoders in settings.measured_depths:
            with torch.random.fork_rng(devices=[]):
                drawn = [
                    measured(settings.depth_width, encoders, seed)
                    for seed in range(settings.depth_seeds)
                ]
        for what, key in keys.items():
            values = np.array([each[key] for each in drawn])
            if len(values):
                mean_and_error = (values.mean(), values.std(ddof=1) / len(values) ** 0.5)
            else:
                mean_and_error = (np.nan, np.nan)
            yield encoders, what, predicted(encoders)[key], *mean_and_error


def norm_of(settings: Settings) -> pd.DataFrame:
    """Measure E s^2 after a norm with a large epsilon, G = 0.8 (erratum S2.1)."""
    G = 0.8
    eps = 0.5
    n = 4096
    z = G**0.5 * torch.randn(settings.seeds, n, generator=torch.Generator().manual_seed(0))
    squares = torch.nn.functional.layer_norm(z, (n,), eps=eps).square().mean(1).double().numpy()
    row = {"measured": squares.mean(), "error": squares.std(ddof=1) / len(squares) ** 0.5}
    return pd.DataFrame([row | {"inside": G / (G + eps), "outside": G / (G**0.5 + eps) ** 2}])
