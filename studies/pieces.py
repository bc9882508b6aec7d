"""Run a study in pieces: print the cost first, run what is missing, and write records.

A piece is one call of `orderone.sweep`. Every study has the same command line:

    python -m studies.NAME.run [--minutes M] [--only PIECE,...] [--records FOLDER] [--store FILE]

`--minutes` is the time that is available. A piece starts only if its estimate fits into what is
left of it; a long one that `continues` starts if a part of it fits. A piece that takes longer than
its estimate is stopped in time, and what it has trained so far is in the store. The same command
continues later: pieces whose trainings are all in the records are not run again, and unfinished
ones go on from the store.

Records are files that several processes may write. `records.csv` has one row per training.
`records.json` has for every piece its command, seconds, date, device, versions and notes.
`curves.csv` has the training losses of the pieces that keep them, as means over equal windows.
"""

import argparse
import json
import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy
import pandas
import torch
import transformers
from torch import nn

import orderone as o1
from orderone.sweeping import Interrupted

RESERVE = 1.15  # a piece starts only if this many times its estimate is left
SAVING_SECONDS = 15.0  # time to stop a sweep and to write its records
DROPPED = ("key", "error", "evaluation")  # columns of a sweep that records do not need
LONG = 240.0  # seconds of a piece that may be trained in several commands
LEAST_PART = 150.0  # seconds beside compiling that a part of a long piece is worth starting for
WINDOWS = 160  # of a training, in `curves.csv`


@dataclass(frozen=True)
class Piece:
    """One sweep of a study. `data` makes the task when the piece starts."""

    name: str
    build: Callable[..., nn.Module]
    space: Mapping[str, Sequence[Any]]
    data: Callable[[], Any]
    seconds: float  # estimate for one H200, compilation included
    options: Mapping[str, Any] = field(default_factory=dict)  # other arguments of `sweep`
    labels: Mapping[str, str | int | float] = field(default_factory=dict)  # columns of the records
    continues: bool = False  # longer than one command: stopped and continued from its checkpoint
    keeps_curves: bool = False

    @property
    def least_seconds(self) -> float:
        """Time for which the piece is worth starting."""
        whole = self.seconds * RESERVE
        return min(whole, LEAST_PART + SAVING_SECONDS) if self.continues else whole

    @property
    def trials(self) -> int:
        """Number of trainings."""
        sizes = [self.options[axis] for axis in ("widths", "depths") if axis in self.options]
        return math.prod(len(values) for values in [*self.space.values(), *sizes])


