"""`train` equals a plain training loop: same losses in one process or two, resumed or not."""

import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.errors import refuses
from support.train_workers import (
    COMMON,
    PROCESSES,
    STEPS,
    Breaks,
    Net,
    StoppedError,
    Toy,
    broken,
    one,
    planned,
    process,
)
from support.warm import spawn
from torch import Tensor, nn

import orderone as o1
from orderone.training.schedule import schedule
from orderone.training.sinks import JSONLines, TensorBoard, WandB
from orderone.training.train import train
from orderone.training.world import World


def by_hand(plan: o1.Plan, steps: int = STEPS) -> list[float]:
    """The same training in plain PyTorch."""
    model, optimizer, data, factor = (
        plan.apply(),
        plan.optimizer(),
        Toy(),
        schedule("cosine", steps, warmup=3),
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    plan.check(optimizer, scheduler)
    losses = []
    for step in range(steps):
        parts = []
        for part in range(2):
            x, y = data.batch(2 * step + part, 3)
            parts.append(nn.functional.cross_entropy(model(x), y))
            (parts[-1] / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(float(torch.stack(parts).mean().detach()))
    return losses


def test_training_equals_a_plain_loop():
    made = one(None)
    assert made.losses.tolist() == pytest.approx(by_hand(planned()), rel=1e-6)
    assert [step for step, _ in made.evaluation] == [5, 10, 12]
    assert made.loss == made.evaluation[-1][1]
    assert made.diverged_at is None


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon", "adafactor", "lion"])
def test_every_optimizer_learns_and_is_resumed(optimizer, tmp_path):
    path = tmp_path / "run.safetensors"
    whole = train(planned(optimizer=optimizer), Toy(), 8, device="cpu")
    train_until(4, path, optimizer=optimizer)
    again = train(planned(optimizer=optimizer), Toy(), 8, device="cpu", checkpoint=path)
    assert again.losses.tolist() == whole.losses.tolist()


def train_until(step: int, path: Path | None, steps: int = 8, **options: Any) -> str:
    """Interrupt a training with Ctrl-C while a report is written; return the message."""
    import signal

    class Interrupt:
        stop_at = step

        def start(self, step: int) -> None: ...

        def log(self, step: int, values: Any) -> None:
            if step == self.stop_at:
                signal.raise_signal(signal.SIGINT)

        def close(self) -> None: ...

    with pytest.raises(KeyboardInterrupt) as ended:
        train(
            planned(**options),
            Toy(),
            steps,
            device="cpu",
            sinks=Interrupt(),
            report_every=1,
            checkpoint=path,
        )
    return str(ended.value)


def test_an_interruption_says_what_was_saved_and_how_to_continue(tmp_path):
    path = tmp_path / "run.safetensors"
    message = train_until(3, path)
    assert message.startswith("interrupted after 3 of 8 updates")
    assert str(path) in message
    assert message.endswith("run the same call again to continue")
    message = train_until(3, None)
    assert message.startswith("interrupted after 3 of 8 updates; nothing was saved")
    assert "checkpoint=" in message


def test_a_training_with_dropout_is_resumed_bit_for_bit(tmp_path):
    path = tmp_path / "run.safetensors"
    whole = train(planned(dropout=0.3), Toy(), 8, device="cpu")
    train_until(3, path, dropout=0.3)
    again = train(planned(dropout=0.3), Toy(), 8, device="cpu", checkpoint=path)
    assert again.losses.tolist() == whole.losses.tolist()
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True)
    )


def test_a_finished_training_is_not_run_again(tmp_path):
    first = one(None, tmp_path / "run.safetensors")
    again = one(None, tmp_path / "run.safetensors")
    assert again.losses.tolist() == first.losses.tolist()
    assert again.evaluation == first.evaluation
    assert again.seconds == first.seconds


def test_the_random_state_of_the_caller_is_not_changed():
    plan, state = planned(), torch.random.get_rng_state()
    train(plan, Toy(), 2, device="cpu")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_bfloat16_is_close_and_float64_closer():
    single, half, double = (
        train(planned(), Toy(), 6, device="cpu", precision=p).losses
        for p in ("float32", "bfloat16", "float64")
    )
    assert 0 < np.abs(half - single).max() < 0.05
    assert np.abs(double - single).max() < 1e-4


