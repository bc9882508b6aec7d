"""Data sets that fit in memory, by name: training and held-out images.

MNIST and Fashion-MNIST are idx files (plain or .gz). CIFAR-10 is its binary version
(`data_batch_1.bin`: a byte for the class, 3 x 32 x 32 bytes for the image) or sheets
(`data_batch_1.png`: every row an image of 32 x 32 coloured pixels, with the classes in
`train_lables.json`). Its Python version is a pickle, which is never loaded.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.core.optional import need
from orderone.data.digits import raw_digits
from orderone.data.draws import Draws
from orderone.data.inputs import Root
from orderone.data.missing import find_folder
from orderone.data.vision.arrays import Arrays
from orderone.data.vision.idx import read_idx

EVERY = 10  # one image in ten is held out if the data set has no held-out part
_GRID = 15  # the digits have values from 0 to 16; times 15 they are bytes


def embedded_digits(root: Root) -> tuple[Arrays, Arrays]:
    """Return 1,797 images of 8 x 8, from scikit-learn."""
    shades, labels = raw_digits()
    return apart(Arrays((shades * _GRID).to(torch.uint8), labels))


def apart(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Return nine tenths for training and one tenth that is held out.

    The choice is random, because data sets are often sorted, and always the same.
    """
    order = Draws([0], 0).bits("held out", len(arrays))[0].argsort(stable=True)
    held = order[: len(order) // EVERY].sort().values
    training = order[len(order) // EVERY :].sort().values
    return arrays.part(training), arrays.part(held)


def mnist(root: Root) -> tuple[Arrays, Arrays]:
    """Return 60,000 and 10,000 handwritten digits of 28 x 28."""
    return _idx_set(find_folder(root, "mnist", *_IDX))


def fashion_mnist(root: Root) -> tuple[Arrays, Arrays]:
    """Return 60,000 and 10,000 pieces of clothing of 28 x 28."""
    return _idx_set(find_folder(root, "fashion-mnist", *_IDX))


def cifar10(root: Root) -> tuple[Arrays, Arrays]:
    """Return 50,000 and 10,000 coloured images of 32 x 32."""
    binaries = [f"{name}.bin" for name in _CIFAR]
    sheets = [f"{name}.png" for name in _CIFAR]
    try:
        folder = find_folder(root, "cifar10", *binaries)
        parts = [_binary(folder / name) for name in binaries]
    except FileNotFoundError:
        folder = find_folder(root, "cifar10", *sheets, "*_lables.json")
        parts = _sheets(folder)
    *train, test = parts
    images = torch.cat([part.images for part in train])
    labels = torch.cat([part.labels for part in train])
    return Arrays(images, labels), test


_IDX = ("train-images*", "train-labels*", "t10k-images*", "t10k-labels*")
_CIFAR = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)
SETS: dict[str, Callable[[Root], tuple[Arrays, Arrays]]] = {
    "digits": embedded_digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
}


def _idx_set(folder: Path) -> tuple[Arrays, Arrays]:
    files = [sorted(folder.glob(pattern))[0] for pattern in _IDX]
    images, labels, test_images, test_labels = [read_idx(file) for file in files]
    train = Arrays(images.unsqueeze(1), labels.long())
    test = Arrays(test_images.unsqueeze(1), test_labels.long())
    return train, test


def _binary(path: Path) -> Arrays:
    rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    if len(rows) % 3073:
        message = f"{path}: expected rows of 3073 bytes, got {len(rows)} bytes"
        raise InputError(message, "damaged-file")
    rows = rows.view(-1, 3073)
    return Arrays(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long())


def _sheets(folder: Path) -> list[Arrays]:
    images = [_sheet(folder / f"{name}.png") for name in _CIFAR]
    train = torch.tensor(json.loads((folder / "train_lables.json").read_text()))
    test = torch.tensor(json.loads((folder / "test_lables.json").read_text()))
    labels = [*train.split([len(part) for part in images[:-1]]), test]
    return [Arrays(*pair) for pair in zip(images, labels, strict=True)]


def _sheet(path: Path) -> Tensor:
    image_module = need("PIL.Image", "data", "to read image files")
    most = image_module.MAX_IMAGE_PIXELS
    # a sheet has ten million pixels, more than Pillow's default limit
    image_module.MAX_IMAGE_PIXELS = None  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with image_module.open(path) as sheet:
            rows = torch.frombuffer(bytearray(sheet.convert("RGB").tobytes()), dtype=torch.uint8)
    finally:
        image_module.MAX_IMAGE_PIXELS = most  # pyright: ignore[reportAttributeAccessIssue]
    return rows.view(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
