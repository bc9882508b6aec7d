"""Hugging Face models in stacks: architecture x precision x attention on one device.

    python benchmarks/hf_matrix.py [cuda] [speed] [precision ...] [sdpa] [eager] [family ...]
        [--out FOLDER [--minutes 5] [--jobs 6]] [--report FOLDER]

Every family is swept with the same settings: its members one after another, and in one stack.

    stacked    "yes", or why not
    apart      largest relative difference of a loss between the two, over ten steps and all members
    kernels    the same between stand-alone runs with different kernels: the other attention,
               products by bmm, and these together with convolutions without oneDNN or cuDNN
    unit       the same between stand-alone runs whose parameters start one unit in the last place
               apart: how far any rounding can bring two runs
    repeated   whether a second run has the same bits: stand-alone, stacked

With `speed`, instead the time of a step of all members: one after another, one after another with
passes replayed from a CUDA graph, and stacked (replayed, too). Only steps after the capture are
timed; of single models one is timed, and its time is multiplied by the number of members.

With `--out`, both tables are made within `--minutes`: first the differences, by `--jobs` processes,
then the times, by one process. A finished row is at once in FOLDER/distances.csv or
FOLDER/times.csv, and not made again by the next call with the same folder. Both tables begin with
bfloat16 and fused attention. `--report` prints both tables of a folder as one.
"""

import argparse
import csv
import functools
import io
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import orderone as o1

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import hf_families
from support.hf_sweeps import other_convolutions
from support.other_kernels import products_by_bmm

PRECISIONS = ("bfloat16", "float32", "float16")
ATTENTIONS = ("sdpa", "eager")
STEPS = 10
TIMED = {"eager": (4, 14), "captured": (20, 70)}  # steps at whose begin the clock is read
DIFFERENT_BATCHES = 4  # of a timed training: their making is not timed
CELL = ("family", "precision", "attention")
DISTANCES = ("stacked", "apart", "kernels", "unit", "repeated")
TIMES = ("engine", "ms eager", "ms replayed", "ms stacked", "to eager", "to replayed")
SHARE_OF_DISTANCES = 0.6  # of the minutes; the times have the rest


class Cell(NamedTuple):
    """Row of a table."""

    family: str
    precision: str
    attention: str


class Setting(NamedTuple):
    """Device, and sizes that fit it."""

    device: str
    seeds: int
    width: int
    batch: int
    length: int


SETTINGS = {"cpu": Setting("cpu", 2, 32, 4, 16), "cuda": Setting("cuda", 2, 128, 16, 128)}
SEEDS_IF_TIMED = 8


# --- rows -----------------------------------------------------------------------------------------


def distances(cell: Cell, setting: Setting) -> list[str]:
    """Return how far stacked losses and those of other kernels are from stand-alone losses."""
    device = setting.device

    def trained(stacked: bool, attention: str = cell.attention, **options: Any) -> o1.Sweep:
        captured = stacked and device == "cuda"
        changed = cell._replace(attention=attention)
        return sweep(changed, setting, stacked=stacked, graphs=captured, **options)

    alone = trained(False)
    stacked = trained(True)
    refused = refusal(stacked)
    if refused is not None:
        return [refused[:200]]
    others = [trained(False, attention=other) for other in hf_families.attentions(cell.family)]
    with products_by_bmm():
        others.append(trained(False))
        with other_convolutions(device):
            others.append(trained(False))
    repeated = [same(alone, trained(False)), same(stacked, trained(True))]
    return [
        "yes",
        f"{distance(stacked, alone):.1e}",
        f"{max(distance(other, alone) for other in others):.1e}",
        f"{distance(trained(False, nudged=True), alone):.1e}",
        ", ".join("yes" if equal else "no" for equal in repeated),
    ]


def times(cell: Cell, setting: Setting) -> list[str]:
    """Return milliseconds of a step of all members in three ways, and the speed-ups."""
    setting = setting._replace(seeds=SEEDS_IF_TIMED)
    one = setting._replace(seeds=1)
    captured = setting.device == "cuda"
    members = 2 * setting.seeds
    eager, _ = timed_sweep(cell, one, rates=1, stacked=False, graphs=False)
    replayed = float("nan")
    if captured:
        replayed, facts = timed_sweep(cell, one, rates=1, stacked=False, graphs=True)
        if not facts["graph"]:
            replayed = float("nan")
    stacked, facts = timed_sweep(cell, setting, rates=2, stacked=True, graphs=captured)
    engine = str(facts["engine"])
    if facts["graph"]:
        engine += ", captured"
    all_times = [members * eager, members * replayed, stacked]
    speed_ups = [t / stacked for t in all_times[:2]]
    return [engine, *(f"{1e3 * t:.2f}" for t in all_times), *(f"{x:.1f}" for x in speed_ups)]