def test_a_training_that_diverges_stops():
    model = Net(8)
    made = train(
        model, Toy(), 200, optimizer=torch.optim.SGD(model.parameters(), lr=1e6), device="cpu"
    )
    assert made.diverged_at is not None
    assert len(made.losses) == made.diverged_at + 1
    assert math.isinf(made.loss)


# --- several processes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    spawn(process, args=(str(folder),), nprocs=PROCESSES)
    return folder, torch.load(folder / "results.pt", weights_only=True)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(strategy, parallel):
    found, alone = parallel[1][strategy], one(None)
    assert not isinstance(found, str), found
    assert found[0] == pytest.approx(alone.losses.tolist(), rel=1e-5)
    assert [value for _, value in found[1]] == pytest.approx(
        [value for _, value in alone.evaluation], rel=1e-5
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_are_interrupted_and_resumed(strategy, parallel):
    found = parallel[1][f"{strategy}, resumed"]
    assert not isinstance(found, str), found
    assert found == pytest.approx(one(None).losses.tolist(), rel=1e-5)


def test_one_process_resumes_a_checkpoint_of_two(parallel):
    folder, results = parallel
    assert results["fsdp, for one"] is None, results["fsdp, for one"]
    assert one(None, folder / "for_one.safetensors").losses.tolist() == pytest.approx(
        one(None).losses.tolist(), rel=1e-5
    )


def test_rows_that_cannot_be_divided_are_named(parallel):
    error = parallel[1]["odd rows"]
    assert "[batch-not-divisible]" in error
    assert "2 processes, got [7] rows" in error


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from support.train_workers import one
made = one("fsdp")
import os
if os.environ["RANK"] == "0":
    print(*made.losses)
"""


@pytest.mark.slow
def test_under_torchrun(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "script.py",
    ]
    env = os.environ | {"PYTHONPATH": str(Path(o1.__file__).parents[1])}
    found = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    assert [float(x) for x in found.stdout.split()] == pytest.approx(
        one(None).losses.tolist(), rel=1e-5
    )


# --- sinks ----------------------------------------------------------------------------------------


def test_json_lines(tmp_path):
    made = train(
        planned(), Toy(), STEPS, device="cpu", sinks=str(tmp_path / "a" / "log.jsonl"), **COMMON
    )
    lines = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 5, 8, 10, 12]
    assert [line["loss"] for line in lines] == [made.losses[line["step"] - 1] for line in lines]
    assert [line["evaluation"] for line in lines if "evaluation" in line] == [
        value for _, value in made.evaluation
    ]
    assert all(line["gradient_norm"] > 0 for line in lines)


def test_json_lines_after_a_checkpoint_are_removed(tmp_path):
    sink = JSONLines(tmp_path / "log.jsonl")
    (tmp_path / "log.jsonl").write_text(
        '{"step": 2, "loss": 1.0}\n{"step": 4, "loss": 0.9}\n{"step": 6, "lo'
    )
    sink.start(2)
    sink.log(4, {"loss": math.nan})
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == [{"step": 2, "loss": 1.0}, {"step": 4, "loss": "nan"}]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = train(planned(), Toy(), 8, device="cpu", sinks=[TensorBoard(tmp_path)], report_every=2)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("loss")] == [2, 4, 6, 8]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(
        made.losses[1::2].tolist(), rel=1e-6
    )


def test_sizes_go_to_the_sinks_and_continue(tmp_path):
    """Sizes are relative to the start, also after a resume."""
    options: dict[str, Any] = {"device": "cpu", "report_every": 4, "sizes_every": 4}
    log = tmp_path / "log.jsonl"
    whole = train(planned(), Toy(), STEPS, sinks=str(log), **options)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["sizes/blocks.0.up"] for line in lines] == [
        size.relative for size in whole.sizes if size.name == "blocks.0.up"
    ]
    path = tmp_path / "run.safetensors"
    with pytest.raises(StoppedError):
        train(
            planned(),
            Toy(),
            STEPS,
            checkpoint=path,
            checkpoint_seconds=0,
            sinks=Breaks(8),
            **options,
        )
    rest = train(planned(), Toy(), STEPS, checkpoint=path, **options)
    assert rest.sizes
    expected = {(size.step, size.name): size.relative for size in whole.sizes}
    for size in rest.sizes:
        assert size.relative == pytest.approx(expected[size.step, size.name], rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(
        planned(),
        Toy(),
        4,
        device="cpu",
        sinks=WandB(project="o", mode="offline", dir=str(tmp_path)),
        report_every=2,
    )
    assert list(tmp_path.rglob("*.wandb"))


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install 'orderone\[wandb\]'"):
        train(planned(), Toy(), 2, device="cpu", sinks=WandB())


def on_meta() -> o1.Plan:
    with torch.device("meta"):
        return o1.plan(Net(32), base=Net(16), lr=0.01)


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code", "argument", "words"),
    [
        ({"model": Net(8)}, "train-needs-optimizer", "optimizer", "o1.plan"),
        ({"model": "gpt"}, "wrong-type", "model", "got str"),
        ({"optimizer": torch.optim.SGD}, "wrong-type", "optimizer", "torch.optim.AdamW"),
        ({"optimizer": Fraction(1, 3)}, "wrong-type", "optimizer", "torch.optim.AdamW"),
        ({"model": on_meta()}, "train-on-meta", "model", "meta"),
        ({"data": None}, "training-data-expected", "data", "nothing"),
        ({"data": lambda step, seed: None}, "batch-expected", "data", "step 0, got NoneType"),
        (
            {"checkpoint": "/dev/null/no/run.safetensors"},
            "invalid-argument",
            "checkpoint",
            "the folder /dev/null/no ",
        ),
        ({"precision": "half"}, "unknown-name", "precision", "float16"),
        ({"schedule": "cos"}, "unknown-name", "schedule", "cosine"),
        ({"warmup": 100}, "invalid-argument", "warmup", "at most steps = 4"),
        ({"sinks": "log.txt"}, "invalid-argument", "sinks", ".jsonl"),
        ({"checkpoint": "run.pt"}, "invalid-argument", "checkpoint", ".safetensors"),
        ({"strategy": "ddp"}, "needs-torchrun", "strategy", "torchrun"),
        ({"strategy": "zero"}, "unknown-name", "strategy", "fsdp"),
    ],
)
def test_wrong_input_is_named(changed, code, argument, words):
    with refuses(code, argument=argument) as caught:
        train(**({"model": planned(), "data": Toy(), "steps": 4, "device": "cpu"} | changed))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"steps": 0}, "steps"),
        ({"accumulate": 0}, "accumulate"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_wrong_numbers_are_named(changed, argument):
    with refuses("invalid-argument", argument=argument):
        train(**({"model": planned(), "data": Toy(), "steps": 4, "device": "cpu"} | changed))


def test_a_checkpoint_of_another_training(tmp_path):
    path = tmp_path / "run.safetensors"
    one(None, path)
    with refuses("checkpoint-of-other-training", argument="checkpoint") as caught:
        one(None, path, steps=13)
    assert "steps 12, but this training has 13" in str(caught.value)
    with refuses("checkpoint-of-other-training", argument="checkpoint") as caught:
        train(planned(width=48), Toy(), STEPS, device="cpu", checkpoint=path, **COMMON)
    assert "first.weight" in str(caught.value)
    path.write_bytes(b"something else")
    with refuses("not-a-checkpoint", argument="checkpoint"):
        one(None, path)


def test_the_folder_of_a_checkpoint_is_created_before_training(tmp_path):
    train(
        planned(), Toy(), 2, device="cpu", checkpoint=tmp_path / "no" / "such" / "run.safetensors"
    )
    assert (tmp_path / "no" / "such" / "run.safetensors").is_file()


def other_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 * nn.functional.cross_entropy(output, target)


class OtherToy(Toy):
    name = "another toy"


@pytest.mark.parametrize(
    ("changed", "before", "now"),
    [
        ({"lr": 0.02}, "lr of first.weight 0.01", "0.02"),
        ({"rule": "sp"}, "rule mup", "sp"),
        ({"optimizer": "lion"}, "optimizer adamw", "lion"),
        ({"weight_decay": 0.5}, "weight_decay of ", ""),
        ({"dropout": 0.1}, "module blocks.0.dropout Dropout(p=0.0", "Dropout(p=0.1"),
        ({"schedule": "cosine"}, "schedule constant (warmup 0, final 0)", "cosine"),
        ({"schedule": lambda step: 0.5}, "schedule constant", ""),
        ({"clip": 1.0}, "clip None", "1.0"),
        ({"data": OtherToy()}, "data toy", "another toy"),
        ({"data": Toy().batch(0, 0)}, "data toy", ""),
        ({"loss": other_loss}, "loss None", "other_loss"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_checkpoint_belongs_to_one_training(changed, before, now, tmp_path):
    path, call = tmp_path / "run.safetensors", {"data": Toy(), "steps": 2, "device": "cpu"}
    train(planned(), checkpoint=path, **call)
    of_train = {
        name: value
        for name, value in changed.items()
        if name in ("schedule", "clip", "data", "loss")
    }
    of_plan = {name: value for name, value in changed.items() if name not in of_train}
    with refuses("checkpoint-of-other-training", argument="checkpoint") as caught:
        train(planned(**of_plan), checkpoint=path, **(call | of_train))
    assert f"was written with {before}" in str(caught.value)
    assert f"this training has {now}" in str(caught.value)


def test_an_optimizer_of_the_user_can_be_used_again(tmp_path):
    model = Net(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = {
        "optimizer": optimizer,
        "schedule": "cosine",
        "device": "cpu",
        "checkpoint": tmp_path / "run.safetensors",
    }
    first = train(model, Toy(), 3, **call)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert train(model, Toy(), 3, **call).losses.tolist() == first.losses.tolist()


def test_a_killed_training_leaves_its_last_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    broken(None, path)
    assert one(None, path).losses.tolist() == one(None).losses.tolist()


# --- folders of checkpoints -----------------------------------------------------------------------


def test_a_folder_of_shards_continues_with_any_number_of_processes(parallel, tmp_path):
    folder, results = parallel
    whole = one(None).losses.tolist()
    assert results["fsdp, folder"] == pytest.approx(whole, rel=1e-4)
    last = folder / "sharded" / f"step-{STEPS}"
    assert len(list(last.glob("shard-*.safetensors"))) == PROCESSES
    for path in last.parent.iterdir():
        if path != last:
            shutil.copytree(path, tmp_path / "run" / path.name)
    assert one(None, tmp_path / "run").losses.tolist() == pytest.approx(whole, rel=1e-4)


def test_writing_in_the_background_does_not_disturb_the_training(parallel):
    """The threads that write have a process group of their own; messages got mixed up before."""
    _, results = parallel
    losses, stay = results["fsdp, saved often"]
    assert losses == pytest.approx(one(None, steps=3 * STEPS).losses.tolist(), rel=1e-4)
    assert len(stay) == 2
    assert f"step-{3 * STEPS}" in stay


def test_a_folder_in_one_process(tmp_path):
    path = tmp_path / "run"
    broken(None, path)
    complete = sorted(folder.name for folder in path.iterdir())
    assert complete == ["step-4", "step-5"]
    (path / "step-8").mkdir()  # as if killed while it was written
    assert one(None, path).losses.tolist() == one(None).losses.tolist()
    assert sorted(folder.name for folder in path.iterdir()) == ["step-12", "step-5"]
    with refuses("checkpoint-of-other-training", argument="checkpoint"):
        one(None, path, steps=20)
    record = path / "step-12" / "record.json"
    record.write_text("{}")
    with refuses("not-a-checkpoint", argument="checkpoint"):
        one(None, path)


def test_a_folder_that_cannot_be_written_ends_no_training(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orderone.training.sharded_checkpoint._write_record", full)
    with pytest.warns(UserWarning, match="checkpoint-not-written"):
        run = one(None, tmp_path / "run")
    assert len(run.losses) == STEPS
    assert not list((tmp_path / "run").iterdir())


def test_a_compiled_training_has_the_same_losses(tmp_path, monkeypatch):
    compiled: list[nn.Module] = []
    torch_compile = torch.compile

    def compile(module):
        compiled.append(module)
        return torch_compile(module, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", compile)

    def losses(**options) -> list[float]:
        return train(planned(), Toy(), 3, **options).losses.tolist()

    found = losses(compile=True)
    assert len(compiled) == 1
    assert found == pytest.approx(losses(), rel=1e-5)
    path = tmp_path / "run.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the check of checkpoints compares with a compiled copy
        assert losses(compile=True, checkpoint=path) == found
    assert path.exists()


def test_rows_of_a_process_are_contiguous():
    """Models flatten labels with `view`, as T5 does."""
    batch = {"labels": torch.arange(24).reshape(4, 6)}
    for rank in range(2):
        shared = cast("dict[str, Tensor]", World("ddp", rank, 2, torch.device("cpu")).share(batch))
        assert shared["labels"].view(-1).tolist() == batch["labels"][rank::2].flatten().tolist()
