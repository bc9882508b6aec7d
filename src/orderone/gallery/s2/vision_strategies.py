"""Vision Transformers under the four strategies of S2 ("Effective Theory of Transformers at
Initialization"): the search of Figure 1, and more seeds at its optima for Figure 2.

The paper searches for a pair (lr, wd) on a grid of factors 2 whose six neighbours are all worse,

    (2, 1), (1, 2), (2, 1/2), (1/2, 2), (1, 1/2), (1/2, 1)   times (lr*, wd*)

The search here first tries a line of learning rates at fixed lr wd. Then it tries the neighbours of
the best pair so far, until all neighbours are worse or after `rounds` rounds. All strategies are
trained together. As in the paper, the best pair has the highest accuracy at any evaluation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd

from orderone.data import S2, Images, images
from orderone.data.augment.recipe import Recipe
from orderone.data.vision.pixels import Memory
from orderone.gallery.frames import Frame
from orderone.gallery.s2.strategy_runs import (
    STRATEGIES,
    Point,
    Training,
    accuracy,
    effective,
    points_of,
    train,
)
from orderone.gallery.subsets import image_subset
from orderone.nn import VisionTransformer
from orderone.theory import vision_constants

NEIGHBOURS = ((1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0))  # octaves of lr and wd
Place = tuple[int, int]


@dataclass(frozen=True)
class Settings:
    data: str  # "digits"; "cifar10 subset"; or a folder of images
    image: int
    patch: int
    channels: int
    classes: int
    width: int
    heads: int
    depth: int
    batch: int
    training: Training
    recipe: str  # "s2": all of S2 II.1.A; "smooth": label smoothing alone
    rate: float  # start of the search: the learning rate of the attention matrices
    decay: float  # start of the search: lr wd
    line: tuple[int, ...]  # octaves of lr around the start, at fixed lr wd
    rounds: int
    seeds: int = 3
    root: str = "data"

    @property
    def start(self) -> dict[str, tuple[float, float]]:
        """Pairs (lr, wd) of each strategy at the start of the search, place (0, 0)."""
        rates = {name: self.rate / effective(name, self.width) for name in STRATEGIES}
        return {name: (lr, self.decay / lr) for name, lr in rates.items()}

    def point(self, strategy: str, place: Place, seed: int) -> Point:
        lr, wd = self.start[strategy]
        return Point(strategy, lr * 2.0 ** place[0], wd * 2.0 ** place[1], seed)


def model(settings: Settings) -> VisionTransformer:
    s = settings
    return VisionTransformer(
        s.image, s.patch, s.classes, s.width, s.heads, s.depth, channels=s.channels
    )


def task(settings: Settings) -> Images:
    if settings.recipe == "s2":
        options = dict(S2)
    else:
        options = {"label_smoothing": S2["label_smoothing"]}
    if settings.data != "cifar10 subset":
        return images(
            settings.data,
            settings.batch,
            **options,
            size=settings.image,
            evaluations=None,
            root=settings.root,
        )
    recipe = Recipe(**options)
    train, held = image_subset("cifar10", settings.root)
    return Images(Memory(train), Memory(held), settings.batch, recipe, evaluations=None)


@cache
def search(settings: Settings) -> pd.DataFrame:
    """Return the curves of all pairs that were tried, with the octaves `i` of lr and `j` of wd from
    the start of the search."""
    line = [(i, -i) for i in settings.line]
    tried: Frame = _tried(settings, dict.fromkeys(STRATEGIES, line))
    for _ in range(settings.rounds):
        missing = {name: _missing(tried[tried.strategy == name]) for name in STRATEGIES}
        if not any(missing.values()):
            break
        tried = pd.concat([tried, _tried(settings, missing)], ignore_index=True)
    return tried


def search_with_seeds(settings: Settings) -> pd.DataFrame:
    """Return the search, and new seeds at each optimum and its neighbours.

    The seed of the search cannot judge: the search ends when it favours the optimum.
    """
    searched: Frame = search(settings)
    frames = [searched]
    for seed in range(1, settings.seeds + 1):
        places: dict[str, list[Place]] = {}
        for name in STRATEGIES:
            i, j = best_place(searched[searched.strategy == name])
            places[name] = [(i, j), *((i + di, j + dj) for di, dj in NEIGHBOURS)]
        frames.append(_tried(settings, places, seed))
    return pd.concat(frames, ignore_index=True)


def _missing(tried: Frame) -> list[Place]:
    """Return the neighbours of the best pair that were not tried yet."""
    done = set(zip(tried.i, tried.j, strict=True))
    i, j = best_place(tried)
    return [(i + di, j + dj) for di, dj in NEIGHBOURS if (i + di, j + dj) not in done]


def best_place(tried: Frame) -> Place:
    """Return the place of the best pair of one strategy."""
    best = tried.groupby(["i", "j"]).accuracy.max().fillna(-1.0).idxmax()
    return int(best[0]), int(best[1])  # type: ignore[index]


def _tried(settings: Settings, places: dict[str, list[Place]], seed: int = 0) -> pd.DataFrame:
    place_of: dict[Point, Place] = {}
    for name, chosen in places.items():
        for place in chosen:
            place_of[settings.point(name, place, seed)] = place
    curves: Frame = run(settings, list(place_of))
    i, j = zip(*(place_of[point] for point in points_of(curves)), strict=True)
    return curves.assign(i=i, j=j)


def run(settings: Settings, points: Sequence[Point]) -> pd.DataFrame:
    """Train the points; add the epoch and `rate`, the learning rate of the attention matrices."""
    C = vision_constants()
    data = task(settings)
    curves: Frame = train(
        points, lambda _: model(settings), lambda _: C, data, settings.training, accuracy
    )
    factors = {name: effective(name, settings.width) for name in STRATEGIES}
    return curves.assign(
        epoch=curves.step * settings.batch / len(data.train),
        rate=curves.lr * curves.strategy.map(factors),
    )


def at_the_best(settings: Settings) -> pd.DataFrame:
    """Train new seeds at the optimum of each strategy; the seed of the search would be biased."""
    tried: Frame = search(settings)
    points = []
    for name in STRATEGIES:
        place = best_place(tried[tried.strategy == name])
        for seed in range(1, settings.seeds + 1):
            points.append(settings.point(name, place, seed))
    return run(settings, points)


SMALL = Settings(
    data="digits",
    image=8,
    patch=2,
    channels=1,
    classes=10,
    width=24,
    heads=3,
    depth=2,
    batch=12,
    recipe="smooth",
    training=Training(240, 16, 24, "cosine", 0.999, 1e-8, held_together=99),
    rate=2.0**-6,
    decay=2.0**-10,
    line=(-2, -1, 0, 1),
    rounds=2,
    seeds=6,
)
# 12 epochs of 10,000 images, warm-up over 1/15 of them as in the paper
GPU = Settings(
    data="cifar10 subset",
    image=32,
    patch=4,
    channels=3,
    classes=10,
    width=192,
    heads=3,
    depth=6,
    batch=125,
    recipe="s2",
    training=Training(960, 64, 48, "cosine", 0.999, 1e-8, held_together=8, device="cuda"),
    rate=2.0**-9,
    decay=2.0**-10,
    line=(-2, -1, 0, 1, 2),
    rounds=8,
    seeds=6,
)
EPOCHS = 300  # of the paper
# ViT-B/16, 300 epochs of ImageNet in batches of 4096; 312 steps per epoch, warm-up over 20 epochs
PAPER = Settings(
    data="data/imagenet",
    image=224,
    patch=16,
    channels=3,
    classes=1000,
    width=768,
    heads=12,
    depth=12,
    batch=4096,
    recipe="s2",
    training=Training(93_600, 6_240, 312, "cosine", 0.999, 1e-8, device="cuda"),
    rate=1e-3,
    decay=8e-4,
    line=(-1, 0, 1),
    rounds=4,
)
