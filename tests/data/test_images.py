"""Image classification: file formats, the order of samples, and batches that are reproducible."""

import gzip
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.errors import refuses

from orderone import data
from orderone.data.order import Order, spread
from orderone.data.vision.arrays import moments
from orderone.data.vision.idx import read_idx
from orderone.data.vision.pixels import Memory

ROOT = Path(__file__).parents[2] / "data"


def shades(n, *shape, seed=0):
    return torch.randint(256, (n, *shape), generator=torch.Generator().manual_seed(seed)).to(
        torch.uint8
    )


def arrays(pixels):
    assert isinstance(pixels, Memory)
    return pixels.arrays


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.dim()}I", 0, 0, 8, array.dim(), *array.shape)
    content = header + array.numpy().tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture(scope="module")
def pair():
    return shades(200, 3, 12, 12), torch.arange(200) % 7


class TestFormats:
    @pytest.mark.parametrize(("name", "ending"), [("mnist", ""), ("fashion-mnist", ".gz")])
    def test_idx(self, name, ending, tmp_path):
        folder = tmp_path / name
        folder.mkdir()
        for part, n in (("train", 30), ("t10k", 10)):
            write_idx(folder / f"{part}-images-idx3-ubyte{ending}", shades(n, 28, 28))
            write_idx(
                folder / f"{part}-labels-idx1-ubyte{ending}", (torch.arange(n) % 10).to(torch.uint8)
            )
        task = data.images(name, batch=10, root=tmp_path)
        assert (len(task.train), len(task.held), task.classes, task.shape) == (
            30,
            10,
            10,
            (1, 28, 28),
        )
        assert torch.equal(arrays(task.train).images[:, 0], shades(30, 28, 28))
        assert torch.equal(task.evaluation()[0][1], torch.arange(10))

    def test_cifar10_as_bytes_and_as_sheets_are_the_same(self, tmp_path):
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        for kind in ("bin", "png"):
            (tmp_path / kind / "cifar10").mkdir(parents=True)
        for seed, name in enumerate(names):
            images, labels = shades(4, 3, 32, 32, seed=seed), torch.arange(4, dtype=torch.uint8)
            rows = torch.cat([labels[:, None], images.flatten(1)], 1)
            (tmp_path / "bin" / "cifar10" / f"{name}.bin").write_bytes(rows.numpy().tobytes())
            sheet = images.permute(0, 2, 3, 1).reshape(4, 1024, 3).numpy()
            Image.fromarray(sheet).save(tmp_path / "png" / "cifar10" / f"{name}.png")
        for name, n in (("train", 20), ("test", 4)):
            (tmp_path / "png" / "cifar10" / f"{name}_lables.json").write_text(
                json.dumps([i % 4 for i in range(n)])
            )
        one, two = (
            data.images("cifar10", batch=4, root=tmp_path / kind) for kind in ("bin", "png")
        )
        assert one.name == two.name
        assert torch.equal(arrays(one.train).images[4], shades(4, 3, 32, 32, seed=1)[0])

    def test_folders(self, tmp_path):
        for part, n in (("train", 6), ("val", 2)):
            for kind, shade in (("cat", 40), ("dog", 200)):
                (tmp_path / part / kind).mkdir(parents=True)
                for i in range(n):
                    image = Image.new("RGB", (40 + i, 30), (shade, shade, 10 * i))
                    image.save(tmp_path / part / kind / f"{i}.{'jpg' if i % 2 else 'png'}")
        task = data.images(tmp_path, batch=4, size=16, augment="resize")
        x, y = task.batch(0, 0)
        assert x.shape == (4, 3, 16, 16)
        assert task.classes == 2
        back = x * task.std[:, None, None] + task.mean[:, None, None]
        torch.testing.assert_close(
            back[:, 0].mean((1, 2)), torch.where(y == 0, 40 / 255, 200 / 255), atol=0.02, rtol=0
        )
        again = data.images(tmp_path, batch=4, size=16, augment="resize")
        assert torch.equal(x, again.batch(0, 0)[0])
        assert torch.equal(task.stacked(0, [3, 0])[0][1], x)
        apart = {step: again.batch(step, 1) for step in (2, 0, 1)}  # read when asked for
        for step in range(3):  # read ahead
            assert all(map(torch.equal, task.batch(step, 1), apart[step]))
        assert len(task.evaluation()) == 1

    def test_a_folder_without_parts_holds_out_a_tenth(self, tmp_path):
        for kind in ("a", "b"):
            (tmp_path / kind).mkdir()
            for i in range(10):
                Image.new("L", (20, 20), i).save(tmp_path / kind / f"{i}.png")
        task = data.images(tmp_path, batch=2, size=8)
        assert (len(task.train), len(task.held)) == (18, 2)

    def test_evaluation_cuts_the_middle(self, tmp_path):
        """Compare with Pillow: resize the shorter side to 256 and cut 224, here over eight."""
        (tmp_path / "train" / "a").mkdir(parents=True)
        (tmp_path / "val" / "a").mkdir(parents=True)
        ramp = torch.arange(64).float().expand(48, 64).mul(4).to(torch.uint8)
        for part in ("train", "val"):
            Image.fromarray(ramp.numpy()).convert("RGB").save(tmp_path / part / "a" / "x.png")
        task = data.images(tmp_path, batch=1, size=28)
        found = task.evaluation()[0][0][0] * task.std[:, None, None] + task.mean[:, None, None]
        small = Image.fromarray(ramp.numpy()).resize(
            (round(64 * 32 / 48), 32), Image.Resampling.BICUBIC
        )
        left = (small.size[0] - 28) / 2
        expected = torch.from_numpy(np.array(small)).float()[2:30, int(left) : int(left) + 28]
        assert (found[0] * 255 - expected).abs().mean() < 4  # half a pixel of the ramp

    @pytest.mark.skipif(
        not (ROOT / "cifar10").is_dir(), reason="no data here: python -m orderone.data.fetch"
    )
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "mean", "std"),
        [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530), ("cifar10", 0.4914, 0.2470)],
    )
    def test_real_sets_have_their_published_moments(self, name, mean, std):
        task = data.images(name, root=ROOT)
        assert task.mean[0].item() == pytest.approx(mean, abs=6e-5)
        assert task.std[0].item() == pytest.approx(std, abs=6e-5)


