"""A folder of images for each class, as in ImageNet, read by several threads one step ahead.

    root/train/<class>/*.jpg and root/val/<class>/*.jpg
    or root/<class>/*.jpg, of which every tenth is held out

For training, a random box of 8 to 100 % of the area is enlarged to size x size. For evaluation, the
shorter side becomes size * 256 / 224 and the middle is cut out. Both are as in section II.1.A of
S2, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from hashlib import sha256
from math import ceil
from os import cpu_count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.core.file_digests import file_digests
from orderone.core.optional import need
from orderone.data.augment.crop import Chances, draw_chances, place_boxes
from orderone.data.draws import Draws
from orderone.data.missing import MissingDataError
from orderone.data.vision.pixels import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)  # of ImageNet, S2 II.1.A
EVERY = 10
Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom
Request: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # indices, keys of the draws
LARGER = 256 / 224  # side before / side after the cut at evaluation


def image_folder(root: Path, size: int, resized: bool) -> tuple[Pixels, Pixels]:
    """Return training and held-out images."""
    train_folder = root / "train"
    held_folders = [root / name for name in ("val", "valid", "test") if (root / name).is_dir()]
    if train_folder.is_dir() and held_folders:
        names = _classes(train_folder)
        train = _paths(train_folder, names)
        held = _paths(held_folders[0], names)
    else:
        names = _classes(root)
        paths = _paths(root, names)
        train = [path for i, path in enumerate(paths) if i % EVERY != EVERY - 1]
        held = paths[EVERY - 1 :: EVERY]
    return Files(train, names, size, resized), Files(held, names, size, False)


class Files:
    """Images by path, with the number of their class."""

    paths: list[tuple[Path, int]]
    names: list[str]
    size: int
    cropped: bool
    shape: torch.Size
    classes: int
    fingerprint: str

    def __init__(
        self, paths: Sequence[tuple[Path, int]], names: Sequence[str], size: int, cropped: bool
    ):
        self.paths = list(paths)
        self.names = list(names)
        self.size = size
        self.cropped = cropped
        self.shape = torch.Size((3, size, size))
        self.classes = len(names)
        self._ahead: tuple[Request, list[Future[Tensor]]] | None = None
        digests = file_digests([path for path, _ in self.paths])
        lines: list[str] = []
        for (path, _), digest in zip(self.paths, digests, strict=True):
            lines.append(f"{path.parent.name}/{path.name} {digest}")
        listing = "\n".join(lines)
        self.fingerprint = f"{sha256(listing.encode()).hexdigest()[:16]} {size}"

    def __getstate__(self) -> dict[str, object]:
        """Drop threads, which cannot be sent to another process."""
        state = dict(self.__dict__)
        state.pop("_threads", None)
        state["_ahead"] = None
        return state

    def __len__(self) -> int:
        return len(self.paths)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of ImageNet's channels."""
        return torch.tensor(MEAN), torch.tensor(STD)

    def take(self, indices: Tensor, draws: Draws, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return bytes (n, channels, height, width) and classes (n,), on the device."""
        ahead = self._ahead
        self._ahead = None
        if ahead is not None and ahead[0] == _request(indices, draws):
            reading = ahead[1]
        else:
            reading = self._start_reading(indices, draws)
        pixels = torch.stack([future.result() for future in reading])
        labels = torch.tensor([self.paths[index][1] for index in indices.tolist()])
        return pixels.to(device), labels.to(device)

    def ahead(self, indices: Tensor, draws: Draws) -> None:
        """Start to read the images that will probably be taken next."""
        self._ahead = (_request(indices, draws), self._start_reading(indices, draws))

    def _start_reading(self, indices: Tensor, draws: Draws) -> list[Future[Tensor]]:
        chances: list[Chances | None] = [None] * len(indices)
        if self.cropped:
            chances = [*draw_chances(draws, len(indices) // len(draws.keys)).each()]
        reading = []
        for index, chance in zip(indices.tolist(), chances, strict=True):
            path, _ = self.paths[index]
            reading.append(self._threads.submit(self._read, path, chance))
        return reading

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
                square = _enlarged(image, box, self.size)
        except (OSError, SyntaxError) as error:  # Pillow raises either for damaged files
            message = f"{path}: expected an image; it cannot be read ({error}); repair or remove it"
            raise InputError(message, "damaged-file", argument="source") from error
        flat = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
        return flat.view(self.size, self.size, 3).permute(2, 0, 1)


def _request(indices: Tensor, draws: Draws) -> Request:
    return tuple(indices.tolist()), tuple(draws.keys)


def _pillow() -> ModuleType:
    return need("PIL.Image", "data", "to read image files")


def _middle(width: int, height: int) -> Box:
    side = min(width, height) / LARGER
    left = (width - side) / 2
    top = (height - side) / 2
    return left, top, left + side, top + side


def _random(width: int, height: int, chances: Chances) -> Box:
    top, left, high, wide = place_boxes(chances, height, width)[0].double().tolist()
    return left, top, left + wide, top + high


def _enlarged(image: "Image", box: Box, size: int) -> "Image":
    """Return the box resized to `size` x `size` pixels.

    A JPEG is decoded at the smallest sufficient resolution, which takes a fraction of the time.
    """
    width, height = image.size
    left, top, right, bottom = box
    scale = size / min(right - left, bottom - top)
    image.draft("RGB", (ceil(width * scale), ceil(height * scale)))
    x = image.size[0] / width
    y = image.size[1] / height
    box = (left * x, top * y, right * x, bottom * y)
    return image.convert("RGB").resize((size, size), _pillow().Resampling.BICUBIC, box=box)


def _classes(folder: Path) -> list[str]:
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            names.append(path.name)
    if not names:
        message = (
            f"source: expected a folder of images for each class in {folder.absolute()}; it has"
            " no folders"
        )
        raise MissingDataError(message, "missing-data", argument="source")
    return names


def _paths(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    paths = []
    for number, name in enumerate(names):
        for path in sorted((folder / name).rglob("*")):
            if path.suffix.lower() in ENDINGS:
                paths.append((path, number))
    if not paths:
        message = (
            f"source: expected images ({', '.join(sorted(ENDINGS))}) in the folders of"
            f" {folder.absolute()}, found none"
        )
        raise MissingDataError(message, "missing-data", argument="source")
    return paths
