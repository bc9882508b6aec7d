"""Does the best learning rate transfer over width? Seven architectures, from one script.

    python -m studies.architectures.run [--minutes M] [--images FILE] [--only llama,qwen3]
    python -m studies.architectures.run --report [--figure FILE]
    python -m studies.architectures.run --pack FOLDER FILE    # 10,000 images of CIFAR-10, 31 MB

PROTOCOL.md has the question, the sizes and what would refute us. All models are unmodified ones of
Hugging Face. A piece is one architecture at one width with all its rates and seeds, in one program.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas
import torch
import transformers
from torch import nn

from orderone.data import denoising, images, language
from studies.figures import DriftPoint, draw_drifts
from studies.pieces import Piece, Records, command_line, device_time, run_command
from studies.tables import header, line, transfer_cells, transfer_study

FOLDER = Path(__file__).parent
VOCAB = 256
SPECIAL = 4  # tokens of the denoising task
IMAGES = 10_000
LABELS: dict[str, Any] = {"num_labels": 10}  # an option of all configurations


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    widths: tuple[int, ...] = (128, 256, 512)
    layers: int = 4
    head: int = 64
    batch: int = 16
    length: int = 128
    steps: int = 300
    first_rate: int = -12  # power of 2
    rates: int = 8
    seeds: int = 3


FULL = Scale()
TINY = Scale((32, 64), layers=1, head=16, batch=2, length=16, steps=4, rates=2, seeds=2)


# --- models: a function of the width for every architecture ---------------------------------------


def llama(width: int, scale: Scale) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=scale.layers,
        num_attention_heads=width // scale.head,
        num_key_value_heads=width // scale.head,
        head_dim=scale.head,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def qwen3(width: int, scale: Scale) -> nn.Module:
    config = transformers.Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=scale.layers,
        num_attention_heads=width // scale.head,
        num_key_value_heads=max(1, width // scale.head // 2),
        head_dim=scale.head,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return transformers.Qwen3ForCausalLM(config)


def gemma3(width: int, scale: Scale) -> nn.Module:
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=scale.layers,
        num_attention_heads=width // scale.head,
        num_key_value_heads=max(1, width // scale.head // 2),
        head_dim=scale.head,
        query_pre_attn_scalar=scale.head,
        sliding_window=scale.length // 2,
        layer_types=_every_second_global(scale.layers),
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return transformers.Gemma3ForCausalLM(config)


def _every_second_global(layers: int) -> list[str]:
    kinds = ("sliding_attention", "full_attention")
    return [kinds[layer % 2] for layer in range(layers)]


def gpt2(width: int, scale: Scale) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=scale.length,
        n_embd=width,
        n_layer=scale.layers,
        n_head=width // scale.head,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config)


def mamba(width: int, scale: Scale) -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        num_hidden_layers=scale.layers,
        time_step_rank=width // 16,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return transformers.MambaForCausalLM(config)


def t5(width: int, scale: Scale) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCAB + SPECIAL,
        d_model=width,
        d_kv=scale.head,
        d_ff=3 * width,
        num_layers=scale.layers,
        num_heads=width // scale.head,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    return transformers.T5ForConditionalGeneration(config)


def vit(width: int, scale: Scale, colour: bool) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=scale.layers,
        num_attention_heads=width // scale.head,
        image_size=32 if colour else 8,
        patch_size=4 if colour else 2,
        num_channels=3 if colour else 1,
        **LABELS,
    )
    return transformers.ViTForImageClassification(config)


# --- tasks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Sizes, device and data of a run."""

    scale: Scale
    device: str
    images: Path | None = None  # None: scikit-learn's digits
    verify: bool = True  # whether stacks are compared with stand-alone trainings

    def text(self, length: int | None = None) -> Any:
        """Return the task of the next byte, with the same number of bytes for every length."""
        length = length or self.scale.length
        batch = self.scale.batch * self.scale.length // length
        return language(batch=batch, length=length, format="huggingface", device=self.device)

    def short_text(self) -> Any:
        return self.text(self.scale.length // 2)

    def spans(self) -> Any:
        return denoising(
            batch=self.scale.batch,
            length=self.scale.length,
            format="huggingface",
            device=self.device,
        )

    def pictures(self) -> Any:
        source: Any = "digits"
        if self.images is not None:
            from safetensors.torch import load_file

            tensors = load_file(self.images)
            source = (tensors["images"], tensors["labels"])
        batch = 4 * self.scale.batch
        return images(source, batch, augment="flip", format="huggingface", device=self.device)


@dataclass(frozen=True)
class Architecture:
    """A model at any width, its task, and the seconds of a piece at each width.

    The seconds are those of an H200 that others used at the same time.
    """

    name: str
    build: Callable[[int], nn.Module]
    data: Callable[[], Any]
    seconds: tuple[float, ...] = (20, 20, 60)
    data_name: str = "python"


def architectures(setting: Setting) -> list[Architecture]:
    """Return the rows of the table."""
    scale = setting.scale
    text = setting.text

    def on_device(make: Callable[[int, Scale], nn.Module]) -> Callable[[int], nn.Module]:
        def build(width: int) -> nn.Module:
            with torch.device(setting.device):
                return make(width, scale)

        return build

    def pictures(width: int, scale: Scale) -> nn.Module:
        return vit(width, scale, colour=setting.images is not None)

    image_set = "digits" if setting.images is None else "cifar10"
    return [
        Architecture("llama", on_device(llama), text),
        Architecture("qwen3", on_device(qwen3), text, (28, 62, 110)),
        Architecture("gemma3", on_device(gemma3), text, (28, 62, 110)),
        Architecture("gpt2", on_device(gpt2), text),
        Architecture("t5", on_device(t5), setting.spans, (28, 30, 80), "python, masked spans"),
        Architecture("vit", on_device(pictures), setting.pictures, (20, 20, 60), image_set),
        # the scan of Hugging Face's Mamba is a loop over positions, so its pieces are shorter
        Architecture("mamba", on_device(mamba), setting.short_text, (40, 45, 60)),
    ]


def all_pieces(setting: Setting) -> list[Piece]:
    """Return the pieces in the order of their importance."""
    *quick, slow = architectures(setting)
    pieces: list[Piece] = []
    for row in quick:
        pieces += _pieces(row, setting, "mup")
    # the contrast: the base is the same, only larger widths differ
    pieces += _pieces(quick[0], setting, "standard")[1:]
    pieces += _pieces(slow, setting, "mup")
    for row in (*quick[1:], slow):
        pieces += _pieces(row, setting, "standard")[1:]
    return pieces


def _pieces(row: Architecture, setting: Setting, rule: str) -> list[Piece]:
    scale = setting.scale
    rates = [2.0 ** (scale.first_rate + k) for k in range(scale.rates)]
    options = {
        "rule": rule,
        "optimizer": "adamw",
        "base": scale.widths[0],
        "steps": scale.steps,
        "init": "fan-in",
        "weight_decay": 0.0,
        "schedule": "cosine",
        "warmup": max(1, scale.steps // 10),
        "clip": 1.0,
        "precision": "bfloat16" if setting.device.startswith("cuda") else "float32",
        "compile": False,  # compiling takes longer than these short pieces
        "verify": setting.verify,
    }
    pieces: list[Piece] = []
    for place, width in enumerate(scale.widths):
        pieces.append(
            Piece(
                name=f"{row.name}-{rule}-{width}",
                build=row.build,
                space={"lr": rates, "seed": range(scale.seeds)},
                data=row.data,
                seconds=row.seconds[place],
                options={**options, "widths": [width]},
                labels={"architecture": row.name, "data": row.data_name},
            )
        )
    return pieces


# --- results --------------------------------------------------------------------------------------


def report(records: Records) -> None:
    """Print the table: drift with its interval, verdict, and the loss at the largest width."""
    print(header("architecture", "rule", "widths"))
    for name, rule, rows in by_rule(records.rows()):
        print(line([name, rule, *transfer_cells(rows, "width")]))


def draw(records: Records, path: Path) -> None:
    """Draw the drift of every architecture and rule with its interval."""
    points: list[DriftPoint] = []
    for name, rule, rows in by_rule(records.rows()):
        drift = next(iter(transfer_study(rows, "width").drift.values()))
        points.append(DriftPoint(name, rule, drift.slope, drift.low, drift.high))
    draw_drifts(points, path)


def by_rule(frame: pandas.DataFrame) -> Iterator[tuple[str, str, pandas.DataFrame]]:
    """Yield architecture, rule and rows, if there are two widths or more."""
    for name, rows in frame.groupby("architecture", sort=False):
        for rule in ("mup", "standard"):
            part = with_base(rows, rule)
            if len(set(part["width"])) > 1:
                yield str(name), rule, part


def with_base(rows: pandas.DataFrame, rule: str) -> pandas.DataFrame:
    """Return the rows of a rule, with those of the base, where all rules are the same."""
    is_base = rows["width"] == rows["width"].min()
    chosen = cast(pandas.DataFrame, rows[is_base | (rows["rule"] == rule)])
    return chosen.assign(rule=rule)


def pack(folder: str, file: str) -> None:
    """Write images of CIFAR-10, evenly over the training set, and their labels."""
    from safetensors.torch import save_file

    from orderone.data.vision.sets import cifar10

    train, _ = cifar10(folder)
    chosen = torch.arange(0, len(train), len(train) // IMAGES)[:IMAGES]
    part = train.part(chosen)
    save_file({"images": part.images.contiguous(), "labels": part.labels}, file)


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    parser = command_line(__doc__ or "", FOLDER)
    parser.add_argument("--images", type=Path, help="file of --pack; otherwise digits")
    parser.add_argument("--pack", nargs=2, metavar=("FOLDER", "FILE"))
    parser.add_argument("--figure", type=Path, help="with --report: draw the drifts into this PNG")
    parser.add_argument(
        "--unproved", action="store_true", help="do not compare stacks with stand-alone trainings"
    )
    options = parser.parse_args(arguments)
    if options.pack:
        pack(*options.pack)
        return 0
    if options.report:
        records = Records(options.records)
        report(records)
        print(device_time(records))
        if options.figure is not None:
            draw(records, options.figure)
        return 0
    scale = TINY if options.tiny else FULL
    setting = Setting(scale, options.device, options.images, verify=not options.unproved)
    return 0 if run_command(all_pieces(setting), options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
