"""Experiments of the gallery at the settings of the papers, part by part, within a time limit.

    python -m studies.papers.run [--minutes M] [--only s1-figure6] [--scale paper]
    python -m studies.papers.run --report

PROTOCOL.md has the question. Parts that are measured are not measured again. After every part, all
records are packed into one file, `records.tar.gz`, and `--report` reads that file.
"""

import argparse
import math
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from orderone.gallery import EXPERIMENTS
from orderone.gallery.experiment import Experiment
from orderone.gallery.run import load, reproduce

FOLDER = Path(__file__).parent
NAMES = ("s1-figure6", "s1-figure7", "s2-figure2", "s2-figure4")
ARCHIVE = "records.tar.gz"


class OutOfTimeError(Exception):
    """No time is left for the next part."""


def measure(experiment: Experiment, scale: str, work: Path, out: Path, end: float) -> bool:
    """Measure parts until the end; return whether all are measured."""

    def tell(part: str, number: int, total: int) -> None:
        pack(work, out)  # what the parts before this one measured
        left = end - time.monotonic()
        if left <= 0:
            raise OutOfTimeError
        print(f"{experiment.name}, part {number} of {total}: {part}; {left:.0f} s left", flush=True)

    try:
        reproduce(experiment, scale, work, tell=tell)
    except OutOfTimeError:
        return False
    pack(work, out)
    return True


def pack(work: Path, out: Path) -> None:
    """Write all records into one file."""
    out.mkdir(parents=True, exist_ok=True)
    half = out / f"{ARCHIVE}.part"
    with tarfile.open(half, "w:gz") as archive:
        for path in sorted(work.rglob("*")):
            if path.is_file() and not path.name.endswith(".lock"):
                archive.add(path, str(path.relative_to(work)))
    half.replace(out / ARCHIVE)


def unpack(out: Path, work: Path) -> None:
    """Put the records of the file where they are measured."""
    work.mkdir(parents=True, exist_ok=True)
    if (out / ARCHIVE).exists():
        with tarfile.open(out / ARCHIVE) as archive:
            archive.extractall(work, filter="data")


def report(out: Path, scale: str, say: Callable[[str], object] = print) -> None:
    """Print the verdict of every experiment that has all its parts."""
    if not (out / ARCHIVE).exists():
        raise SystemExit(f"there are no records in {out}")
    with TemporaryDirectory() as folder:
        unpack(out, Path(folder))
        say("| experiment | the paper's claims | corrected claims |")
        say("| --- | --- | --- |")
        for path in sorted(Path(folder).glob(f"*/{scale}")):
            result = load(EXPERIMENTS[path.parent.name], scale, Path(folder))
            say(f"| {path.parent.name} | {result.verdict} | {result.corrected or ''} |")


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="time that is available")
    parser.add_argument("--only", default=",".join(NAMES), help="experiments, with commas")
    parser.add_argument("--records", type=Path, default=FOLDER, help="folder of the records")
    parser.add_argument("--store", type=Path, default=Path("runs/papers"), help="working folder")
    parser.add_argument("--scale", default="paper", choices=("small", "gpu", "paper"))
    parser.add_argument("--tiny", action="store_true", help="the scale small")
    parser.add_argument("--list", action="store_true", help="print the experiments and stop")
    parser.add_argument("--report", action="store_true", help="print the verdicts of the records")
    options = parser.parse_args(arguments)
    scale = "small" if options.tiny else options.scale
    if options.report:
        report(options.records, scale)
        return 0
    names = [name.strip() for name in options.only.split(",")]
    if options.list:
        print("\n".join(names))
        return 1
    end = time.monotonic() + 60 * options.minutes
    unpack(options.records, options.store)
    done = [
        measure(EXPERIMENTS[name], scale, options.store, options.records, end) for name in names
    ]
    return 0 if all(done) else 1


if __name__ == "__main__":
    raise SystemExit(main())