def timed_sweep(
    cell: Cell, setting: Setting, *, stacked: bool, graphs: bool, rates: int
) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a step, and the facts of the first trial."""
    begin, end = TIMED["captured" if stacked or graphs else "eager"]
    clock: dict[int, float] = {}

    def read_clock(step: int) -> None:
        if step in (begin, end):
            if setting.device == "cuda":
                torch.cuda.synchronize()
            clock[step] = time.perf_counter()

    options: dict[str, Any] = {"steps": end + 1, "rates": rates, "at_step": read_clock}
    swept = sweep(cell, setting, stacked=stacked, graphs=graphs, **options)
    facts = next(iter(swept.outcomes.values())).facts
    return (clock[end] - clock[begin]) / (end - begin), dict(facts)


def sweep(
    cell: Cell,
    setting: Setting,
    *,
    stacked: bool,
    graphs: bool,
    steps: int = STEPS,
    rates: int = 2,
    nudged: bool = False,
    at_step: Callable[[int], None] | None = None,
) -> o1.Sweep:
    """Train all members of a cell; raise if one of them failed."""

    def build(width: int) -> nn.Module:
        sizes = hf_families.longer(cell.family, setting.length)
        options = {"attn_implementation": cell.attention}
        model = hf_families.build(cell.family, width, **options, **sizes)
        if nudged:
            nudge(model)
        return model

    make = hf_families.batch_of(cell.family)
    cached = functools.cache(make)

    def data(step: int, seed: int) -> dict[str, Tensor]:
        if at_step is None:
            return make(step, seed, setting.batch, setting.length)
        if seed == 0:
            at_step(step)
        return cached(step % DIFFERENT_BATCHES, seed, setting.batch, setting.length)

    swept = o1.sweep(
        build,
        space={"lr": [1e-3, 2e-3][:rates], "seed": range(setting.seeds)},
        widths=[setting.width],
        data=data,
        steps=steps,
        precision=cell.precision,
        device=setting.device,
        stacked="auto" if stacked else False,
        graphs=graphs,
        progress=False,
    )
    for outcome in swept.outcomes.values():
        if outcome.error is not None:
            raise RuntimeError(outcome.error)
    return swept


@torch.no_grad()
def nudge(model: nn.Module) -> None:
    """Change every parameter by one unit in the last place, up or down."""
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        sign = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
        p.mul_(1 + sign.to(p.device) * torch.finfo(p.dtype).eps)


def refusal(sweep: o1.Sweep) -> str | None:
    """Return why members were trained one after another; None if all were stacked.

    A stack may have notes, too, for example on compilation.
    """
    for outcome in sweep.outcomes.values():
        if "not stacked" in outcome.facts:
            return str(outcome.facts["not stacked"])
    return None


def losses(sweep: o1.Sweep) -> np.ndarray:
    return np.array([outcome.losses[:STEPS] for outcome in sweep.outcomes.values()], float)


def distance(one: o1.Sweep, other: o1.Sweep) -> float:
    return float(np.abs(losses(one) / losses(other) - 1).max())


def same(one: o1.Sweep, other: o1.Sweep) -> bool:
    return np.array_equal(losses(one), losses(other))


# --- tables ---------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Function that makes a row, and the names of its columns."""

    name: str
    make: Callable[[Cell, Setting], list[str]]
    columns: tuple[str, ...]


TABLES = (Table("distances", distances, DISTANCES), Table("times", times, TIMES))


def selected(words: Sequence[str]) -> list[Cell]:
    """Return the cells that the words ask for; what everybody uses comes first."""
    families = [name for name in hf_families.FAMILIES if name in words]
    precisions = [name for name in PRECISIONS if name in words]
    attentions = [name for name in ATTENTIONS if name in words] or list(ATTENTIONS)
    cells: list[Cell] = []
    for family in families or hf_families.FAMILIES:
        for attention in hf_families.attentions(family):
            if attention in attentions:
                cells += [Cell(family, p, attention) for p in precisions or PRECISIONS[:2]]

    def rank(cell: Cell) -> tuple[bool, int]:
        first = hf_families.attentions(cell.family)[0]
        return cell.attention != first, PRECISIONS.index(cell.precision)

    return sorted(cells, key=rank)


