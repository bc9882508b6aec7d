"""The same batches on every device and in every process."""

import os
import pickle
import subprocess
import sys

import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves

from orderone import data

TEXT = b"One sentence. Another one! And a third, which is longer than the others." * 100
PAIR = (
    torch.arange(64 * 3 * 16 * 16).view(64, 3, 16, 16).mul(7).to(torch.uint8),
    torch.arange(64) % 5,
)
TASKS = {
    "language": lambda **options: data.language(TEXT, length=16, **options),
    "denoising": lambda **options: data.denoising(TEXT, length=128, **options),
    "plain": lambda **options: data.images(PAIR, batch=32, **options),
    "crop": lambda **options: data.images(PAIR, batch=32, augment="crop", **options),
    "s2": lambda **options: data.images(PAIR, batch=32, **data.S2, **options),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", TASKS)
def test_batches_on_the_gpu_equal_those_on_the_cpu(name):
    on_cpu = TASKS[name]()
    on_gpu = TASKS[name](device="cuda")
    for step in range(3):
        leaves = zip(
            tree_leaves(on_cpu.stacked(step, [0, 7])),
            tree_leaves(on_gpu.stacked(step, [0, 7])),
            strict=True,
        )
        for expected, leaf in leaves:
            assert leaf.is_cuda
            if not expected.is_floating_point():
                assert torch.equal(expected, leaf.cpu())
            else:  # a pixel may be rounded the other way
                assert ((expected - leaf.cpu()).abs() > 0.02).float().mean() < 0.005
    assert on_gpu.evaluation()


@pytest.mark.parametrize("name", TASKS)
def test_tasks_survive_pickling(name):
    task = TASKS[name]()
    first = tree_leaves(task.batch(3, 1))
    again = pickle.loads(pickle.dumps(task))
    assert again.name == task.name
    assert all(map(torch.equal, first, tree_leaves(again.batch(3, 1))))


def test_image_folders_are_pickled_without_their_threads(tmp_path):
    (tmp_path / "a").mkdir()
    for i in range(12):
        Image.new("L", (20, 20), 20 * i).save(tmp_path / "a" / f"{i}.png")
    task = data.images(tmp_path, batch=3, size=8)
    first, _ = task.batch(0, 0)
    assert torch.equal(pickle.loads(pickle.dumps(task)).batch(0, 0)[0], first)


def test_replaced_images_are_other_data(tmp_path):
    (tmp_path / "a").mkdir()
    for i in range(12):
        Image.new("L", (20, 20), 20 * i).save(tmp_path / "a" / f"{i}.bmp")
    first = data.images(tmp_path, batch=3, size=8).name
    assert data.images(tmp_path, batch=3, size=8).name == first
    replaced = tmp_path / "a" / "7.bmp"
    before = replaced.stat()
    Image.new("L", (20, 20), 3).save(replaced)
    os.utime(replaced, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert replaced.stat().st_size == before.st_size
    assert data.images(tmp_path, batch=3, size=8).name != first


def test_optional_packages_are_imported_only_when_used():
    code = """
import sys
sys.modules.update(dict.fromkeys(["PIL", "tokenizers", "safetensors", "sklearn"]))
import torch
from orderone import data
data.text_batch()
data.language(b"text. " * 1000).batch(0, 0)
data.denoising(b"text. " * 1000).batch(0, 0)
black = torch.zeros(64, 1, 8, 8, dtype=torch.uint8)
data.images((black, torch.arange(64) % 2), **data.S2).batch(0, 0)
try:
    data.language(b"text. " * 1000, "gpt2")
except ImportError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (
        result.stdout == "tokenizers is needed for byte pairs; run: pip install 'orderone[data]'\n"
    ), result.stderr
