"""`orderone sweep`: what it prints, what it keeps, and how it ends."""

import json
import os
import signal
import struct
import sys
import time

import numpy as np
import pytest

from orderone.cli.main import main
from orderone.cli.sweep import read_rates
from orderone.cli.tasks import patch_of
from orderone.sweeping.result import Sweep

MINE = """
import pathlib
import signal
import time
import torch
from torch import nn

def build(width, depth=1):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), *hidden, nn.Linear(width, 2))

def data(step, seed):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * seed + step))
    return x, (x[:, 0] > 0).long()

def slow(step, seed):
    time.sleep(0.02)
    return data(step, seed)

def interrupted(step, seed):
    asked = pathlib.Path("asked")
    if (step, seed) == (3, 1) and not asked.exists():
        asked.touch()
        signal.raise_signal(signal.SIGINT)
    return data(step, seed)

def broken(step, seed):
    if step:
        raise RuntimeError("no more data")
    return data(step, seed)
"""
OWN = (
    "--builder",
    "mine:build",
    "--data",
    "mine:data",
    "--widths",
    "8:16",
    "--steps",
    "5",
    "--device",
    "cpu",
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MINE)


@pytest.fixture
def command(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["sweep", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_sweep_is_shown_kept_and_not_run_again(command, tmp_path):
    call = (*OWN, "--rules", "sp,mup", "--lr", "1e-3:1e-1:3", "--seeds", "2")
    status, shown, _ = command(*call)
    assert status == 3  # three learning rates and five steps say nothing
    assert "24 trials: 24 done; 24 of them now, kept in runs.db" in shown
    assert "not enough data" in shown
    status, shown, _ = command(*call, "--html", "study.html", "--target", "64")
    assert status == 3
    assert "24 trials: 24 done; 0 of them now" in shown
    assert (tmp_path / "study.html").stat().st_size > 1000
    status, shown, _ = command(*call, "--json")
    told = json.loads(shown)
    assert (told["ran"], told["verdict"], len(told["trials"])) == (0, "not enough data", 24)
    assert {row["rule"] for row in told["drifts"]} == {"sp", "mup"}


def test_one_size_has_no_verdict(command):
    call = (
        *OWN[:4],
        "--widths",
        "8",
        "--steps",
        "5",
        "--lr",
        "1e-3,1e-2",
        "--seeds",
        "1",
        "--device",
        "cpu",
    )
    status, shown, _ = command(*call)
    assert status == 0
    assert "2 trials: 2 done" in shown
    status, _, told = command(*call, "--html", "study.html")
    assert (
        status,
        "html: a sweep of one size has no use for --html (give several --widths" in told,
    ) == (2, True)
    status, _, told = command(*call, "--target", "64")
    assert (status, "target: a sweep of one size has no use for --target" in told) == (2, True)


@pytest.mark.parametrize(
    ("task", "model", "width"),
    [
        ("lm", "gpt", "16"),
        ("denoising", "bart", "16"),
        ("digits", "mlp", "8"),
        ("digits", "transformer", "16"),
        pytest.param("lm", "gpt2", "16", marks=pytest.mark.slow),
        pytest.param("digits", "vit", "16", marks=pytest.mark.slow),
    ],
)
def test_tasks_and_models_by_name(command, task, model, width):
    call = (
        "--task",
        task,
        "--model",
        model,
        "--widths",
        width,
        "--lr",
        "1e-3,1e-2",
        "--seeds",
        "1",
        "--steps",
        "2",
    )
    text = ("--length", "16") if task in ("lm", "denoising") else ()
    status, shown, told = command(*call, *text, "--batch", "4", "--device", "cpu")
    assert status == 0, told
    assert "2 trials: 2 done" in shown


TINY = (
    "--widths",
    "16",
    "--lr",
    "1e-3,1e-2",
    "--seeds",
    "1",
    "--steps",
    "2",
    "--batch",
    "4",
    "--device",
    "cpu",
)


@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_images_of_a_folder(command, tmp_path, model):
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for i in range(20):
            image.new("RGB", (12, 10), colour).save(tmp_path / "mine" / name / f"{i}.png")
    status, shown, told = command(
        "--task", "imagefolder", "--root", "mine", "--size", "8", "--model", model, *TINY
    )
    assert status == 0, told
    assert "2 trials: 2 done" in shown


def test_mnist_from_its_files(command, tmp_path):
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    for part in ("train", "t10k"):
        images = np.arange(20 * 28 * 28).astype(np.uint8).tobytes()
        folder = tmp_path / "data" / "mnist"
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, 20, 28, 28) + images
        )
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 2049, 20) + bytes(range(10)) * 2
        )
    status, shown, told = command("--task", "mnist", "--model", "transformer", *TINY)
    assert status == 0, told
    assert "2 trials: 2 done" in shown


def test_a_tokenizer_of_ones_own(command, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    known = ["one", "two", "three", "four", "five", "six"]
    (tmp_path / "text.txt").write_text((" ".join(known) + " seven.\n") * 200)
    words = {word: i for i, word in enumerate(["?", *known])}
    mine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    mine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    mine.save(str(tmp_path / "tokenizer.json"))
    text = ("--source", "text.txt", "--tokenizer", "tokenizer.json", "--length", "8")
    for task in ("lm", "denoising"):
        status, shown, told = command("--task", task, *text, *TINY, "--store", f"{task}.db")
        assert status == 0, told
        assert "2 trials: 2 done" in shown


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (28, 4), (32, 4), (224, 16), (1, 1), (7, 1)])
def test_patches_divide_the_image(side, patch):
    assert patch_of(side) == patch


