"""Run what is left of all studies, in the order of its importance, within a time limit.

    python -m studies.queue --minutes 9 --out FOLDER [--only NAME,...] [--lanes 3]
    python -m studies.queue --collect FOLDER     # copy records from FOLDER into the repository
    python -m studies.queue --list               # what is left, with its cost on one H200

An entry of the queue is a part of one study, run by a process of its own, so that a crash of one
leaves the others alone. Records are written to FOLDER/STUDY after every sweep. Stores and
checkpoints are in `--store` (default: `runs`), where the next command continues. `--lanes` runs
several entries at the same time, which pays for small models: their sweeps leave the GPU idle.

The forecast entries of the ladder train nothing: they write forecast.json from the tuning.
Entries of the ladder after them begin only in a later command, when that file is committed.
`studies/README.md` has all commands in their order.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("records.csv", "records.json", "curves.csv", "forecast.json", "records.tar.gz")
SHORTEST = 1.0  # minutes that are worth starting a process for
GRACE = 45.0  # seconds after the limit before a process that does not stop is ended


@dataclass(frozen=True)
class Entry:
    """A part of a study: the beginnings of the names of its pieces."""

    name: str
    study: str
    pieces: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # of "data" and "images": options of the study

    @property
    def is_forecast(self) -> bool:
        return "--forecast" in self.arguments


def _ladder(name: str, pieces: str, *arguments: str) -> Entry:
    return Entry(f"ladder-{name}", "ladder", pieces, arguments, ("data",))


QUEUE = (
    _ladder("tuning", "tune-full"),
    _ladder("tuning-standard", "tune-standard-2.7M"),
    _ladder("forecast", "", "--forecast"),
    _ladder("largest", "run-full-37.6M"),
    _ladder("full", "run-full-20.7M-seed-0"),
    _ladder("tuning-next", "tune-standard"),
    _ladder("forecast-standard", "", "--forecast"),
    _ladder("compared", "run-"),
    Entry("architectures", "architectures", "t5-mup,gemma3,vit,t5", needs=("images",)),
    Entry("depth", "depth", "adamw"),
    Entry("batch-tokens", "batch_tokens", "timescale", needs=("data",)),
    Entry("optimizers", "optimizers", "adamw,muon,muon-match-rms,lion"),
    Entry("depth-muon", "depth", "muon-base,muon-completep,muon-none"),
    Entry("experts", "experts", ""),
    Entry("rank", "rank", ""),
    _ladder("curves", "curves-"),
    Entry("papers", "papers", ""),
)


def command(entry: Entry, options: argparse.Namespace, minutes: float | None) -> list[str]:
    """Return the command of an entry; without a limit it lists what is left."""
    words = [sys.executable, "-m", f"studies.{entry.study}.run", *entry.arguments]
    if entry.pieces:
        words += ["--only", entry.pieces]
    for need in entry.needs:
        value = getattr(options, need)
        if value is not None:
            words += [f"--{need}", str(value)]
    if options.tiny:
        words.append("--tiny")
    if minutes is None:
        return [*words, "--list"]
    words += ["--minutes", f"{minutes:.2f}", "--records", str(options.out / entry.study)]
    return [*words, "--store", str(options.store / f"{entry.name}.db")]


def prepare(entry: Entry, out: Path) -> None:
    """Copy the records of the repository to where the study will write them."""
    folder = out / entry.study
    if folder.exists():
        return
    folder.mkdir(parents=True)
    for name in FILES:
        source = ROOT / "studies" / entry.study / name
        if source.exists():
            shutil.copy2(source, folder / name)


def run(entries: Sequence[Entry], options: argparse.Namespace) -> int:
    """Run the entries in their order, as many at a time as there are lanes."""
    end = time.monotonic() + 60 * options.minutes
    options.store.mkdir(parents=True, exist_ok=True)
    waiting = list(entries)
    running: dict[Entry, subprocess.Popen[bytes]] = {}
    while waiting or running:
        left = (end - time.monotonic()) / 60
        for entry in ended(running, left):
            if entry.is_forecast:
                waiting = without_uncommitted(waiting, entry, options.out)
        if waiting and left < SHORTEST:
            print("no time for " + ", ".join(entry.name for entry in waiting), flush=True)
            waiting.clear()
        if waiting and may_begin(waiting[0], running, options.lanes):
            entry = waiting.pop(0)
            prepare(entry, options.out)
            print(f"{entry.name}: begins, {left:.1f} minutes left", flush=True)
            running[entry] = subprocess.Popen(command(entry, options, left), cwd=ROOT)
            continue
        time.sleep(0.2)
    drop_unchanged(options.out)
    return 0


def ended(running: dict[Entry, subprocess.Popen[bytes]], left: float) -> list[Entry]:
    """Remove and return the entries whose processes have ended; end those that are too late."""
    done: list[Entry] = []
    for entry, process in list(running.items()):
        if process.poll() is not None:
            status = process.returncode
            print(f"{entry.name}: ended with {status}, {left:.1f} minutes left", flush=True)
            del running[entry]
            done.append(entry)
        elif 60 * left < -GRACE:
            print(f"{entry.name}: did not stop in time; killed", flush=True)
            process.kill()
    return done


def may_begin(entry: Entry, running: Mapping[Entry, object], lanes: int) -> bool:
    """Return whether a lane is free; a forecast runs alone, as it reads what the others wrote."""
    if entry.is_forecast or any(other.is_forecast for other in running):
        return not running
    return len(running) < lanes


def without_uncommitted(waiting: Sequence[Entry], forecast: Entry, out: Path) -> list[Entry]:
    """Return the entries that may follow: none of a study whose forecast is not committed yet."""
    written = out / forecast.study / "forecast.json"
    committed = ROOT / "studies" / forecast.study / "forecast.json"
    is_new = written.exists() and (
        not committed.exists() or committed.read_bytes() != written.read_bytes()
    )
    if not is_new:
        return list(waiting)
    print(f"{forecast.name}: commit forecast.json, then start again", flush=True)
    return [entry for entry in waiting if entry.study != forecast.study]


def drop_unchanged(out: Path) -> None:
    """Remove copies of files of the repository, so that only new records are left."""
    if out.resolve() == ROOT / "studies":
        return
    for path in sorted(out.glob("*/*")):
        source = ROOT / "studies" / path.parent.name / path.name
        if source.exists() and source.read_bytes() == path.read_bytes():
            path.unlink()


def collect(folder: Path, root: Path = ROOT) -> int:
    """Copy records that a queue wrote into the repository; return how many files."""
    number = 0
    for path in sorted(folder.glob("*/*")):
        target = root / "studies" / path.parent.name
        if path.name in FILES and target.is_dir():
            shutil.copyfile(path, target / path.name)
            print(f"{path} -> studies/{path.parent.name}/{path.name}")
            number += 1
    return number


def chosen(only: str) -> list[Entry]:
    """Return the entries of these names, in the order of the queue; all if there are none."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = set(names) - {entry.name for entry in QUEUE}
    if unknown:
        known = ", ".join(entry.name for entry in QUEUE)
        raise SystemExit(f"--only: expected names of {known}; got {', '.join(sorted(unknown))}")
    return [entry for entry in QUEUE if not names or entry.name in names]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="time that is available")
    parser.add_argument("--only", default="", help="names of entries, with commas")
    parser.add_argument("--lanes", type=int, default=1, help="entries that run at the same time")
    parser.add_argument("--out", type=Path, default=ROOT / "studies", help="folder of new records")
    parser.add_argument("--store", type=Path, default=ROOT / "runs", help="folder of the stores")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="folder of data sets")
    parser.add_argument("--images", type=Path, help="images of CIFAR-10, packed; else digits")
    parser.add_argument("--tiny", action="store_true", help="a version of seconds for a CPU")
    parser.add_argument("--list", action="store_true", help="print what is left, with its cost")
    parser.add_argument("--collect", type=Path, help="copy the records of this folder, and stop")
    options = parser.parse_args(arguments)
    if options.collect is not None:
        return 0 if collect(options.collect) else 1
    entries = chosen(options.only)
    if options.list:
        for entry in entries:
            print(f"== {entry.name}", flush=True)
            if not entry.is_forecast:
                subprocess.run(command(entry, options, None), cwd=ROOT, check=False)
        return 0
    return run(entries, options)


if __name__ == "__main__":
    raise SystemExit(main())
