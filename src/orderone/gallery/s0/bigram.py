"""Simulation of the bigram model, Eq. (1) of S0, over widths and seeds: the RMS of all tensors at
initialization and in training.

S0 is "Scale-Invariant Parameterizations". Steps have no momentum, as in Eq. (12). Records are tidy:
width, seed, step, tokens, quantity, value. Changes are measured on training tokens, and on held-out
tokens if there are any.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd
import torch
from torch import Tensor

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.measure import fit_exponent
from orderone.nn import Bigram, learning_rates
from orderone.theory.exponents import OPTIMIZERS, Parameterization

WIDTHS = (64, 128, 256, 512, 1024)
COLUMNS = ["width", "seed", "step", "tokens", "quantity", "value"]
Record: TypeAlias = tuple[int, int, int, str, str, float]
TRAINED = "trained"
HELD_OUT = "held out"


@dataclass(frozen=True)
class Setting:
    """Settings of a simulation: `tokens` predict `targets`; training never uses `held_out`."""

    p: Parameterization
    optimizer: str = "sign"
    steps: int = 0
    depth: int = 3
    vocab: int = 10
    norm: bool = False
    tied: bool = False
    activation: str = "linear"
    scale: float = 0.05  # C of S0 (11)
    tokens: tuple[int, ...] = (0,)
    targets: tuple[int, ...] = (1,)
    held_out: tuple[int, ...] = ()


@dataclass
class State:
    """Tensors of one forward and backward pass: h_1.., h'_1.., W_0.., W'_0.., detached."""

    h: list[Tensor]
    dh: list[Tensor]
    W: list[Tensor]
    dW: list[Tensor]


def simulate(setting: Setting, widths: Sequence[int] = WIDTHS, seeds: Count = 8) -> pd.DataFrame:
    """Return the RMS of every quantity and, in training, of its change in a step, with alignment
    ratios.

    `seeds` is the number of networks at the largest width; smaller widths, which are noisier and
    cheaper, have more.
    """
    one_of(setting.optimizer, OPTIMIZERS, "optimizer")
    seeds = count(seeds, "seeds")
    widths = [count(width, "widths") for width in widths]
    _check(setting)
    records: list[Record] = []
    for width in widths:
        networks = round(seeds * (max(widths) / width) ** 0.5)
        for seed in range(networks):
            records += _run(setting, width, seed)
    return pd.DataFrame(records, columns=COLUMNS)


def _check(setting: Setting) -> None:
    if len(setting.tokens) != len(setting.targets):
        message = (
            f"targets: expected one target for each of {len(setting.tokens)} tokens, got"
            f" {len(setting.targets)}"
        )
        raise InputError(message, argument="targets")
    for token in (*setting.tokens, *setting.targets, *setting.held_out):
        if not 0 <= token < setting.vocab:
            message = (
                f"tokens: expected numbers from 0 to {setting.vocab - 1}, got {token}; increase"
                " vocab or change the token"
            )
            raise InputError(message, argument="tokens")


def fits(
    frame: pd.DataFrame, *, tokens: str = TRAINED, confidence: float = 0.99, correction: bool = True
) -> pd.DataFrame:
    """Return the exponent of every quantity at the last step, with its interval.

    Quantities that are identically zero have none.
    """
    last = frame[(frame.step == frame.step.max()) & (frame.tokens == tokens)]
    rows = []
    for quantity, group in last.groupby("quantity", sort=False):
        if (group.value > 0).all():
            fit = fit_exponent(
                group.width, group.value, confidence=confidence, correction=correction
            )
            rows.append((quantity, fit.exponent, fit.low, fit.high))
    return pd.DataFrame(rows, columns=["quantity", "exponent", "low", "high"]).set_index("quantity")


def update(weight: Tensor, gradient: Tensor, rate: float, optimizer: str) -> Tensor:
    """Return the weight after one step without momentum: Eq. (12) of S0, or U V^T for Muon."""
    if optimizer == "sgd":
        step = gradient
    elif optimizer == "muon":
        u, s, vt = torch.linalg.svd(gradient, full_matrices=False)
        step = (u * (s > s[0] * 1e-9)) @ vt  # no step in directions without gradient
    else:
        step = gradient.sign() * (rms(weight) if optimizer == "adafactor" else 1.0)
    return weight - rate * step


def rms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x) / x.numel() ** 0.5


def observe(model: Bigram, tokens: Tensor, targets: Tensor) -> State:
    """Run forward and backward; the loss is a sum over tokens, so h' has one gradient per token."""
    h = model.activations(tokens)
    loss = torch.nn.functional.cross_entropy(h[-1], targets, reduction="sum")
    weights = list(model.weights)
    grads = torch.autograd.grad(loss, [*h, *weights])
    return State(
        [x.detach() for x in h],
        list(grads[: len(h)]),
        [w.detach() for w in weights],
        list(grads[len(h) :]),
    )


