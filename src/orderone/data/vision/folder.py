"""A folder of images for each class, as ImageNet is kept: read by several threads, one step ahead.

    root/train/<class>/*.jpg and root/val/<class>/*.jpg,  or root/<class>/*.jpg, of which every
    tenth is held out

For training, a box of 8 to 100 % of the area is enlarged to size x size; for evaluation, the
shorter side becomes size * 256 / 224 and the middle is cut out (S2 II.1.A).
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from hashlib import sha256
from math import ceil
from os import cpu_count
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from orderone.core.optional import need
from orderone.data.augment.crop import Chances, draw_chances, place_boxes
from orderone.data.draws import Draws
from orderone.data.vision.pixels import Pixels

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)  # of ImageNet, S2 II.1.A
EVERY = 10
Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom
LARGER = 256 / 224  # how much is cut off at evaluation


def image_folder(root: Path, size: int, resized: bool) -> tuple[Pixels, Pixels]:
    """Training and held-out images."""
    train = root / "train"
    val = next((root / name for name in ("val", "valid", "test") if (root / name).is_dir()), None)
    if train.is_dir() and val is not None:
        names = _classes(train)
        return Files(_paths(train, names), names, size, resized), Files(
            _paths(val, names), names, size, False
        )
    names = _classes(root)
    paths = _paths(root, names)
    kept = [x for i, x in enumerate(paths) if i % EVERY != EVERY - 1]
    held = paths[EVERY - 1 :: EVERY]
    return Files(kept, names, size, resized), Files(held, names, size, False)


class Files:
    """Images by path, with the number of their class."""

    def __init__(
        self, paths: Sequence[tuple[Path, int]], names: Sequence[str], size: int, cropped: bool
    ):
        self.paths = list(paths)
        self.names = list(names)
        self.size = size
        self.cropped = cropped
        self.shape = torch.Size((3, size, size))
        self.classes = len(names)
        self._ahead: tuple[Any, list[Future[Tensor]]] | None = None
        listing = "\n".join(
            f"{path.parent.name}/{path.name} {path.stat().st_size}" for path, _ in self.paths
        )
        self.fingerprint = f"{sha256(listing.encode()).hexdigest()[:16]} {size}"

    def __getstate__(self) -> dict[str, Any]:
        """Threads stay behind when a task is sent to another process."""
        return {name: value for name, value in self.__dict__.items() if name != "_threads"} | {
            "_ahead": None
        }

    def __len__(self) -> int:
        return len(self.paths)

    def moments(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(MEAN), torch.tensor(STD)

    def take(self, which: Tensor, draws: Draws, device: torch.device) -> tuple[Tensor, Tensor]:
        key = (tuple(which.tolist()), tuple(draws.keys))
        numbers = which.tolist()
        expected = self._ahead
        self._ahead = None
        if expected is not None and expected[0] == key:
            reading = expected[1]
        else:
            reading = self._reading(numbers, draws)
        pixels = torch.stack([future.result() for future in reading])
        return pixels.to(device), torch.tensor([self.paths[number][1] for number in numbers]).to(
            device
        )

    def ahead(self, which: Tensor, draws: Draws) -> None:
        """Start to read what will probably be taken next."""
        self._ahead = (
            (tuple(which.tolist()), tuple(draws.keys)),
            self._reading(which.tolist(), draws),
        )

    def _reading(self, numbers: Sequence[int], draws: Draws) -> list[Future[Tensor]]:
        chances: list[Chances | None] = [None] * len(numbers)
        if self.cropped:
            chances = [*draw_chances(draws, len(numbers) // len(draws.keys)).each()]
        paths = [self.paths[number][0] for number in numbers]
        return [
            self._threads.submit(self._read, path, chance)
            for path, chance in zip(paths, chances, strict=True)
        ]

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(16, cpu_count() or 1), thread_name_prefix="images")

    def _read(self, path: Path, chances: Chances | None) -> Tensor:
        try:
            with _pillow().open(path) as image:
                width, height = image.size
                if chances is None:
                    box = _middle(width, height)
                else:
                    box = _random(width, height, chances)
                found = _enlarged(image, box, self.size)
        except (OSError, SyntaxError) as error:  # Pillow raises either for files that are damaged
            raise ValueError(
                f"{path}: expected an image, and it cannot be read ({error}); repair or remove it"
            ) from error
        return (
            torch.frombuffer(bytearray(found.tobytes()), dtype=torch.uint8)
            .view(self.size, self.size, 3)
            .permute(2, 0, 1)
        )


def _pillow() -> Any:
    return need("PIL.Image", "data", "to read image files")


def _middle(width: int, height: int) -> Box:
    side = min(width, height) / LARGER
    left = (width - side) / 2
    top = (height - side) / 2
    return left, top, left + side, top + side


def _random(width: int, height: int, chances: Chances) -> Box:
    top, left, high, wide = place_boxes(chances, height, width)[0].double().tolist()
    return left, top, left + wide, top + high


def _enlarged(image: Any, box: Box, size: int) -> Any:
    """A JPEG is decoded no larger than it has to be, which takes a fraction of the time."""
    before = image.size
    scale = size / min(box[2] - box[0], box[3] - box[1])
    image.draft("RGB", tuple(ceil(side * scale) for side in before))
    wide, high = (now / once for now, once in zip(image.size, before, strict=True))
    box = (box[0] * wide, box[1] * high, box[2] * wide, box[3] * high)
    return image.convert("RGB").resize((size, size), _pillow().Resampling.BICUBIC, box=box)


def _classes(folder: Path) -> list[str]:
    names = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if not names:
        raise FileNotFoundError(
            f"source: expected a folder of images for each class in {folder.absolute()}, and it"
            " holds no folders"
        )
    return names


def _paths(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    found = [
        (path, number)
        for number, name in enumerate(names)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    if not found:
        raise FileNotFoundError(
            f"source: expected images ({', '.join(sorted(ENDINGS))}) in the folders of"
            f" {folder.absolute()}, found none"
        )
    return found
