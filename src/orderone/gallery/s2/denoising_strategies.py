"""Span denoising with encoder-decoders, standard against neural-tangent: the training runs of
Figures 3, 4 and 5 of S2 ("Effective Theory of Transformers at Initialization").

standard          all tensors have initial deviation 0.02, one learning rate for all, wd = 0.01
neural-tangent    words have initial deviation 1, the output is rescaled by n^{-1/2}, learning rates
                  by group, wd = 0.01 n^{-3/2}

A learning rate lr of standard corresponds to n^{3/2} lr of neural-tangent: both give the matrices
of attention and the MLP the same learning rate. The search is over this common `rate`. The larger
model uses the best rate of the smaller one, unchanged. Dropout (0.1 in the paper) is not used in
short runs, which see every text about once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import pandas as pd

from orderone.data import Denoising, denoising
from orderone.gallery.frames import Frame
from orderone.gallery.s2.strategy_runs import Point, Training, effective, points_of, train
from orderone.gallery.subsets import sentence_subset
from orderone.nn import EncoderDecoder
from orderone.theory import language_constants

COMPARED = ("standard", "neural-tangent")


@dataclass(frozen=True)
class Model:
    width: int
    heads: int
    depth: int
    dropout: float = 0.0


@dataclass(frozen=True)
class Settings:
    data: str  # "python"; "tokens subset"; or a folder of texts
    tokenizer: str
    length: int
    batch: int
    small: Model
    large: Model
    training: Training
    updates: int  # of the larger model; at most those of the smaller one
    rates: tuple[float, ...]  # learning rates of standard
    wd: float = 0.01
    seeds: int = 3
    evaluations: int = 4
    root: str = "data"

    def point(self, strategy: str, rate: float, width: int, seed: int) -> Point:
        factor = effective(strategy, width)
        return Point(strategy, rate / factor, self.wd * factor, seed)


@cache
def task(settings: Settings) -> Denoising:
    s = settings
    if s.data != "tokens subset":
        options = {"evaluations": s.evaluations, "root": s.root}
        return denoising(s.data, s.tokenizer, s.batch, s.length, **options)
    sentences, vocab = sentence_subset(s.length, s.root)
    return Denoising(sentences, vocab, s.batch, s.length, evaluations=s.evaluations)


def scales(strategy: str, width: int) -> Mapping[str, float]:
    """Return initial scales: deviation 0.02, except words of variance 1 in neural-tangent."""
    C = language_constants(width)
    del C["head"]  # tied
    return C if strategy == "standard" else C | {"WE": 1.0}


def model(
    shape: Model, strategy: str, vocab: int, length: int, padding: int | None = None
) -> EncoderDecoder:
    if strategy == "standard":
        rescale = 1.0
    else:
        rescale = shape.width**-0.5
    return EncoderDecoder(
        vocab,
        length + 2,
        shape.width,
        shape.heads,
        shape.depth,
        dropout=shape.dropout,
        padding=padding,
        rescale=rescale,
        C=scales(strategy, shape.width),
    )


def run(
    settings: Settings,
    shape: Model,
    strategy: str,
    rates: Sequence[float],
    until: int | None = None,
) -> pd.DataFrame:
    """Train every rate with every seed in one program; add the columns `rate` and `width`."""
    data = task(settings)
    rate_of: dict[Point, float] = {}
    for rate, seed in product(rates, range(settings.seeds)):
        rate_of[settings.point(strategy, rate, shape.width, seed)] = rate
    curves: Frame = train(
        list(rate_of),
        lambda point: model(shape, point.strategy, data.vocab, settings.length, data.pad),
        lambda point: scales(point.strategy, shape.width),
        data,
        settings.training,
        until=until,
    ).drop(columns="accuracy")
    rates_of_rows = [rate_of[point] for point in points_of(curves)]
    return curves.assign(rate=rates_of_rows, width=shape.width)


@cache
def search(settings: Settings, strategy: str) -> pd.DataFrame:
    """Train the smaller model at all rates."""
    return run(settings, settings.small, strategy, settings.rates)


def best_rate(curves: Frame) -> float:
    """Return the rate of one strategy with the lowest held-out loss, averaged over seeds."""
    lowest = curves.groupby(["rate", "seed"]).loss.min().fillna(float("inf"))
    return float(lowest.groupby("rate").mean().idxmin())  # type: ignore[arg-type]


def at_the_best(settings: Settings, strategy: str) -> pd.DataFrame:
    curves: Frame = search(settings, strategy)
    return curves[curves.rate == best_rate(curves)]


def larger(settings: Settings, strategy: str) -> pd.DataFrame:
    """Return the smaller and the larger model at the same rate, up to the last update of the
    larger."""
    small: Frame = at_the_best(settings, strategy)
    large = run(settings, settings.large, strategy, [float(small.rate.iloc[0])], settings.updates)
    return pd.concat([small[small.step <= settings.updates], large], ignore_index=True)


def _training(steps: int, warmup: int, every: int, device: str) -> Training:
    return Training(steps, warmup, every, "linear", 0.998, 1e-6, clip=0.1, device=device)


SMALL = Settings(
    data="python",
    tokenizer="bytes",
    length=30,
    batch=8,
    small=Model(32, 2, 1),
    large=Model(64, 4, 2),
    training=_training(150, 10, 15, "cpu"),
    updates=150,
    rates=(2e-3, 4e-3, 8e-3, 16e-3, 32e-3),
    seeds=3,
)
GPU = Settings(
    data="tokens subset",
    tokenizer="gpt2",
    length=64,
    batch=32,
    small=Model(256, 4, 2),
    large=Model(512, 8, 4),
    training=_training(1000, 50, 50, "cuda"),
    updates=1000,
    rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3),
)
# BART-large for 200,000 updates and R2C2 for the first 15,000, on text in the folder `data`
PAPER = Settings(
    data="data/pretraining",
    tokenizer="gpt2",
    length=512,
    batch=512,
    small=Model(1024, 16, 12, 0.1),
    large=Model(2048, 32, 22, 0.1),
    training=_training(200_000, 5_000, 1_000, "cuda"),
    updates=15_000,
    rates=(5e-4, 1e-3, 2e-3),
    seeds=1,
    evaluations=100,
)
