"""`orderone sweep`: its output, its store and its exit codes."""

import json
import os
import signal
import struct
import sys
import time
from inspect import signature
from itertools import pairwise

import numpy as np
import pytest
from support.command_line import assert_refused, orderone

from orderone.cli.main import main
from orderone.cli.settings import read_axes, read_setting, read_values
from orderone.cli.sweep import sweep
from orderone.cli.tasks import patch_of
from orderone.sweeping.result import ClusterLost, Sweep

MINE = """
import os
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
    if "SLOWLY" in os.environ:
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


def test_a_sweep_is_printed_saved_and_not_run_again(command, tmp_path):
    call = (*OWN, "--rules", "sp,mup", "--lr", "1e-3:1e-1:3", "--seeds", "2")
    status, out, _ = command(*call)
    assert status == 3  # three learning rates and five steps are inconclusive
    assert "24 trials" in out
    assert "24 trained now" in out
    assert "runs.db" in out
    status, out, _ = command(*call, "--html", "study.html", "--target", "64")
    assert status == 3
    assert "; 0 trained now" in out
    assert (tmp_path / "study.html").stat().st_size > 1000
    code = [line for line in out.splitlines() if "o1.plan(" in line]
    assert all(len(line) <= 80 for line in out.splitlines() if line not in code)
    status, out, _ = command(*call, "--json")
    record = json.loads(out)
    assert (record["ran"], len(record["trials"])) == (0, 24)
    assert record["verdict"] == "inconclusive"
    assert {row["rule"] for row in record["drifts"]} == {"sp", "mup"}


def test_other_settings_are_compared_and_the_best_is_studied(command):
    call = (*OWN, "--lr", "1e-3:1e-1:3", "--seeds", "2", "--space", "init=keep,fan-in")
    status, out, _ = command(*call, "--space", "beta2=0.9,0.99", "--json")
    record = json.loads(out)
    assert status == 3
    assert len(record["combinations"]) == 4
    losses = [row["loss"] for row in record["combinations"]]
    assert losses == sorted(losses)
    first = record["combinations"][0]
    assert record["where"] == {"init": first["init"], "beta2": first["beta2"]}
    status, out, _ = command(*call, "--space", "beta2=0.9,0.99", "--html", "study.html")
    assert status == 3
    assert "beta2=0.99, init=keep" in out
    status, out, _ = command(*call[: -len(("--space", "init=keep,fan-in"))], "--depths", "1,2")
    assert status == 3
    assert "depth=2" in out


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ((), {"fan-in"}),
        (("--init", "keep"), {"keep"}),
        (("--space", "init=keep,xavier"), {"keep", "xavier"}),
    ],
)
def test_models_of_the_command_line_have_the_recommended_start(command, words, starts):
    small = ("--task", "digits", "--widths", "8", "--lr", "1e-2", "--seeds", "1", "--steps", "2")
    _, out, _ = command(*small, *words, "--json")
    trials = json.loads(out)["trials"]
    assert {row.get("init", "keep") for row in trials} == starts


def test_decoders_with_a_tied_readout_start_with_zero_branches(command):
    small = ("--widths", "16", "--lr", "1e-2", "--seeds", "1", "--steps", "1", "--length", "8")
    _, out, _ = command(*small, "--json")
    assert json.loads(out)["trials"][0]["init"] == "zero-residual"


def test_strategies_between_the_named_rules_can_be_swept(command):
    status, out, _ = command(*OWN, "--rules", "s=1/4", "--lr", "1e-2", "--seeds", "1", "--json")
    assert status == 3
    assert {row["rule"] for row in json.loads(out)["trials"]} == {"s=1/4"}


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
    status, out, _ = command(*call)
    assert status == 0
    assert "2 trained now" in out
    for option, value in (("--html", "study.html"), ("--target", "64")):
        ended = orderone("sweep", *call, option, value)
        assert_refused(ended, "option-without-effect", option, "several --widths")


def test_the_start_is_tuned_at_the_smallest_width(command):
    call = (*OWN, "--tune", "start", "--lr", "1e-2", "--seeds", "2", "--trials", "2", "--no-verify")
    status, out, _ = command(*call, "--json")
    assert status == 0
    record = json.loads(out)
    assert (record["width"], record["points"], record["seeds"]) == (8, 2, 2)
    assert record["low"] <= record["gain"] <= record["high"]
    assert {"init_scale.embedding", "lr.readout"} <= set(record["settings"])
    status, _, error = command(*call, "--target", "64")
    assert status == 2
    assert "option-without-effect" in error


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
    status, out, err = command(*call, *text, "--batch", "4", "--device", "cpu")
    assert status == 0, err
    assert "2 trained now" in out


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
    status, out, err = command(
        "--task", "imagefolder", "--root", "mine", "--size", "8", "--model", model, *TINY
    )
    assert status == 0, err
    assert "2 trained now" in out


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
    status, out, err = command("--task", "mnist", "--model", "transformer", *TINY)
    assert status == 0, err
    assert "2 trained now" in out


def test_a_tokenizer_of_the_user(command, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    known = ["one", "two", "three", "four", "five", "six"]
    (tmp_path / "text.txt").write_text((" ".join(known) + " seven.\n") * 200)
    words = {word: i for i, word in enumerate(["?", *known])}
    mine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    mine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    mine.save(str(tmp_path / "tokenizer.json"))
    text = ("--source", "text.txt", "--tokenizer", "tokenizer.json", "--length", "8")
    for task in ("lm", "denoising"):
        status, out, err = command("--task", task, *text, *TINY, "--store", f"{task}.db")
        assert status == 0, err
        assert "2 trained now" in out


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (28, 4), (32, 4), (224, 16), (1, 1), (7, 1)])
def test_patches_divide_the_image(side, patch):
    assert patch_of(side) == patch


def test_a_sweep_without_a_finished_trial_is_refused():
    call = (*OWN[:2], "--data", "mine:broken", *OWN[4:], "--lr", "1e-3:1e-1:3", "--seeds", "1")
    ended = orderone("sweep", *call)
    assert_refused(ended, "all-trials-failed", "RuntimeError: no more data")


def test_ctrl_c_ends_with_130_and_says_how_to_continue(command):
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
    status, out, err = command(*call)
    assert status == 130, err
    assert "; 1 trained now" in out
    last = err.strip().splitlines()[-1]
    assert last.startswith("orderone: interrupted: 1 of 6 trials finished; ")
    assert "runs.db" in last
    assert last.endswith("run the same command again to continue")
    _, out, _ = command(*call)
    assert "; 5 trained now" in out


@pytest.mark.slow
def test_a_lost_cluster_is_inconclusive_and_prints_what_finished(command, monkeypatch):
    module = sys.modules["orderone.sweeping.sweep"]
    run = module.sweep

    def lost(*arguments, **options):
        raise ClusterLost("the cluster has not answered for 60 s", run(*arguments, **options))

    monkeypatch.setattr(module, "sweep", lost)
    status, out, err = command(*OWN, "--lr", "1e-2", "--seeds", "1")
    assert status == 3
    assert "2 trials" in out
    assert "runs.db" in err


def test_a_process_can_be_interrupted(command, tmp_path, start):
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
    environment = os.environ | ({"PYTHONPATH": path} if path else {}) | {"SLOWLY": "1"}
    process = start(words, env=environment)
    deadline, store = time.monotonic() + 200, tmp_path / "runs.db"
    while time.monotonic() < deadline and not store.exists():
        time.sleep(0.05)
    while time.monotonic() < deadline and not len(Sweep.load(store).frame):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert "trained now" in out
    assert "the same command" in err
    _, out, _ = command(*call)
    assert "6 trials" in out
    assert "6 trained now" not in out


WITHOUT_EFFECT = "option-without-effect"
MODEL = ("--builder", "mine:build", "--data", "mine:data")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--lr", "fast"), None, ("lr: ", "'fast'")),
        (("--lr", "1e-3:1e-1"), None, ("lr: ", "'1e-3:1e-1'")),
        (("--widths", "65"), None, ("widths: ", "multiples of 16", "got 65")),
        (("--widths", "many"), None, ("widths: ", "'many'")),
        (("--task", "chess"), "unknown-name", ("task", "lm, denoising, digits, mnist")),
        (("--model", "mlp"), "unknown-name", ("model for lm", "gpt, gpt2, llama")),
        (("--task", "digits", "--source", "python"), WITHOUT_EFFECT, ("--source", "digits")),
        (
            ("--task", "cifar10", "--tokenizer", "gpt2"),
            WITHOUT_EFFECT,
            ("--tokenizer 'gpt2'", "cifar10", "--root, --batch"),
        ),
        (("--task", "digits", "--length", "32"), WITHOUT_EFFECT, ("--length 32", "--batch")),
        ((*MODEL, "--batch", "8"), "batch-size-fixed", ("batch_size", "(step, seed, batch_size)")),
        ((*MODEL, "--task", "lm"), WITHOUT_EFFECT, ("--task 'lm'", "--builder")),
        ((*MODEL, "--model", "gpt"), WITHOUT_EFFECT, ("--model 'gpt'", "--builder")),
        ((*MODEL, "--source", "python"), WITHOUT_EFFECT, ("--source 'python'", "--builder")),
        (("--data", "mine:data"), WITHOUT_EFFECT, ("--data 'mine:data'", "--builder")),
        (("--task", "lm", "--size", "32"), WITHOUT_EFFECT, ("--size 32", "lm")),
        (("--task", "imagefolder"), "needs-another-option", ("imagefolder", "--root")),
        (("--seeds", "0"), None, ("seeds: ", "got 0")),
        (("--builder", "mine:build"), "needs-another-option", ("--builder", "--data")),
        (("--builder", "mine:none", "--data", "mine:data"), "cannot-import", ("mine has no none",)),
        (("--html", "no/such/folder.html"), "cannot-write-file", ("html: ", "no/such/folder.html")),
    ],
)
def test_wrong_input_is_refused(arguments, code, words):
    assert_refused(orderone("sweep", *arguments), code, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lr", "0,1"), ("lr", "got 0.0")),
        (("--lr", "1e-1:1e-3:4"), ("low < high",)),
        (("--rules", "sp,mop"), ("'mup'?",)),
        (("--task", "mnist"), ("mnist", "train-images")),
        (
            ("--task", "fashion-mnist", "--root", "nowhere"),
            ("`python -m orderone.data.fetch fashion-mnist`",),
        ),
        (("--task", "cifar10", "--root", "nowhere"), ("nowhere/cifar10",)),
        (("--task", "imagefolder", "--root", "nowhere"), ("nowhere",)),
        (("--tokenizer", "gpt2"), ("`python -m orderone.data.fetch gpt2`",)),
        (("--steps", "0"), ("steps: ", "got 0")),
        (("--store", "no/such/runs.db"), ("no/such",)),
        (("--executor", "cloud"), ("executor", "'cloud'")),
        (("--device", "tpu"), ("device", "tpu")),
    ],
)
def test_wrong_input_of_a_sweep_is_refused(arguments, words):
    """These errors come from the library below the command line."""
    ended = orderone("sweep", *arguments)
    assert ended.status == 2
    assert "Traceback" not in ended.err
    assert all(word in ended.err for word in words), ended.err


def test_rates_are_read():
    assert list(read_values("1e-4:1e-1:4", "lr")) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    assert list(read_values("1e-3,3e-3", "lr")) == [1e-3, 3e-3]
    axes = read_axes(("lr.*.q_proj.weight=1e-3,1e-2", "beta2=0.95"))
    assert axes == {"lr.*.q_proj.weight": [1e-3, 1e-2], "beta2": [0.95]}
    for wrong in (("lr.embedding",), ("lr.embedding=a",), ("beta2=1", "beta2=0")):
        with pytest.raises(ValueError, match="expected"):
            read_axes(wrong)


def test_settings_per_role_are_read():
    assert read_setting(None, "lr") is None
    assert read_setting("3e-3", "lr") == 3e-3
    mapping = read_setting("default=3e-3, *.q_proj.weight=1e-3", "lr")
    assert mapping == {"default": 3e-3, "*.q_proj.weight": 1e-3}
    for wrong in ("x", "default=", "=1", "default=1,2", "default=1,default=2"):
        with pytest.raises(ValueError, match="expected"):
            read_setting(wrong, "lr")


def test_a_rate_of_a_role_is_swept():
    words = ("--lr", "1e-2", "--space", "lr.readout=1e-3,1e-2", "--space", "init_scale=0.5")
    ended = orderone("sweep", *OWN, *words, "--seeds", "1", "--json")
    trials = json.loads(ended.out)["trials"]
    assert sorted({trial["lr.readout"] for trial in trials}) == [1e-3, 1e-2]
    assert {trial["init_scale"] for trial in trials} == {0.5}
    assert len({trial["loss"] for trial in trials}) == 4
    assert_refused(orderone("sweep", *OWN, "--space", "lr=1"), None, "--lr")
    assert_refused(orderone("sweep", *OWN, "--space", "lr.x=1"), "unknown-name", "lr", "'x'")


def test_the_demo_ends_with_a_transfer_study(monkeypatch, capsys, tmp_path):
    """Run the demo's sweep with fewer steps and seeds."""
    from orderone.cli import demo, show

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "SWEEP", {"steps": 4, "rule": ["mup"], "widths": [16, 32, 64]})
    monkeypatch.setattr(demo, "TRIES", 2)
    monkeypatch.setattr(demo, "TEXT", (2, 8))
    demo._transfer(show.console())
    out = capsys.readouterr().out
    assert "mup: inconclusive (needs" in out
    assert f"Open {demo.TUNED} in a browser" in out
    assert (tmp_path / demo.TUNED).stat().st_size > 500_000


def test_neighbouring_default_learning_rates_differ_by_at_most_two():
    """The page docs/transfer.md asks for this."""
    default = signature(sweep).parameters["lr"].default
    rates = list(read_values(default, "lr"))
    assert all(later / rate <= 2 for rate, later in pairwise(rates))