@dataclass(frozen=True)
class Budget:
    """Time that is left until a deadline."""

    deadline: float

    @staticmethod
    def of_minutes(minutes: float) -> "Budget":
        return Budget(time.monotonic() + 60 * minutes)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    @contextmanager
    def stops_in_time(self) -> Iterator[None]:
        """Send SIGTERM to this process shortly before the deadline; a sweep then saves and stops.

        `signal.raise_signal` would reach only this thread's handlers, so the process is signalled.
        """
        if math.isinf(self.deadline):
            yield
            return
        wait = max(0.0, self.left - SAVING_SECONDS)
        timer = threading.Timer(wait, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@dataclass(frozen=True)
class Records:
    """Files of the finished trainings."""

    folder: Path

    @property
    def table(self) -> Path:
        return self.folder / "records.csv"

    @property
    def facts(self) -> Path:
        return self.folder / "records.json"

    @property
    def curves(self) -> Path:
        return self.folder / "curves.csv"

    def read(self) -> pandas.DataFrame:
        """Return all rows; an empty table if there are none."""
        if not self.table.exists():
            return pandas.DataFrame({"piece": []})
        return pandas.read_csv(self.table)

    def rows(self) -> pandas.DataFrame:
        """Return all rows for a report; exit if there are none."""
        frame = self.read()
        if frame.empty:
            raise SystemExit(f"there are no records in {self.folder}")
        return frame

    def has(self, piece: Piece) -> bool:
        """Return whether all trainings of the piece are recorded."""
        return self.read()["piece"].tolist().count(piece.name) == piece.trials

    def add(
        self,
        piece: Piece,
        frame: pandas.DataFrame,
        facts: Mapping[str, Any],
        curves: pandas.DataFrame | None = None,
    ) -> None:
        """Write the rows of a finished piece; the files are replaced as a whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            self._exchange(self.table, piece, frame)
            if curves is not None:
                self._exchange(self.curves, piece, curves)
            known = json.loads(self.facts.read_text()) if self.facts.exists() else {}
            known[piece.name] = facts
            self._replace(self.facts, json.dumps(known, indent=2) + "\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process writes these files."""
        import fcntl

        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _exchange(self, path: Path, piece: Piece, rows: pandas.DataFrame) -> None:
        """Write a table with new rows of the piece; cells of other pieces keep all their digits."""
        parts = [rows]
        if path.exists():
            before = pandas.read_csv(path, dtype=str, keep_default_na=False)
            parts.insert(0, cast(pandas.DataFrame, before[before["piece"] != piece.name]))
        parts = [part for part in parts if len(part)]
        self._replace(path, pandas.concat(parts).to_csv(index=False))

    def _replace(self, path: Path, text: str) -> None:
        half = path.with_suffix(".part")
        half.write_text(text)
        half.replace(path)


def run_pieces(
    pieces: Sequence[Piece], store: str, records: Records, budget: Budget, device: str
) -> bool:
    """Run the pieces that are missing, in this order; return whether all are recorded now."""
    missing = [piece for piece in pieces if not records.has(piece)]
    print_budget(pieces, missing, budget)
    for piece in missing:
        if piece.least_seconds > budget.left:
            print(
                f"{piece.name}: needs about {piece.seconds:.0f} s, {budget.left:.0f} s left; next"
            )
            continue
        try:
            with budget.stops_in_time():
                _run(piece, store, records, device)
        except Interrupted as stopped:
            print(f"{piece.name}: {stopped}")
            return False
        except Exception:  # the other pieces do not depend on this one, and device time is dear
            print(f"{piece.name}: FAILED\n{traceback.format_exc()}", flush=True)
    return all(records.has(piece) for piece in pieces)


def print_budget(pieces: Sequence[Piece], missing: Sequence[Piece], budget: Budget) -> None:
    """Print the estimate of every piece that is missing, and their sum."""
    print(f"{len(pieces) - len(missing)} of {len(pieces)} pieces are recorded; missing:")
    for piece in missing:
        print(f"  {piece.name:32} {piece.trials:4} trainings {piece.seconds:7.0f} s")
    total = sum(piece.seconds for piece in missing)
    line = f"  estimate for one H200: {total / 60:.1f} minutes"
    if math.isfinite(budget.deadline):
        line += f"; available now: {budget.left / 60:.1f} minutes"
    print(line, flush=True)


def _run(piece: Piece, store: str, records: Records, device: str) -> None:
    start = time.perf_counter()
    study = o1.sweep(
        piece.build,
        dict(piece.space),
        data=piece.data(),
        store=store,
        device=device,
        name=piece.name,
        progress=False,
        **piece.options,
    )
    seconds = time.perf_counter() - start
    notes = [str(note) for note in study.notes]
    for note in notes:
        print(f"  note: {note}")
    failed = [error for error in study.frame["error"] if isinstance(error, str)]
    if failed:
        raise RuntimeError(f"{len(failed)} of {piece.trials} trainings failed; first: {failed[0]}")
    frame = study.frame.drop(columns=list(DROPPED), errors="ignore")
    frame = frame.assign(piece=piece.name, **piece.labels)
    facts = {"seconds": round(seconds, 1), **made_with(piece, device), "notes": notes}
    records.add(piece, frame, facts, kept_curves(piece, study) if piece.keeps_curves else None)
    best = cast(pandas.Series, frame["loss"]).min()
    print(f"{piece.name}: {seconds:.0f} s, lowest loss {best:.4f}", flush=True)


def kept_curves(piece: Piece, study: o1.Sweep) -> pandas.DataFrame:
    """Return the training losses of every training as means over equal windows, one row each."""
    rows: list[dict[str, Any]] = []
    losses = dict(iter(study.curves.groupby("key")))
    for row in study.frame.to_dict("records"):
        curve = losses[row["key"]]["loss"].to_numpy(float)
        parts = numpy.array_split(curve, min(WINDOWS, len(curve)))
        means = {f"w{k}": f"{part.mean():.6g}" for k, part in enumerate(parts)}
        rows.append({"piece": piece.name, "lr": row["lr"], "seed": row["seed"], **means})
    return pandas.DataFrame(rows)


def made_with(piece: Piece, device: str) -> dict[str, Any]:
    """Return what is needed to repeat a piece: command, date, device and versions.

    The command leaves out the folders of the machine: records, store and data.
    """
    is_gpu = torch.device(device).type == "cuda"
    return {
        "command": f"python -m {_module_name()} --only {piece.name}",
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if is_gpu else "CPU",
        "versions": {
            "orderone": o1.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def _module_name() -> str:
    """Return the module that was started with `python -m`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else "studies"


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def command_line(about: str, folder: Path) -> argparse.ArgumentParser:
    """Return a parser with the options that all studies share."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="time that is available")
    parser.add_argument(
        "--only", default="", help="pieces to run: beginnings of names, with commas"
    )
    parser.add_argument("--records", type=Path, default=folder, help="folder of the records")
    parser.add_argument("--store", default="", help="file of the sweeps (default: in --records)")
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--tiny", action="store_true", help="a version of seconds for a CPU")
    parser.add_argument("--list", action="store_true", help="print the budget and stop")
    parser.add_argument("--report", action="store_true", help="print the tables of the records")
    return parser


def chosen(pieces: Sequence[Piece], only: str) -> list[Piece]:
    """Return the pieces that begin with a name in `only`, in its order; all if it is empty."""
    if not only:
        return list(pieces)
    selected: dict[str, Piece] = {}
    for beginning in only.split(","):
        matches = [piece for piece in pieces if piece.name.startswith(beginning.strip())]
        if not matches:
            names = ", ".join(piece.name for piece in pieces)
            raise SystemExit(f"--only: no piece begins with {beginning!r}; there are {names}")
        selected |= {piece.name: piece for piece in matches}
    return list(selected.values())


def device_time(records: Records) -> str:
    """Return a sentence with the time that all recorded pieces took together."""
    facts = json.loads(records.facts.read_text())
    minutes = sum(piece["seconds"] for piece in facts.values()) / 60
    return f"\nThe times of all pieces add up to {minutes:.0f} minutes."


def run_command(pieces: Sequence[Piece], options: argparse.Namespace) -> bool:
    """Run the pieces that the command line chose; return whether all of them are recorded."""
    selected = chosen(pieces, options.only)
    records = Records(options.records)
    budget = Budget.of_minutes(options.minutes)
    if options.list:
        missing = [piece for piece in selected if not records.has(piece)]
        print_budget(selected, missing, budget)
        return not missing
    options.records.mkdir(parents=True, exist_ok=True)
    store = options.store or str(options.records / "store.db")
    return run_pieces(selected, store, records, budget, options.device)


def run_study(
    folder: Path,
    about: str | None,
    report: Callable[[Records], None],
    all_pieces: Callable[[bool, str], Sequence[Piece]],
    arguments: list[str] | None,
) -> int:
    """Run a study without options of its own; return the exit status.

    `all_pieces` takes whether the study is tiny, and the device.
    """
    options = command_line(about or "", folder).parse_args(arguments)
    if options.report:
        report(Records(options.records))
        print(device_time(Records(options.records)))
        return 0
    return 0 if run_command(all_pieces(options.tiny, options.device), options) else 1
