"""A ladder of Llamas from 2.7 to 84 million parameters, with a forecast that is committed first.

    python -m studies.ladder.run --minutes 9 --data FOLDER      # trains what is missing
    python -m studies.ladder.run --forecast                     # writes forecast.json; commit it
    python -m studies.ladder.run --report

PROTOCOL.md has the question, the sizes and what would refute us. Models are unmodified
`LlamaForCausalLM`s on bytes of C code. The pieces of the larger models exist only after
forecast.json was written from the records of the small ones: it has their learning rates.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, cast

import pandas
import torch
from torch import nn

import orderone as o1
from orderone.core.errors import InputError
from orderone.data import Language, language
from studies.llama import llama, llama_parameters
from studies.pieces import Piece, Records, command_line, run_command

FOLDER = Path(__file__).parent
FORECAST = "forecast.json"
TOKENS_PER_PARAMETER = 20
WEIGHT_DECAY = 0.1  # of the base
BETAS = (0.9, 0.95)  # of the base
ADAMW = partial(torch.optim.AdamW, betas=BETAS)
FEW_SEEDS = 2
FIRST_RATE = {"full": -11, "standard": -12}  # powers of 2; muP alone is not tuned again


@dataclass(frozen=True)
class Size:
    """A rung of the ladder."""

    name: str
    width: int
    layers: int
    batch: int  # sequences
    seconds: float  # estimate for one training on one H200, without compilation
    share: float = 1.0  # of the 20 tokens per parameter
    is_narrow: bool = False  # tuned at five rates around the best of the base, with two seeds

    def parameters(self) -> int:
        return llama_parameters(self.width, self.layers)


@dataclass(frozen=True)
class Scale:
    """Sizes and grids of the study."""

    tuned: tuple[Size, ...]
    large: tuple[Size, ...]
    base: Size
    pilot: tuple[Size, ...] = ()  # tuned with `full`, and too small for the law: see the protocol
    length: int = 1024
    head: int = 64
    source: str = "linux"
    held_out: int = 576  # pieces of `length`: a multiple of all batch sizes, the same for all sizes
    rates: int = 7
    seeds: int = 3
    most_steps: int | None = None  # for the tiny version

    def steps(self, size: Size) -> int:
        tokens = TOKENS_PER_PARAMETER * size.share * size.parameters()
        steps = round(tokens / (size.batch * self.length))
        return steps if self.most_steps is None else min(steps, self.most_steps)

    def tokens(self, size: Size) -> int:
        return self.steps(size) * size.batch * self.length

    def flops(self, size: Size) -> float:
        """Return 6 x parameters x tokens, and the products of causal attention."""
        attention = 6 * size.layers * size.width * self.length
        return (6 * size.parameters() + attention) * float(self.tokens(size))


BASE = Size("2.7M", 256, 3, 16, 8)
FULL = Scale(
    pilot=(Size("0.7M", 128, 3, 8, 1), Size("1.5M", 192, 3, 12, 3)),
    tuned=(
        BASE,
        Size("5.5M", 320, 4, 24, 30, is_narrow=True),
        Size("9.8M", 384, 5, 32, 82, is_narrow=True),
    ),
    large=(
        Size("20.7M", 512, 6, 48, 280),
        Size("37.6M", 640, 7, 64, 780),
        Size("84M", 896, 8, 64, 750, share=0.25),
    ),
    base=BASE,
)
TINY_BASE = Size("base", 32, 1, 2, 1)
TINY = Scale(
    tuned=(TINY_BASE, Size("next", 48, 1, 3, 1, is_narrow=True)),
    large=(Size("large", 64, 2, 4, 1),),
    base=TINY_BASE,
    length=16,
    head=16,
    source="python",
    held_out=12,
    rates=2,
    seeds=2,
    most_steps=4,
)
COMPILING = 40.0  # seconds per piece


@dataclass(frozen=True)
class Setting:
    """Sizes, device and data of a run."""

    scale: Scale
    device: str
    root: Path

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
    kind = "tune" if len(rates) > 1 else "run"
    name = f"{kind}-{method}-{size.name}"
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
        "precision": "bfloat16" if setting.device.startswith("cuda") else "float32",
        "compile": setting.device.startswith("cuda"),
        "checkpoint_seconds": 120.0,
    }
    return Piece(
        name=name,
        build=setting.build,
        space={"lr": list(rates), "seed": list(seeds)},
        data=partial(setting.data, size),
        seconds=COMPILING + size.seconds * len(rates) * len(seeds),
        options=options,
        labels={
            "method": method,
            "size": size.name,
            "parameters": size.parameters(),
            "batch": size.batch,
            "tokens": scale.tokens(size),
            "flops": scale.flops(size),
        },
    )


def tuning_pieces(setting: Setting, method: str, records: Records) -> list[Piece]:
    """Return the sweeps at the small sizes; narrow ones exist once the base is recorded."""
    scale = setting.scale
    rates = [2.0 ** (FIRST_RATE[method] + k) for k in range(scale.rates)]
    seeds = range(scale.seeds if method == "full" else FEW_SEEDS)
    base = make_piece(setting, method, scale.base, rates, seeds)
    pieces = [base]
    if method == "full":
        pieces += [make_piece(setting, method, size, rates, seeds) for size in scale.pilot]
    for size in scale.tuned:
        if size == scale.base:
            continue
        if not size.is_narrow:
            pieces.append(make_piece(setting, method, size, rates, seeds))
        elif records.has(base):
            pieces += narrow_pieces(setting, method, size, best_rate(records, base))
    return pieces


def narrow_pieces(setting: Setting, method: str, size: Size, best: float) -> list[Piece]:
    """Return two sweeps around a rate: it and its neighbours, then the rates outside of them."""
    seeds = range(FEW_SEEDS)
    inner = make_piece(setting, method, size, [best / 2, best, 2 * best], seeds)
    outer = make_piece(setting, method, size, [best / 4, 4 * best], seeds)
    return [inner, replace(outer, name=f"{outer.name}-outer")]


def best_rate(records: Records, piece: Piece) -> float:
    """Return the rate of the grid with the lowest mean loss over seeds."""
    frame = records.rows()
    rows = cast(pandas.DataFrame, frame[frame["piece"] == piece.name])
    losses = rows["loss"].where(~rows["diverged"].astype(bool), inf)
    means = cast(pandas.Series, losses.groupby(rows["lr"]).mean())
    return cast(float, means.idxmin())


def large_pieces(setting: Setting, forecasts: Mapping[str, Any]) -> list[Piece]:
    """Return the trainings of the larger sizes, with the rates of the committed forecasts."""
    pieces: list[Piece] = []
    for size in setting.scale.large:
        for method in ("full", "standard", "width"):
            rates = forecasts.get(method, {}).get("rates", {})
            if size.name in rates and (size.share == 1.0 or method == "full"):
                pieces.append(make_piece(setting, method, size, [rates[size.name]], [0]))
    return pieces


def all_pieces(setting: Setting, folder: Path) -> list[Piece]:
    """Return the pieces in the order of the protocol."""
    path = folder / FORECAST
    forecasts = json.loads(path.read_text()) if path.exists() else {}
    records = Records(folder)
    return [
        *tuning_pieces(setting, "full", records),
        *tuning_pieces(setting, "standard", records),
        *large_pieces(setting, forecasts),
    ]


# --- forecast -------------------------------------------------------------------------------------


def forecast(frame: pandas.DataFrame, scale: Scale) -> dict[str, Any]:
    """Return rates and expected losses of the larger sizes, from the tuned ones alone.

    Rates follow the width, the axis of the rules. Losses follow the number of parameters. Sizes
    with another number of tokens per parameter have a rate and no expected loss.
    """
    result: dict[str, Any] = {}
    for method in ("full", "standard"):
        rows = cast(pandas.DataFrame, frame[frame["method"] == method])
        small = [size.name for size in scale.tuned]
        rows = cast(pandas.DataFrame, rows[rows["size"].isin(small)])
        if len(set(rows["size"])) == len(small):
            result[method] = _forecast(rows, scale)
    if "full" in result:  # the base is the same, and muP alone carries its best rate
        rate = result["full"]["base_rate"]
        result["width"] = {"rates": {size.name: rate for size in scale.large}}
    return result


def _forecast(rows: pandas.DataFrame, scale: Scale) -> dict[str, Any]:
    over_width = transfer(rows, "width")
    over_parameters = transfer(rows, "parameters")
    best = dict(zip(over_width.frame["width"], over_width.frame["lr"], strict=True))
    drift = next(iter(over_width.drift.values()))
    result: dict[str, Any] = {
        "base_rate": float(best[scale.base.width]),
        "drift": [drift.slope, drift.low, drift.high, drift.verdict],
        "rates": {},
        "losses": {},
    }
    for size in scale.large:
        result["rates"][size.name] = float(over_width.target(width=size.width).lr)
        if size.share == 1.0:
            result["losses"][size.name] = _loss(over_parameters, size)
    return result


def _loss(study: o1.Transfer, size: Size) -> list[float] | str:
    """Return forecast, low and high end; or the reason why there is none."""
    try:
        expected = study.forecast(width=size.parameters())
    except InputError as error:
        return str(error)
    return [expected.loss, expected.low, expected.high]


def transfer(rows: pandas.DataFrame, axis: str) -> o1.Transfer:
    """Return the transfer study of tuned sizes, with `axis` in the place of the width."""
    columns = ["lr", "seed", "rule", "loss", "diverged"]
    chosen = cast(pandas.DataFrame, rows[columns])
    return o1.Transfer.from_frame(chosen.assign(width=rows[axis]))


# --- results --------------------------------------------------------------------------------------


def report(records: Records, scale: Scale) -> None:
    """Print the best loss by method and size, its forecast, and the compute of the method."""
    frame = records.rows()
    path = records.folder / FORECAST
    forecasts = json.loads(path.read_text()) if path.exists() else {}
    print("| method | size | trainings | best rate | loss | forecast | exaFLOP so far |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for method in ("full", "width", "standard"):
        spent = 0.0
        for size in (*scale.pilot, *scale.tuned, *scale.large):
            is_row = (frame["method"] == method) & (frame["size"] == size.name)
            rows = cast(pandas.DataFrame, frame[is_row])
            if rows.empty:
                continue
            spent += sum(rows["flops"]) / 1e18
            means = cast(pandas.Series, rows.groupby("lr")["loss"].mean())
            expected = forecasts.get(method, {}).get("losses", {}).get(size.name)
            print(
                f"| {method} | {size.name} | {len(rows)} | {cast(float, means.idxmin()):.3g} |"
                f" {means.min():.4f} | {_interval(expected)} | {spent:.3f} |"
            )


def _interval(expected: list[float] | str | None) -> str:
    if expected is None or isinstance(expected, str) or not isfinite(expected[0]):
        return "-"
    return f"{expected[0]:.4f} [{expected[1]:.4f}, {expected[2]:.4f}]"


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    parser = command_line(__doc__ or "", FOLDER)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    parser.add_argument("--forecast", action="store_true", help=f"write {FORECAST}")
    options = parser.parse_args(arguments)
    scale = TINY if options.tiny else FULL
    records = Records(options.records)
    if options.report:
        report(records, scale)
        return 0
    if options.forecast:
        text = json.dumps(forecast(records.rows(), scale), indent=2) + "\n"
        (options.records / FORECAST).write_text(text)
        print(text, end="")
        return 0
    setting = Setting(scale, options.device, options.data)
    return 0 if run_command(all_pieces(setting, options.records), options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
