"""Data sets that fit in memory, by name: training and held-out images.

MNIST and Fashion-MNIST are idx files (plain or .gz). CIFAR-10 is its binary version
(`data_batch_1.bin`: a byte for the class, 3 x 32 x 32 bytes for the image) or sheets
(`data_batch_1.png`: every row an image of 32 x 32 coloured pixels, with the classes in
`train_lables.json`). Its Python version is a pickle, which is never loaded.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderone.core.optional import need
from orderone.data.digits import raw_digits
from orderone.data.draws import Draws
from orderone.data.missing import found_in
from orderone.data.vision.arrays import Arrays
from orderone.data.vision.idx import read_idx

EVERY = 10  # one image in so many is held out where a set does not say which
_GRID = 15  # the digits have 17 shades, 0 to 16; 15 times as much are bytes


def embedded_digits(root: Any) -> tuple[Arrays, Arrays]:
    """1,797 images of 8 x 8, from scikit-learn."""
    shades, labels = raw_digits()
    return apart(Arrays((shades * _GRID).to(torch.uint8), labels))


def apart(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Nine tenths, and one tenth to hold out: always the same, drawn at random, since sets are
    often sorted."""
    order = Draws([0], 0).bits("held out", len(arrays))[0].argsort(stable=True)
    held = order[: len(order) // EVERY].sort().values
    kept = order[len(order) // EVERY :].sort().values
    return arrays.part(kept), arrays.part(held)


def mnist(root: Any) -> tuple[Arrays, Arrays]:
    return _idx_set(found_in(root, "mnist", *_IDX))


def fashion_mnist(root: Any) -> tuple[Arrays, Arrays]:
    return _idx_set(found_in(root, "fashion-mnist", *_IDX))


def cifar10(root: Any) -> tuple[Arrays, Arrays]:
    try:
        folder = found_in(root, "cifar10", *(f"{name}.bin" for name in _CIFAR))
        parts = [_binary(folder / f"{name}.bin") for name in _CIFAR]
    except FileNotFoundError:
        folder = found_in(root, "cifar10", *(f"{name}.png" for name in _CIFAR), "*_lables.json")
        parts = _sheets(folder)
    train = Arrays(
        torch.cat([part.images for part in parts[:-1]]),
        torch.cat([part.labels for part in parts[:-1]]),
    )
    return train, parts[-1]


_IDX = ("train-images*", "train-labels*", "t10k-images*", "t10k-labels*")
_CIFAR = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
SETS: dict[str, Callable[[Any], tuple[Arrays, Arrays]]] = {
    "digits": embedded_digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
}


def _idx_set(folder: Path) -> tuple[Arrays, Arrays]:
    images, labels, test_images, test_labels = (
        read_idx(sorted(folder.glob(name))[0]) for name in _IDX
    )
    return Arrays(images.unsqueeze(1), labels.long()), Arrays(
        test_images.unsqueeze(1), test_labels.long()
    )


def _binary(path: Path) -> Arrays:
    rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    if len(rows) % 3073:
        raise ValueError(
            f"{path}: expected rows of 3073 bytes, got {len(rows)} bytes; the file is cut or"
            " damaged"
        )
    rows = rows.view(-1, 3073)
    return Arrays(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long())


def _sheets(folder: Path) -> list[Arrays]:
    images = [_sheet(folder / f"{name}.png") for name in _CIFAR]
    labels = [
        torch.tensor(json.loads((folder / f"{name}_lables.json").read_text()))
        for name in ("train", "test")
    ]
    train = labels[0].split([len(part) for part in images[:-1]])
    return [Arrays(image, label) for image, label in zip(images, (*train, labels[1]), strict=True)]


def _sheet(path: Path) -> Tensor:
    image_module = need("PIL.Image", "data", "to read image files")
    most = image_module.MAX_IMAGE_PIXELS
    image_module.MAX_IMAGE_PIXELS = None  # ten million pixels are meant here
    try:
        with image_module.open(path) as sheet:
            rows = torch.frombuffer(bytearray(sheet.convert("RGB").tobytes()), dtype=torch.uint8)
    finally:
        image_module.MAX_IMAGE_PIXELS = most
    return rows.view(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
