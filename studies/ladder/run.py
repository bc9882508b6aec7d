"""A ladder of Llamas from 2.7 to 37.6 million parameters, with a forecast that is committed first.

    python -m studies.ladder.run --minutes 9 --data FOLDER      # trains what is missing
    python -m studies.ladder.run --forecast                     # writes forecast.json; commit it
    python -m studies.ladder.run --report [--figure FILE]

PROTOCOL.md has the question, the sizes and what would refute us. Models are unmodified
`LlamaForCausalLM`s on bytes of C code. The pieces of the larger models exist only after
forecast.json was written from the records of the small ones: it has their learning rates.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import log2
from pathlib import Path
from typing import Any, cast

import pandas
import torch
from torch import nn

from orderone.data import Language, language
from studies.ladder import forecast as forecasts
from studies.ladder.results import draw, report
from studies.ladder.sizes import FULL, TINY, Scale, Size
from studies.llama import llama
from studies.pieces import LONG, Piece, Records, command_line, device_time, run_command

FOLDER = Path(__file__).parent
WEIGHT_DECAY = 0.1  # of the base
BETAS = (0.9, 0.95)  # of the base
ADAMW = partial(torch.optim.AdamW, betas=BETAS)
FEW_SEEDS = 2
FIRST_RATE = {"full": -11, "standard": -12}  # powers of 2; the other methods have no base of theirs
COMPILING = 40.0  # seconds per piece


@dataclass(frozen=True)
class Setting:
    """Sizes, device and data of a run."""

    scale: Scale
    device: str
    root: Path
    verify: bool = True  # whether stacks are compared with stand-alone trainings

    def data(self, size: Size) -> Language:
        return _base_task(self).with_batch_size(size.batch)

    def build(self, width: int, depth: int) -> nn.Module:
        scale = self.scale
        return llama(width, depth, head=scale.head, length=scale.length, device=self.device)


@lru_cache(maxsize=1)  # all pieces read the same text
def _base_task(setting: Setting) -> Language:
    scale = setting.scale
    return language(
        scale.source,
        batch=scale.base.batch,
        length=scale.length,
        evaluations=scale.held_out // scale.base.batch,
        format="huggingface",
        device=setting.device,
        root=setting.root,
    )


def method_options(method: str, size: Size, scale: Scale) -> dict[str, Any]:
    """Return the arguments of `sweep` that make the difference between the methods."""
    if method == "standard":
        return {"rule": "standard"}
    if method == "standard-fan-in":
        return {"rule": "standard", "init": "fan-in"}
    if method == "width":
        return {"rule": "mup", "init": "fan-in"}
    assert method == "full", method
    return {
        "rule": "mup",
        "init": "fan-in",
        "depth": "completep",
        "batch": (scale.base.batch, size.batch),
        "tokens": (scale.tokens(scale.base), scale.tokens(size)),
    }


def make_piece(
    setting: Setting, method: str, size: Size, rates: Sequence[float], seeds: Sequence[int]
) -> Piece:
    """Return the piece of one method and size."""
    scale = setting.scale
    steps = scale.steps(size)
    is_gpu = setting.device.startswith("cuda")
    trainings = len(rates) * len(seeds)
    options = {
        **method_options(method, size, scale),
        "optimizer": ADAMW,
        "weight_decay": WEIGHT_DECAY,
        "widths": [size.width],
        "depths": [size.layers],
        "base": {"width": scale.base.width, "depth": scale.base.layers},
        "steps": steps,
        "schedule": "cosine",
        "warmup": max(1, steps // 20),
        "clip": 1.0,
        "precision": "bfloat16" if is_gpu else "float32",
        "compile": is_gpu,
        "verify": setting.verify,
        "checkpoint_seconds": 120.0,
    }
    if trainings == 1 and is_gpu:  # a single training is compiled only as a stack of one
        options["stacked"] = True
    seconds = COMPILING + size.seconds * trainings
    return Piece(
        name=f"tune-{method}-{size.name}",
        build=setting.build,
        space={"lr": list(rates), "seed": list(seeds)},
        data=partial(setting.data, size),
        seconds=seconds,
        options=options,
        labels={
            "method": method,
            "size": size.name,
            "parameters": size.parameters(),
            "batch": size.batch,
            "tokens": scale.tokens(size),
            "flops": scale.flops(size),
        },
        continues=seconds > LONG,
    )


# --- tuning ---------------------------------------------------------------------------------------


def tuning_pieces(setting: Setting, method: str, records: Records) -> list[Piece]:
    """Return the sweeps of a method at the small sizes.

    Those after the base exist once the base is recorded: they have its best rate and the next ones
    on both sides. A size whose best rate is at an end of its grid gets the next rate beyond.
    """
    scale = setting.scale
    pieces: list[Piece] = []
    if method in FIRST_RATE:
        rates = [2.0 ** (FIRST_RATE[method] + k) for k in range(scale.rates)]
        seeds = range(scale.seeds if method == "full" else FEW_SEEDS)
        pieces.append(make_piece(setting, method, scale.base, rates, seeds))
        if method == "full":
            pieces += [make_piece(setting, method, size, rates, seeds) for size in scale.pilot]
    base = make_piece(setting, _method_of_base(method), scale.base, [1.0], [0])
    rows = _rows(records, base.name)
    if rows.empty:
        return pieces
    best = best_rate(rows)
    for size in tuned_sizes(method, scale):
        around = [best / 2, best, 2 * best]
        pieces.append(make_piece(setting, method, size, around, range(FEW_SEEDS)))
    pieces += _beyond(setting, method, records)
    return pieces


def _method_of_base(method: str) -> str:
    """Return the method whose tuning of the base this one uses: with `fan-in` they are the same."""
    return "full" if method == "standard-fan-in" else method


def tuned_sizes(method: str, scale: Scale) -> tuple[Size, ...]:
    """Return the sizes after the base at which a method is tuned."""
    return scale.tuned[1:] if method == "full" else scale.tuned[1:2]


def _beyond(setting: Setting, method: str, records: Records) -> list[Piece]:
    """Return a piece with the next rate for every size that has its best rate at an end."""
    pieces: list[Piece] = []
    sizes = tuned_sizes(method, setting.scale)
    if method in FIRST_RATE:
        sizes = (setting.scale.base, *sizes)
    for size in sizes:
        rows = _rows(records, f"tune-{method}-{size.name}", with_beyond=True)
        rate = None if rows.empty else forecasts.next_rate(rows)
        if rate is not None:
            seeds = sorted(int(seed) for seed in set(rows["seed"]))
            piece = make_piece(setting, method, size, [rate], seeds)
            pieces.append(replace(piece, name=f"{piece.name}-at-2^{log2(rate):.0f}"))
    return pieces


def _rows(records: Records, name: str, with_beyond: bool = False) -> pandas.DataFrame:
    """Return the rows of a piece, and with `with_beyond` those of pieces that extend its grid."""
    frame = records.read()
    names = frame["piece"].astype(str)
    chosen = names == name
    if with_beyond:
        chosen |= names.str.startswith(f"{name}-")
    return cast(pandas.DataFrame, frame[chosen])


def best_rate(rows: pandas.DataFrame) -> float:
    """Return the rate of the grid with the lowest mean loss over seeds."""
    losses = rows["loss"].where(~rows["diverged"].astype(bool), float("inf"))
    means = cast(pandas.Series, losses.groupby(rows["lr"]).mean())
    return cast(float, means.idxmin())


# --- larger sizes ---------------------------------------------------------------------------------


def large_pieces(setting: Setting, written: Mapping[str, Any], records: Records) -> list[Piece]:
    """Return the trainings with the rates of the committed forecast, in the order of the protocol.

    Seeds are separate pieces, so that the first ones of all methods come before the second ones.
    """
    scale = setting.scale
    pieces: list[Piece] = []

    def add(method: str, size: Size, seed: int) -> None:
        rates = written.get(method, {}).get("rates", {})
        if size.name in rates:
            piece = make_piece(setting, method, size, [rates[size.name]], [seed])
            name = f"run-{method}-{size.name}-seed-{seed}"
            pieces.append(replace(piece, name=name, keeps_curves=True))

    add("full", scale.largest, 0)
    for seed in range(FEW_SEEDS):
        for method in ("full", *forecasts.STANDARD):
            add(method, scale.compared, seed)
    if "full" in written:
        pieces += _width_pieces(setting, records)
        pieces += _curve_pieces(setting, written)
    return pieces


def _width_pieces(setting: Setting, records: Records) -> list[Piece]:
    """Return muP without the rules for depth, batch and tokens, with the best rate of the base.

    Its size is the largest tuned one, where `full` was trained with the same rate.
    """
    scale = setting.scale
    rows = _rows(records, f"tune-full-{scale.base.name}")
    if rows.empty:
        return []
    size = scale.tuned[-1]
    piece = make_piece(setting, "width", size, [best_rate(rows)], range(FEW_SEEDS))
    return [replace(piece, name=f"run-width-{size.name}")]


def _curve_pieces(setting: Setting, written: Mapping[str, Any]) -> list[Piece]:
    """Return trainings of small sizes with the carried rate, whose loss curves are compared."""
    scale = setting.scale
    rate = written["full"]["rates"][scale.compared.name]
    pieces: list[Piece] = []
    for size in scale.tuned[:2]:
        piece = make_piece(setting, "full", size, [rate], range(scale.seeds))
        pieces.append(replace(piece, name=f"curves-full-{size.name}", keeps_curves=True))
    return pieces


def all_pieces(setting: Setting, folder: Path) -> list[Piece]:
    """Return the pieces in the order of the protocol."""
    path = folder / forecasts.NAME
    written = json.loads(path.read_text()) if path.exists() else {}
    records = Records(folder)
    tuning = [tuning_pieces(setting, method, records) for method in ("full", *forecasts.STANDARD)]
    flat = [piece for several in tuning for piece in several]
    return [*flat, *large_pieces(setting, written, records)]


def write_forecast(records: Records, scale: Scale) -> None:
    """Write the forecasts of all tuned methods; those that were written before stay as they are."""
    path = records.folder / forecasts.NAME
    before = json.loads(path.read_text()) if path.exists() else {}
    text = json.dumps({**forecasts.forecast(records.rows(), scale), **before}, indent=2) + "\n"
    path.write_text(text)
    print(text, end="")


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    parser = command_line(__doc__ or "", FOLDER)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    parser.add_argument("--forecast", action="store_true", help=f"write {forecasts.NAME}")
    parser.add_argument("--figure", type=Path, help="with --report: draw losses into this PNG")
    parser.add_argument(
        "--unproved", action="store_true", help="do not compare stacks with stand-alone trainings"
    )
    options = parser.parse_args(arguments)
    scale = TINY if options.tiny else FULL
    records = Records(options.records)
    if options.report:
        report(records, scale)
        print(device_time(records))
        if options.figure is not None:
            draw(records, scale, options.figure)
        return 0
    if options.forecast:
        write_forecast(records, scale)
        return 0
    setting = Setting(scale, options.device, options.data, verify=not options.unproved)
    return 0 if run_command(all_pieces(setting, options.records), options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