def step(model: Bigram, state: State, rates: Sequence[float], optimizer: str) -> None:
    with torch.no_grad():
        for weight, gradient, rate in zip(model.weights, state.dW, rates, strict=True):
            weight.copy_(update(weight, gradient, rate, optimizer))


def network(setting: Setting, width: int, seed: int) -> Bigram:
    """Make a network in double precision, so that rounding cannot move an exponent out of its
    interval."""
    return Bigram(
        setting.p,
        width,
        setting.depth,
        setting.vocab,
        norm=setting.norm,
        tied=setting.tied,
        activation=setting.activation,
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )


def _run(setting: Setting, width: int, seed: int) -> Iterator[Record]:
    """Train one network; yield the RMS of all quantities at each step."""
    model = network(setting, width, seed)
    tokens = torch.tensor(setting.tokens)
    targets = torch.tensor(setting.targets)
    token_sets = {TRAINED: tokens}
    if setting.held_out:
        token_sets[HELD_OUT] = torch.tensor(setting.held_out)
    rates = learning_rates(model, setting.p, width, setting.scale)
    state = observe(model, tokens, targets)
    for name, size in _sizes(state).items():
        yield width, seed, 0, TRAINED, name, size
    for i in range(1, setting.steps + 1):
        with torch.no_grad():
            before = {kind: model.activations(some) for kind, some in token_sets.items()}
            weights = [w.clone() for w in model.matrices()]
        step(model, state, rates, setting.optimizer)
        state = observe(model, tokens, targets)
        for name, size in _sizes(state).items():
            yield width, seed, i, TRAINED, name, size
        with torch.no_grad():
            moved = [now - then for now, then in zip(model.matrices(), weights, strict=True)]
            after = {kind: model.activations(some) for kind, some in token_sets.items()}
        for kind in token_sets:
            changes = _changes(before[kind], after[kind], weights, moved)
            for name, size in changes.items():
                yield width, seed, i, kind, name, size


def _sizes(state: State) -> dict[str, float]:
    """Return the RMS of every tensor; h and h' are counted from 1, W and W' from 0."""
    groups = {"h": (state.h, 1), "h'": (state.dh, 1), "W": (state.W, 0), "W'": (state.dW, 0)}
    sizes = {}
    for symbol, (tensors, first) in groups.items():
        for i, tensor in enumerate(tensors, first):
            sizes[f"{symbol}{i}"] = float(rms(tensor))
    return sizes


def _changes(
    h: list[Tensor], h_now: list[Tensor], weights: list[Tensor], moved: list[Tensor]
) -> dict[str, float]:
    """Return the RMS of ΔW and Δh and, from layer 1 on, the ratios whose exponents are omega, alpha
    and u, Eqs. (15)-(17) of S0."""
    sizes: dict[str, float] = {}
    change = [now - then for now, then in zip(h_now, h, strict=True)]
    for i, x in enumerate(change, 1):
        sizes[f"Δh{i}"] = float(rms(x))
    for i, x in enumerate(moved):
        sizes[f"ΔW{i}"] = float(rms(x))
    for i in range(1, len(weights)):
        W = weights[i]
        dW = moved[i]
        x = h[i - 1]
        dx = change[i - 1]
        for name, (left, right) in {"omega": (W, dx), "alpha": (dW, x), "u": (dW, dx)}.items():
            sizes[f"{name}{i}"] = float(rms(right @ left.T) / (rms(left) * rms(right)))
    return sizes
