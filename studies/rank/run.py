"""Does the best learning rate of LoRA stay as the rank grows from 4 to 256?

    python -m studies.rank.run [--minutes M] [--data FOLDER] [--pretrained FILE]
    python -m studies.rank.run --report

PROTOCOL.md has the question, the sizes and what would refute us. The model is the base of the
ladder. It is trained once, before the first piece, and saved in the file `--pretrained`. A piece is
one rule and rank with all its rates and seeds.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import pandas
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import orderone as o1
from orderone.data import Language, language
from studies.llama import llama, llama_parameters
from studies.pieces import Piece, Records, command_line, device_time, run_command
from studies.tables import header, line, transfer_cells

FOLDER = Path(__file__).parent
RULES = {"mup": "mup", "none": None}  # name in the records -> rank_rule
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MULTIPLIER = 2.0
PRETRAINING_RATE = 2.0**-8  # the best of the ladder's base
TOKENS_PER_PARAMETER = 20
FIRST_RATE = -11  # power of 2
SECONDS = (22.0, 24.0, 28.0, 40.0)  # estimates for one H200, by rank


@dataclass(frozen=True)
class Scale:
    """Sizes and grids of the study."""

    width: int = 256
    layers: int = 3
    head: int = 64
    ranks: tuple[int, ...] = (4, 16, 64, 256)
    batch: int = 16
    length: int = 256
    steps: int = 300
    rates: int = 8
    seeds: int = 2
    pretraining_source: str = "linux"
    pretraining_length: int = 1024
    pretraining_steps: int | None = None  # None: 20 tokens per parameter

    def steps_before(self) -> int:
        if self.pretraining_steps is not None:
            return self.pretraining_steps
        tokens = TOKENS_PER_PARAMETER * llama_parameters(self.width, self.layers)
        return round(tokens / (self.batch * self.pretraining_length))


FULL = Scale()
TINY = Scale(
    width=32,
    layers=1,
    head=16,
    ranks=(2, 4),
    batch=2,
    length=16,
    steps=4,
    rates=2,
    pretraining_source="python",
    pretraining_length=16,
    pretraining_steps=4,
)


class Adapted(nn.Module):
    """A frozen linear layer with an adapter: W x + s B A x, where B starts at zero."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        device = layer.weight.device
        self.layer = layer.requires_grad_(False)
        self.A = nn.Linear(layer.in_features, rank, bias=False, device=device)
        self.B = nn.Linear(rank, layer.out_features, bias=False, device=device)
        nn.init.zeros_(self.B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + MULTIPLIER * self.B(self.A(x))


@dataclass(frozen=True)
class Setting:
    """Sizes, device, data and pretrained weights of a run."""

    scale: Scale
    device: str
    root: Path
    pretrained: Path

    def plain(self, width: int) -> nn.Module:
        scale = self.scale
        length = scale.pretraining_length
        return llama(width, scale.layers, head=scale.head, length=length, device=self.device)

    def build(self, width: int, *, rank: int) -> nn.Module:
        """Return the pretrained model with adapters, everything else frozen."""
        model = self.plain(width)
        model.load_state_dict(load_file(self.pretrained, self.device))
        return with_adapters(model, rank)


def with_adapters(model: nn.Module, rank: int) -> nn.Module:
    """Freeze a model and give its matrices of attention and feed-forward layers adapters."""
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        if last in PARTS:
            setattr(model.get_submodule(parent), last, Adapted(cast(nn.Linear, module), rank))
    return model


def pretrain(setting: Setting) -> None:
    """Train the base of the ladder and save its weights, unless they exist."""
    if setting.pretrained.exists():
        return
    scale = setting.scale
    steps = scale.steps_before()
    is_gpu = setting.device.startswith("cuda")
    task = language(
        scale.pretraining_source,
        batch=scale.batch,
        length=scale.pretraining_length,
        format="huggingface",
        device=setting.device,
        root=setting.root,
    )
    torch.manual_seed(0)
    model = setting.plain(scale.width)
    plan = o1.plan(model, base=model, lr=PRETRAINING_RATE, weight_decay=0.1, init="fan-in")
    trained = o1.train(
        plan,
        task,
        steps,
        schedule="cosine",
        warmup=max(1, steps // 20),
        clip=1.0,
        precision="bfloat16" if is_gpu else "float32",
        compile=is_gpu,
        device=setting.device,
    )
    print(f"pretrained: {steps} steps, loss {trained.loss:.4f}", flush=True)
    setting.pretrained.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, setting.pretrained)


@lru_cache(maxsize=1)
def _text(scale: Scale, device: str) -> Language:
    return language(batch=scale.batch, length=scale.length, format="huggingface", device=device)


def all_pieces(setting: Setting) -> list[Piece]:
    """Return the pieces; the base is the same for both rules."""
    pieces = [_piece(setting, "mup", 0)]
    for rule in RULES:
        for place in range(1, len(setting.scale.ranks)):
            pieces.append(_piece(setting, rule, place))
    return pieces


def _piece(setting: Setting, rule: str, place: int) -> Piece:
    scale = setting.scale
    rank = scale.ranks[place]
    is_gpu = setting.device.startswith("cuda")
    options: dict[str, Any] = {
        "widths": [scale.width],
        # only shapes and sizes of the adapters count here
        "base": with_adapters(setting.plain(scale.width), scale.ranks[0]),
        "rule": "mup",
        "rank_rule": RULES[rule],
        "optimizer": "adamw",
        "weight_decay": 0.0,
        "steps": scale.steps,
        "schedule": "cosine",
        "warmup": max(1, scale.steps // 10),
        "clip": 1.0,
        "precision": "bfloat16" if is_gpu else "float32",
        "compile": False,
    }
    return Piece(
        name=f"{rule if place else 'base'}-{rank}",
        build=partial(setting.build, rank=rank),
        space={
            "lr": [2.0 ** (FIRST_RATE + k) for k in range(scale.rates)],
            "seed": range(scale.seeds),
        },
        data=partial(_text, scale, setting.device),
        seconds=SECONDS[place],
        options=options,
        labels={"rank": rank, "rank_rule": rule if place else "base"},
    )


def report(records: Records) -> None:
    """Print drift, verdict and losses of both rules."""
    frame = records.rows()
    print(header("rule", "ranks"))
    for rule in RULES:
        rows = cast(pandas.DataFrame, frame[frame["rank_rule"].isin(["base", rule])])
        if len(set(rows["rank"])) > 1:
            print(line([rule, *transfer_cells(rows, "rank")]))


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    parser = command_line(__doc__ or "", FOLDER)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    parser.add_argument("--pretrained", type=Path, help="weights (default: in --records)")
    options = parser.parse_args(arguments)
    if options.report:
        report(Records(options.records))
        print(device_time(Records(options.records)))
        return 0
    pretrained = options.pretrained or options.records / "store-pretrained.safetensors"
    scale = TINY if options.tiny else FULL
    setting = Setting(scale, options.device, options.data, pretrained)
    if not options.list:
        pretrain(setting)
    return 0 if run_command(all_pieces(setting), options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