class TestOrder:
    def test_every_epoch_contains_each_sample_once(self):
        order = Order(10, 4)
        shown = torch.cat([order(step, [3])[0] for step in range(5)]).tolist()
        assert sorted(shown[:10]) == sorted(shown[10:]) == list(range(10))
        assert shown[:10] != shown[10:]

    def test_batches_may_be_larger_than_the_set(self):
        assert torch.bincount(Order(5, 10)(0, [0])[0]).tolist() == [2] * 5
        assert sorted(torch.bincount(Order(5, 12)(0, [0])[0]).tolist()) == [2, 2, 2, 3, 3]

    def test_spread_is_even(self):
        assert spread(10, 5).tolist() == [0, 2, 4, 6, 8]
        assert spread(7, 7).tolist() == list(range(7))
        assert spread(3, 0).tolist() == []

    def test_the_order_depends_on_seed_and_step_alone(self):
        one, two = Order(50, 8), Order(50, 8)
        assert torch.equal(one(9, [1, 2, 3]), torch.stack([two(9, [s])[0] for s in (1, 2, 3)]))
        assert not torch.equal(one(9, [1]), one(9, [2]))


RECIPES = [
    {},
    {"augment": "flip"},
    {"augment": "crop"},
    {"augment": "resize"},
    {"label_smoothing": 0.1},
    dict(data.S2),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_batches_depend_on_step_and_seed_alone(recipe, pair):
    task, again = (data.images(pair, batch=16, **recipe) for _ in range(2))
    first = {seed: task.batch(20, seed) for seed in (0, 5)}
    stacked = task.stacked(20, [5, 0])
    for k, seed in enumerate((5, 0)):
        for leaf, other, many in zip(first[seed], again.batch(20, seed), stacked, strict=True):
            assert torch.equal(leaf, other)
            torch.testing.assert_close(
                many[k], leaf, atol=0 if leaf.dtype == torch.int64 else 1e-6, rtol=0
            )
    assert not torch.equal(first[0][0], first[5][0])
    assert isinstance(task, data.StackedTask)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_learns_from_it(recipe):
    """Labels follow their images through augmentation: the shade of an image is its class."""
    labels = torch.arange(120) % 3
    images = (labels * 100 + 25).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 6, 6)
    task = data.images(
        (images, labels),
        batch=30,
        **(recipe | ({"augment": "resize"} if "erase" in recipe else {})),
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    loss = task.loss or torch.nn.functional.cross_entropy
    for step in range(80):
        x, y = task.batch(step, 0)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    (x, y), *_ = task.evaluation()
    assert (model(x).argmax(1) == y).float().mean() > 0.9
    assert y.dtype == torch.int64
    assert (task.loss or loss)(model(x), y).isfinite()


def test_images_are_normalised(pair):
    task = data.images(pair, batch=180)
    x, _ = task.batch(0, 0)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    mean, std = moments(pair[0])
    torch.testing.assert_close(mean, pair[0].float().mean((0, 2, 3)) / 255)
    torch.testing.assert_close(std, pair[0].float().std((0, 2, 3), correction=0) / 255)


def test_soft_labels_sum_to_one(pair):
    _, y = data.images(pair, batch=16, **data.S2).batch(0, 0)
    assert y.shape == (16, 7)
    torch.testing.assert_close(y.sum(-1), torch.ones(16))
    assert y.min() >= 0.1 / 7 - 1e-6


def test_batches_for_hugging_face(pair):
    hard, soft = (
        data.images(pair, batch=4, format="huggingface", mixup=v).batch(0, 0) for v in (0, 0.8)
    )
    assert set(hard) == {"pixel_values", "labels"}
    assert set(soft[0]) == {"pixel_values"}
    assert soft[1].shape == (4, 7)


def test_evaluation_is_whole_batches_or_all(pair):
    sizes = lambda **given: [len(y) for _, y in data.images(pair, **given).evaluation()]  # noqa: E731
    assert sizes(batch=8) == [8, 8]
    assert sizes(batch=8, evaluations=1) == [8]
    assert sizes(batch=8, evaluations=None) == [8, 8, 4]
    assert sizes(batch=64) == [20]
    assert sizes(batch=8, evaluations=0) == []


def test_digits_hold_out_a_tenth_of_every_kind():
    task = data.images()
    counts = torch.bincount(arrays(task.held).labels, minlength=10)
    assert len(task.held) == 179
    assert counts.min() >= 8
    torch.testing.assert_close(
        arrays(task.train).images[:3].float() / 15,
        arrays(task.train).images[:3].float().div(15).round(),
    )


def test_names_tell_tasks_apart(pair):
    tasks = [data.images(pair, batch=4, **recipe) for recipe in RECIPES]
    tasks += [data.images(pair, batch=8), data.images((pair[0], pair[1].flip(0)), batch=4)]
    tasks += [data.images((255 - pair[0], pair[1]), batch=4), data.images(pair, batch=4, erase=0.5)]
    assert len({task.name for task in tasks}) == len(tasks)
    assert data.images(pair, batch=4).name == tasks[0].name


@pytest.mark.parametrize(
    ("arguments", "code", "argument", "word"),
    [
        ({"source": "cifar100"}, "unknown-name", "source", "'cifar10'?"),
        ({"source": 3}, "wrong-type", "source", "'digits'"),
        (
            {"source": (torch.zeros(3, 1, 2, 2), torch.zeros(3).long())},
            "invalid-argument",
            "source",
            "torch.float32 of (3, 1, 2, 2)",
        ),
        (
            {"source": (shades(3, 1, 2, 2), torch.zeros(2).long())},
            "invalid-argument",
            "source",
            "(3, 1, 2, 2) and (2,)",
        ),
        (
            {"source": (shades(3, 1, 2, 2), torch.zeros(3))},
            "invalid-argument",
            "source",
            "labels",
        ),
        ({"augment": "autoaugment"}, "unknown-name", "augment", "'autoaugment'"),
    ],
)
def test_errors_name_the_argument(arguments, code, argument, word):
    with refuses(code, argument=argument) as caught:
        data.images(**arguments)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mixup": -1},
        {"erase": 1.5},
        {"label_smoothing": float("nan")},
        {"batch": 0},
        {"evaluations": -1},
    ],
)
def test_errors_about_numbers_name_the_argument(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"^{name}: "):
        data.images(**arguments)


