"""Optimizers: does the best learning rate transfer over width, and which has the best loss?

    python -m studies.optimizers.run [--minutes M] [--only muon]
    python -m studies.optimizers.run --report

PROTOCOL.md has the question, the sizes and what would refute us. A piece is one optimizer at one
width with all its rates and seeds. SOAP needs the package pytorch-optimizer; without it, its pieces
do not exist.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orderone as o1
from orderone.data import Language, language
from studies.llama import llama
from studies.pieces import Piece, Records, run_study
from studies.tables import header, line, transfer_cells

FOLDER = Path(__file__).parent
OTHER_RATE = 2.0**-8  # with Muon, of everything that AdamW trains


@dataclass(frozen=True)
class Scale:
    """Sizes and grids of the study."""

    widths: tuple[int, ...] = (128, 256, 512, 1024)
    layers: int = 4
    head: int = 64
    batch: int = 16
    length: int = 128
    steps: int = 300
    rates: int = 8
    seeds: int = 2
    soap_rates: int = 5  # its models train one after another


FULL = Scale()
TINY = Scale((32, 64), 1, head=16, batch=2, length=16, steps=4, rates=2, soap_rates=2)


@dataclass(frozen=True)
class Contestant:
    """An optimizer, the power of 2 of its first rate, and the setting that is tuned."""

    name: str
    optimizer: Callable[[], Any]
    first_rate: int
    setting: str = "lr"
    seconds: tuple[float, ...] = (20, 20, 60, 180)  # one H200, by width


def _soap() -> Any:
    from pytorch_optimizer import SOAP

    o1.optimizers.register(SOAP, law="soap")
    return SOAP


def contestants() -> list[Contestant]:
    """Return the optimizers that can run here."""
    several = [
        Contestant("adamw", lambda: "adamw", -12),
        Contestant("muon", lambda: "muon", -10, "lr.muon"),
        Contestant("muon-match-rms", lambda: "muon:match_rms_adamw", -12, "lr.muon"),
        Contestant("lion", lambda: "lion", -15),
    ]
    if find_spec("pytorch_optimizer") is not None:
        several.append(Contestant("soap", _soap, -11, seconds=(200, 200, 250, 500)))
    return several


@lru_cache(maxsize=1)
def _text(scale: Scale, device: str) -> Language:
    return language(batch=scale.batch, length=scale.length, format="huggingface", device=device)


def all_pieces(scale: Scale, device: str) -> list[Piece]:
    """Return the pieces; all optimizers at one width before the next width."""
    pieces: list[Piece] = []
    for place in range(len(scale.widths)):
        for contestant in contestants():
            pieces.append(_piece(scale, device, contestant, place))
    return pieces


def _piece(scale: Scale, device: str, contestant: Contestant, place: int) -> Piece:
    number = scale.soap_rates if contestant.name == "soap" else scale.rates
    rates = [2.0 ** (contestant.first_rate + k) for k in range(number)]
    space: dict[str, Any] = {contestant.setting: rates}
    if contestant.setting == "lr.muon":
        space["lr.adamw"] = [OTHER_RATE]
    width = scale.widths[place]
    options = {
        "widths": [width],
        "base": scale.widths[0],
        "rule": "mup",
        "optimizer": contestant.optimizer(),
        "init": "fan-in",
        "weight_decay": 0.0,
        "steps": scale.steps,
        "schedule": "cosine",
        "warmup": max(1, scale.steps // 10),
        "clip": 1.0,
        "precision": "bfloat16" if device.startswith("cuda") else "float32",
        "compile": False,
    }
    build = partial(llama, depth=scale.layers, head=scale.head, length=scale.length, device=device)
    return Piece(
        name=f"{contestant.name}-{width}",
        build=build,
        space={**space, "seed": range(scale.seeds)},
        data=partial(_text, scale, device),
        seconds=contestant.seconds[place],
        options=options,
        labels={"contestant": contestant.name, "setting": contestant.setting},
    )


def report(records: Records) -> None:
    """Print drift, verdict and losses of every optimizer."""
    frame = records.rows()
    print(header("optimizer", "widths"))
    for name, rows in frame.groupby("contestant", sort=False):
        if len(set(rows["width"])) > 1:
            rate = str(rows["setting"].iloc[0])
            print(line([str(name), *transfer_cells(rows, "width", rate)]))


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
