"""How does the best learning rate depend on batch size and number of tokens?

    python -m studies.batch_tokens.run [--minutes M] [--data FOLDER]
    python -m studies.batch_tokens.run --report

PROTOCOL.md has the question, the sizes and what would refute us. One Llama is trained with every
batch size, number of tokens and rate; no rule changes its rates. A piece is one batch size, number
of tokens and kind of weight decay.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import pandas

import orderone as o1
from orderone.data import Language, language
from studies.llama import llama, llama_parameters
from studies.pieces import LONG, Piece, Records, command_line, device_time, run_command

FOLDER = Path(__file__).parent
WEIGHT_DECAY = 0.1
DECAYS = ("timescale", "fixed")
COMPILING = 40.0  # seconds per piece
TOKENS_PER_SECOND = 4.5e6  # of a stack on one H200


@dataclass(frozen=True)
class Scale:
    """Sizes and grids of the study."""

    width: int = 256
    layers: int = 3
    head: int = 64
    length: int = 512
    source: str = "linux"
    batches: tuple[int, ...] = (16, 64, 256)  # sequences
    tokens: tuple[int, ...] = (10_000_000, 40_000_000, 160_000_000)
    first_rate: int = -12  # power of 2
    rates: int = 7
    seeds: int = 2
    held_out: int = 1024  # pieces: a multiple of all batch sizes

    def steps(self, batch: int, tokens: int) -> int:
        return max(1, tokens // (batch * self.length))


FULL = Scale()
TINY = Scale(32, 1, 16, 16, "python", (2, 4), (128, 256), rates=2, held_out=8)


@lru_cache(maxsize=1)
def _text(scale: Scale, device: str, root: Path) -> Language:
    return language(
        scale.source,
        batch=scale.batches[0],
        length=scale.length,
        evaluations=scale.held_out // scale.batches[0],
        format="huggingface",
        device=device,
        root=root,
    )


def all_pieces(scale: Scale, device: str, root: Path) -> list[Piece]:
    """Return the pieces, cheap ones first; weight decay at its timescale before a fixed one.

    The largest number of tokens has the middle batch size only, and the fixed decay the middle row
    and the middle column of the grid.
    """
    pieces: list[Piece] = []
    middle = (scale.tokens[1], scale.batches[1])
    for decay in DECAYS:
        for tokens in scale.tokens:
            for batch in scale.batches:
                is_middle = tokens == middle[0] or batch == middle[1]
                is_small = decay == "timescale" and tokens != scale.tokens[-1]
                if is_middle or is_small:
                    pieces.append(_piece(scale, device, root, decay, tokens, batch))
    return pieces


def _piece(scale: Scale, device: str, root: Path, decay: str, tokens: int, batch: int) -> Piece:
    steps = scale.steps(batch, tokens)
    options: dict[str, Any] = {
        "widths": [scale.width],
        "depths": [scale.layers],
        "rule": "standard",  # one size only: all rules are the same
        "init": "fan-in",
        "optimizer": "adamw",
        "weight_decay": WEIGHT_DECAY,
        "horizon": None,  # rates and betas stay: their dependence is what is measured
        "steps": steps,
        "schedule": "cosine",
        "warmup": max(1, steps // 20),
        "clip": 1.0,
        "precision": "bfloat16" if device.startswith("cuda") else "float32",
        "compile": device.startswith("cuda"),
    }
    if decay == "timescale":
        first = (scale.batches[0], scale.tokens[0])
        options["decay"] = "timescale"
        options["batch"] = (first[0], batch)
        options["tokens"] = (first[1], tokens)

    def data() -> Language:
        return _text(scale, device, root).with_batch_size(batch)

    seconds = COMPILING + tokens * scale.rates * scale.seeds / TOKENS_PER_SECOND

    return Piece(
        name=f"{decay}-{tokens}-{batch}",
        build=partial(llama, head=scale.head, length=scale.length, device=device),
        space={
            "lr": [2.0 ** (scale.first_rate + k) for k in range(scale.rates)],
            "seed": range(scale.seeds),
        },
        data=data,
        seconds=seconds,
        continues=seconds > LONG,
        options=options,
        labels={
            "decay": decay,
            "tokens": tokens,
            "batch": batch,
            "parameters": llama_parameters(scale.width, scale.layers),
        },
    )


def report(records: Records) -> None:
    """Print the exponents of the best rate in one amount, for every value of the other."""
    frame = records.rows()
    print("| weight decay | exponent of | at | exponent, 95 % interval | best rates |")
    print("| --- | --- | --- | --- | --- |")
    for decay in DECAYS:
        rows = cast(pandas.DataFrame, frame[frame["decay"] == decay])
        for axis, other in (("batch", "tokens"), ("tokens", "batch")):
            for value, part in rows.groupby(other):
                if len(set(part[axis])) > 1:
                    cells = [decay, axis, f"{other} {value}", *exponent(part, axis)]
                    print(f"| {' | '.join(cells)} |")


def exponent(rows: pandas.DataFrame, axis: str) -> list[str]:
    """Return the exponent with its interval, and the best rates.

    Octaves of the rate per doubling are the exponent, so that the drift of `Transfer` is used with
    the amount in the place of the width.
    """
    table = rows[["lr", "seed", "loss", "diverged"]].assign(width=rows[axis])
    study = o1.Transfer.from_frame(table)
    drift = next(iter(study.drift.values()))
    best = ", ".join(f"{rate:.2g}" for rate in study.frame["lr"])
    return [f"{drift.slope:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]", best]


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    parser = command_line(__doc__ or "", FOLDER)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    options = parser.parse_args(arguments)
    if options.report:
        report(Records(options.records))
        print(device_time(Records(options.records)))
        return 0
    scale = TINY if options.tiny else FULL
    return 0 if run_command(all_pieces(scale, options.device, options.data), options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
