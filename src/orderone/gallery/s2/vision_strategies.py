"""Vision Transformers under the four strategies: the search of S2 Figure 1, and more seeds at its
optima for Figure 2.

The paper looks for a pair (lr, wd) on a grid of factors 2 whose six neighbours are all worse,

    (2, 1), (1, 2), (2, 1/2), (1/2, 2), (1, 1/2), (1/2, 1)   times (lr*, wd*)

Here: a line of learning rates at fixed lr wd first; then the neighbours of the best so far, again
and again, until it is the best of them all or `rounds` are over. All strategies are trained
together. The best is that of the highest accuracy along the way, as in the paper.
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
    train,
)
from orderone.gallery.subsets import image_subset
from orderone.nn import VisionTransformer
from orderone.nn.transformer.vision import vision_scales

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
    rate: float  # where the search starts: the learning rate of the matrices of attention,
    decay: float  # and lr wd
    line: tuple[int, ...]  # octaves of lr around it at fixed lr wd
    rounds: int
    seeds: int = 3
    root: str = "data"

    @property
    def start(self) -> dict[str, tuple[float, float]]:
        """lr and wd of a strategy at the place (0, 0)."""
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
        given = dict(S2)
    else:
        given = {"label_smoothing": S2["label_smoothing"]}
    if settings.data != "cifar10 subset":
        return images(
            settings.data,
            settings.batch,
            **given,
            size=settings.image,
            evaluations=None,
            root=settings.root,
        )
    recipe = Recipe(**given)
    train, held = image_subset("cifar10", settings.root)
    return Images(Memory(train), Memory(held), settings.batch, recipe, evaluations=None)


@cache
def search(settings: Settings) -> pd.DataFrame:
    """Curves of all that was tried, with the octaves `i` of lr and `j` of wd from where the search
    started."""
    line = [(i, -i) for i in settings.line]
    tried: Frame = _tried(settings, dict.fromkeys(STRATEGIES, line))
    for _ in range(settings.rounds):
        missing = {name: _missing(tried[tried.strategy == name]) for name in STRATEGIES}
        if not any(missing.values()):
            break
        tried = pd.concat([tried, _tried(settings, missing)], ignore_index=True)
    return tried


def _missing(tried: Frame) -> list[Place]:
    """Neighbours of the best that were not tried yet."""
    done = set(zip(tried.i, tried.j, strict=True))
    i, j = best_place(tried)
    return [(i + di, j + dj) for di, dj in NEIGHBOURS if (i + di, j + dj) not in done]


def best_place(tried: Frame) -> Place:
    """Of one strategy."""
    best = tried.groupby(["i", "j"]).accuracy.max().fillna(-1.0).idxmax()
    return int(best[0]), int(best[1])  # type: ignore[index]


def _tried(settings: Settings, places: dict[str, list[Place]]) -> pd.DataFrame:
    place_of: dict[Point, Place] = {}
    for name, chosen in places.items():
        for place in chosen:
            place_of[settings.point(name, place, 0)] = place
    curves: Frame = run(settings, list(place_of))
    points = curves[["strategy", "lr", "wd", "seed"]].itertuples(index=False, name=None)
    i, j = zip(*(place_of[Point(*point)] for point in points), strict=True)
    return curves.assign(i=i, j=j)


def run(settings: Settings, points: Sequence[Point]) -> pd.DataFrame:
    """With the epoch, and `rate`: what the learning rate amounts to in the matrices of
    attention."""
    C = vision_scales()
    data = task(settings)
    found: Frame = train(
        points, lambda _: model(settings), lambda _: C, data, settings.training, accuracy
    )
    factors = {name: effective(name, settings.width) for name in STRATEGIES}
    return found.assign(
        epoch=found.step * settings.batch / len(data.train),
        rate=found.lr * found.strategy.map(factors),
    )


def at_the_best(settings: Settings) -> pd.DataFrame:
    """Fresh seeds at the optimum of each strategy: the one that chose it would be too good."""
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
# ViT-B/16, 300 epochs of ImageNet in batches of 4096; 312 steps an epoch, the first 20 of them
# warm-up
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