def test_missing_data_names_the_folder_and_the_command(tmp_path):
    for name in ("mnist", "fashion-mnist", "cifar10"):
        with refuses("missing-data", argument="root") as caught:
            data.images(name, root=tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert f"python -m orderone.data.fetch {name}`" in str(caught.value)
    with refuses("missing-data", argument="source") as caught:
        data.images(tmp_path)
    assert "no folders" in str(caught.value)
    (tmp_path / "a").mkdir()
    with refuses("missing-data", argument="source") as caught:
        data.images(tmp_path)
    assert ".jpeg" in str(caught.value)


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "x-ubyte"
    write_idx(path, shades(3, 4, 4))
    path.write_bytes(path.read_bytes()[:-5])
    with refuses("damaged-file") as caught:
        read_idx(path)
    assert f"{path}: expected (3, 4, 4) bytes" in str(caught.value)
    path.write_bytes(os.urandom(2))
    with refuses("damaged-file") as caught:
        read_idx(path)
    assert f"{path}: expected an idx file" in str(caught.value)
    (tmp_path / "a").mkdir()
    for i in range(12):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(b"not an image")
    with refuses("damaged-file", argument="source") as caught:
        data.images(tmp_path, batch=2).batch(0, 0)
    assert str(tmp_path / "a") in str(caught.value)