def test_a_sweep_where_all_fails_is_wrong_input(command):
    status, _, told = command(
        *OWN[:2], "--data", "mine:broken", *OWN[4:], "--lr", "1e-3:1e-1:3", "--seeds", "1"
    )
    assert status == 2
    assert "every trial failed; the first: RuntimeError: no more data" in told


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(command):
    call = (
        "--builder",
        "mine:build",
        "--data",
        "mine:interrupted",
        "--widths",
        "8",
        "--lr",
        "1e-3:1e-1:3",
    )
    call += ("--seeds", "2", "--steps", "20", "--device", "cpu", "--together", "1")
    status, shown, told = command(*call)
    assert status == 130, told
    assert "6 trials: 1 done" in shown
    assert "run the same command again" in told
    _, shown, _ = command(*call)
    assert "6 trials: 6 done; 5 of them now" in shown


@pytest.mark.slow
def test_a_process_of_its_own_can_be_interrupted(command, tmp_path, start):
    call = (
        "--builder",
        "mine:build",
        "--data",
        "mine:slow",
        "--widths",
        "8",
        "--lr",
        "1e-3:1e-1:6",
        "--seeds",
        "1",
    )
    call += ("--steps", "20", "--device", "cpu", "--together", "1")
    words = [sys.executable, "-m", "orderone", "sweep", *call]
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p.endswith("src"))
    environment = os.environ | ({"PYTHONPATH": path} if path else {})
    process = start(words, env=environment)
    deadline, store = time.monotonic() + 60, tmp_path / "runs.db"
    while time.monotonic() < deadline and not store.exists():
        time.sleep(0.05)
    while time.monotonic() < deadline and not len(Sweep.load(store).frame):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    shown, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "done" in shown
    assert "run the same command again" in told
    _, shown, _ = command(*call)
    assert "6 trials: 6 done" in shown
    assert "6 of them now" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lr", "fast"), "lr: expected 1e-4:1e-1:16"),
        (("--lr", "1e-3:1e-1"), "lr: expected 1e-4:1e-1:16"),
        (("--lr", "0,1"), "lr: expected a finite number above 0; got 0.0"),
        (("--lr", "1e-1:1e-3:4"), "log_grid: expected low < high"),
        (("--widths", "65"), "widths: expected multiples of 16"),
        (("--widths", "many"), "widths: expected 64:1024"),
        (("--rules", "sp,mop"), "did you mean 'mup'"),
        (("--task", "chess"), "unknown task: expected one of lm, denoising, digits, mnist"),
        (("--model", "mlp"), "unknown model for lm"),
        (
            ("--task", "digits", "--source", "python"),
            "source: the task digits has no use for --source",
        ),
        (
            ("--task", "cifar10", "--tokenizer", "gpt2"),
            "the task cifar10 has no use for --tokenizer (takes --root, --batch)",
        ),
        (
            ("--task", "digits", "--length", "32"),
            "has no use for --length (takes --batch), got 32; leave it out",
        ),
        (
            ("--builder", "mine:build", "--data", "mine:data", "--batch", "8"),
            "--builder has no use for --batch",
        ),
        (
            ("--builder", "mine:build", "--data", "mine:data", "--task", "lm"),
            "--builder has no use for --task",
        ),
        (
            ("--builder", "mine:build", "--data", "mine:data", "--model", "gpt"),
            "--builder has no use for --model",
        ),
        (("--data", "mine:data"), "data: a sweep without --builder has no use for --data"),
        (("--task", "lm", "--size", "32"), "size: the task lm has no use for --size"),
        (
            ("--builder", "mine:build", "--data", "mine:data", "--source", "python"),
            "--builder has no use for --source",
        ),
        (("--task", "mnist"), "mnist: expected train-images*"),
        (
            ("--task", "fashion-mnist", "--root", "nowhere"),
            "get it with `python -m orderone.data.fetch fashion-mnist`",
        ),
        (("--task", "cifar10", "--root", "nowhere"), "nowhere/cifar10"),
        (("--task", "imagefolder"), "root: imagefolder needs --root"),
        (("--task", "imagefolder", "--root", "nowhere"), "there is no such folder"),
        (("--tokenizer", "gpt2"), "get it with `python -m orderone.data.fetch gpt2`"),
        (("--seeds", "0"), "seeds: expected a whole number"),
        (("--steps", "0"), "steps: expected a whole number"),
        (("--builder", "mine:build"), "data: --builder needs --data"),
        (("--builder", "mine:nothing", "--data", "mine:data"), "builder: mine has no nothing"),
        (("--html", "no/such/folder.html"), "html: cannot write"),
        (("--store", "no/such/runs.db"), "the folder no/such does not exist"),
        (("--executor", "cloud"), "unknown executor"),
        (("--device", "tpu"), "device"),
    ],
)
def test_wrong_input_is_explained(command, arguments, message):
    status, _, told = command(*arguments)
    assert status == 2
    assert message in told


def test_rates_are_read():
    assert list(read_rates("1e-4:1e-1:4")) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    assert list(read_rates("1e-3,3e-3")) == [1e-3, 3e-3]


def test_the_demo_ends_with_a_transfer_study(monkeypatch, capsys, tmp_path):
    """With less work than the demo has time for."""
    from orderone.cli import demo, show

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "SWEEP", {"steps": 4, "rule": ["mup"], "widths": [16, 32, 64]})
    monkeypatch.setattr(demo, "TRIES", 2)
    monkeypatch.setattr(demo, "TEXT", (2, 8))
    demo._transfer(show.console())
    shown = capsys.readouterr().out
    assert "mup: inconclusive (needs" in shown
    assert f"Open {demo.TUNED} in a browser" in shown
    assert (tmp_path / demo.TUNED).stat().st_size > 1e6
