"""Logging of a training: a file of JSON lines, TensorBoard, Weights & Biases, MLflow."""

import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

from orderone.core.errors import InputError
from orderone.core.optional import need


@runtime_checkable
class Sink(Protocol):
    def start(self, step: int) -> None:
        """Prepare for logging; `step` is above 0 if the training continues from a checkpoint."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JSONLines:
    """File with one JSON line per report.

    A training that continues from a checkpoint removes the lines written after that checkpoint.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path: Path = Path(path)

    def start(self, step: int) -> None:
        earlier: list[str] = []
        if step:
            earlier = [line for line in self._lines() if _step(line) <= step]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file: TextIO = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 - until close
        self.file.writelines(earlier)

    def _lines(self) -> list[str]:
        if self.path.exists():
            return self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        record: dict[str, float | str] = {"step": step}
        for name, value in values.items():
            record[name] = value
            if not math.isfinite(value):
                record[name] = str(value)  # JSON has no nan
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _step(line: str) -> float:
    """Return the step of a line; infinity for an incomplete line of a killed process."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class TensorBoard:
    """Event files in a folder; `options` go to `torch.utils.tensorboard.SummaryWriter`."""

    def __init__(self, folder: str | PathLike[str], **options: Any):
        self.folder = folder
        self.options = options

    def start(self, step: int) -> None:
        need("tensorboard", "tensorboard", "to write event files")
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None
        if step:
            purge_step = step + 1  # later reports will be written again
        self.writer: SummaryWriter = SummaryWriter(
            str(self.folder), purge_step=purge_step, **self.options
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandBRun(Protocol):
    """Methods of `wandb.Run` that `WandB` calls."""

    def log(self, values: dict[str, float], /, *, step: int) -> None: ...

    def finish(self) -> None: ...


class WandB:
    """Run of Weights & Biases; `options` (project, name, mode, ...) go to `wandb.init`."""

    def __init__(self, **options: Any):
        self.options = options

    def start(self, step: int) -> None:
        wandb = need("wandb", "wandb", "to log to Weights & Biases")
        self.run: WandBRun = wandb.init(**self.options)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """Run of MLflow; `options` (run_name, run_id, nested, ...) go to `mlflow.start_run`.

    Pass `run_id` to continue a run. `mlflow.set_tracking_uri` and `mlflow.set_experiment` hold.
    """

    def __init__(self, **options: Any):
        self.options = options

    def start(self, step: int) -> None:
        self.mlflow: Any = need("mlflow", "mlflow", "to log to MLflow")
        self.mlflow.start_run(**self.options)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


def read_sinks(sinks: object) -> list[Sink]:
    """Return a list of sinks; a path that ends in .jsonl becomes a `JSONLines`."""
    if sinks is None:
        return []
    if isinstance(sinks, (list, tuple)):
        return [_sink(sink) for sink in sinks]
    return [_sink(sinks)]


def _sink(sink: object) -> Sink:
    if isinstance(sink, (str, PathLike)) and str(sink).endswith(".jsonl"):
        return JSONLines(sink)
    if isinstance(sink, Sink):
        return sink
    raise InputError(
        "sinks: expected a path that ends in .jsonl, TensorBoard(folder), WandB(...), MLflow(...)"
        f" or an object with the methods start, log and close; got {sink!r}",
        argument="sinks",
    )