def make_rows(table: Table, cells: Iterable[Cell], setting: Setting) -> Iterable[list[str]]:
    """Yield rows; an error becomes the text of its row."""
    for cell in cells:
        try:
            values = table.make(cell, setting)
        except Exception as error:
            values = [f"{type(error).__name__}: {str(error)[:200]}"]
        yield [*cell, *values]


def print_table(table: Table, cells: Iterable[Cell], setting: Setting) -> None:
    where = torch.cuda.get_device_name() if setting.device == "cuda" else "CPU, one thread"
    members = 2 * (SEEDS_IF_TIMED if table.name == "times" else setting.seeds)
    print(
        f"{members} members, width {setting.width}, {setting.batch} x {setting.length} tokens,"
        f" {where}, torch {torch.__version__}\n"
    )
    header = [*CELL, *table.columns]
    print(f"| {' | '.join(header)} |")
    print("| --- " * len(header) + "|", flush=True)
    for row in make_rows(table, cells, setting):
        print(f"| {' | '.join(row)} |", flush=True)


# --- both tables, within a time, by several processes ---------------------------------------------


def write_tables(options: argparse.Namespace) -> None:
    """Make both tables by other processes, and end these when their time is over."""
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    shares = {"distances": SHARE_OF_DISTANCES, "times": 1.0}
    jobs = {"distances": options.jobs, "times": 1}
    cells = selected(options.words)
    for table in TABLES:
        end = begin + 60 * options.minutes * shares[table.name]
        path = table_path(table, options.out)
        if not path.exists():
            append(path, [*CELL, *table.columns])
        run_workers(table, options, jobs[table.name], end)
        finished = len(written(path) & set(cells))
        print(
            f"{path}: {finished} of {len(cells)} rows, {time.monotonic() - begin:.0f} s",
            flush=True,
        )


def run_workers(table: Table, options: argparse.Namespace, jobs: int, end: float) -> None:
    """Run `jobs` processes of this script until they finish or the clock shows `end`."""
    words = [*options.words, f"--out={options.out}", f"--worker={table.name}", f"--jobs={jobs}"]
    command = [sys.executable, __file__, *words]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen([*command, f"--number={number}"], env=one_thread) for number in range(jobs)
    ]
    for worker in workers:
        try:
            worker.wait(max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def work(options: argparse.Namespace) -> None:
    """Append the missing ones of every `jobs`-th row."""
    table = next(table for table in TABLES if table.name == options.worker)
    path = table_path(table, options.out)
    done = written(path)
    mine = selected(options.words)[options.number :: options.jobs]
    missing = [cell for cell in mine if cell not in done]
    for row in make_rows(table, missing, SETTINGS["cuda" if "cuda" in options.words else "cpu"]):
        append(path, row)


def report(folder: Path) -> None:
    """Print both tables of a folder as one, models in the order of their names."""
    tables = [read(table_path(table, folder)) for table in TABLES]
    columns = [*DISTANCES, *TIMES[1:]]
    print("| " + " | ".join([*CELL, *columns]) + " |")
    print("| --- " * (len(CELL) + len(columns)) + "|")
    for cell in sorted(tables[0].keys() | tables[1].keys()):
        values = {name: text for table in tables for name, text in table.get(cell, {}).items()}
        print("| " + " | ".join([*cell, *(values.get(name) or "" for name in columns)]) + " |")


def read(path: Path) -> dict[Cell, dict[str, str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {Cell(*(row[name] for name in CELL)): row for row in rows}


def table_path(table: Table, out: Path) -> Path:
    return out / f"{table.name}.csv"


def append(path: Path, row: Sequence[str]) -> None:
    """Append one line by one write, so that lines of several processes do not mix."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    with path.open("ab", buffering=0) as file:
        file.write(text.getvalue().encode())


def written(path: Path) -> set[Cell]:
    with path.open(newline="") as file:
        return {Cell(*row[: len(CELL)]) for row in csv.reader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = {"cuda", "speed", *PRECISIONS, *ATTENTIONS, *hf_families.FAMILIES}
    unknown = set(options.words) - known
    if unknown:
        raise SystemExit(f"expected words of {sorted(known)}; got {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if options.report:
        report(options.report)
    elif options.worker:
        work(options)
    elif options.out:
        write_tables(options)
    else:
        table = TABLES["speed" in options.words]
        setting = SETTINGS["cuda" if "cuda" in options.words else "cpu"]
        print_table(table, selected(options.words), setting)


if __name__ == "__main__":
    main()
