"""Does the best learning rate stay as the depth grows? Llamas of 2 to 64 layers.

    python -m studies.depth.run [--minutes M] [--only adamw]
    python -m studies.depth.run --report

PROTOCOL.md has the question, the sizes and what would refute us. A piece is one optimizer, rule and
depth with all its rates and seeds, in one program.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import pandas

from orderone.data import Language, language
from studies.llama import llama
from studies.pieces import Piece, Records, run_study
from studies.tables import header, line, transfer_cells

FOLDER = Path(__file__).parent
RULES = ("none", "sqrt", "completep")
# the first rate as a power of 2; with Muon it is that of the hidden matrices
FIRST_RATE = {"adamw": -12, "muon": -10}
OTHER_RATE = 2.0**-8  # with Muon, of everything that AdamW trains


@dataclass(frozen=True)
class Scale:
    """Sizes and grids of the study."""

    width: int = 256
    depths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    head: int = 64
    batch: int = 16
    length: int = 256
    steps: int = 400
    rates: int = 8
    seeds: int = 2


FULL = Scale()
TINY = Scale(32, (1, 2), head=16, batch=2, length=16, steps=4, rates=2)
FIXED_SECONDS = 8.0
SECONDS_PER_LAYER = {"adamw": 1.6, "muon": 2.4}  # of one H200, for one training at each rate


@lru_cache(maxsize=1)
def _text(scale: Scale, device: str) -> Language:
    return language(batch=scale.batch, length=scale.length, format="huggingface", device=device)


def all_pieces(scale: Scale, device: str) -> list[Piece]:
    """Return the pieces in the order of their importance; the base is the same for all rules."""
    pieces: list[Piece] = []
    for optimizer in ("adamw", "muon"):
        pieces.append(_piece(scale, device, optimizer, "base", scale.depths[0]))
        for rule in reversed(RULES):
            for depth in scale.depths[1:]:
                pieces.append(_piece(scale, device, optimizer, rule, depth))
    return pieces


def _piece(scale: Scale, device: str, optimizer: str, rule: str, depth: int) -> Piece:
    rates = [2.0 ** (FIRST_RATE[optimizer] + k) for k in range(scale.rates)]
    space: dict[str, Any] = {"lr": rates}
    if optimizer == "muon":
        space = {"lr.muon": rates, "lr.adamw": [OTHER_RATE]}
    options = {
        "widths": [scale.width],
        "depths": [depth],
        "base": {"width": scale.width, "depth": scale.depths[0]},
        "optimizer": optimizer,
        "init": "fan-in",
        "depth": None if rule in ("none", "base") else rule,
        "weight_decay": 0.0,
        "steps": scale.steps,
        "schedule": "cosine",
        "warmup": max(1, scale.steps // 10),
        "clip": 1.0,
        "precision": "bfloat16" if device.startswith("cuda") else "float32",
        "compile": False,
    }
    return Piece(
        name=f"{optimizer}-{rule}-{depth}",
        build=partial(llama, head=scale.head, length=scale.length, device=device),
        space={**space, "seed": range(scale.seeds)},
        data=partial(_text, scale, device),
        seconds=FIXED_SECONDS + SECONDS_PER_LAYER[optimizer] * depth,
        options=options,
        labels={"depth_rule": rule},
    )


def report(records: Records) -> None:
    """Print drift and verdict of every rule, and the losses of all depths at their best rates."""
    frame = records.rows()
    print(header("optimizer", "depth rule", "layers"))
    for optimizer, rows in frame.groupby("optimizer", sort=False):
        for rule in RULES:
            part = cast(pandas.DataFrame, rows[rows["depth_rule"].isin(["base", rule])])
            if len(set(part["depth"])) > 1:
                rate = "lr.muon" if optimizer == "muon" else "lr"
                print(line([str(optimizer), rule, *transfer_cells(part, "depth", rate)]))


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    return run_study(
        FOLDER,
        __doc__,
        report,
        lambda tiny, device: list(all_pieces(TINY if tiny else FULL, device)),
        arguments,
    )


if __name__ == "__main__":
    raise SystemExit(main())
