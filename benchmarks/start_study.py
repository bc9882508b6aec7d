"""Starts compared: keep, fan-in, zero-readout and completep, on four architectures.

    python benchmarks/start_study.py STORE CSV [--pieces table,study,depth] [--minutes 9]
        [--architectures llama,gpt2,vit,t5] [--optimizers adamw,muon]

The protocol was written before the results: docs/choosing-the-start.md, "The study". All models are
unmodified ones of Hugging Face with four layers and heads of 64 (32 for images), in bfloat16 on a
GPU, trained with warm-up and cosine; the base has width 128. Every piece is one sweep, whose trials
of one size and optimizer are one program. The store has all finished trials: the same command runs
only what is missing, and stops before a piece that would not end in time.

    table    Llama, AdamW, 400 steps of 16 x 256 bytes of Python code, widths 128 and 1024: muP and
             `standard` with rates from width 128 and tuned at width 1024; three seeds
    study    four architectures x AdamW and Muon x widths 128 and 512, six rates, three seeds (Muon
             two); and `standard` with the models' own start, tuned at width 512
    depth    Llama of 4 and 16 layers, depth="completep"

    --images FILE           images and labels of `--pack`; without it, scikit-learn's digits
    --pack FOLDER FILE      writes 12,000 images of CIFAR-10 from FOLDER as one file of 37 MB
    --known CSV             leaves out what these records have, and writes them with the new ones
    --unproved              does not compare stacks with stand-alone trainings: T5 in bfloat16
                            rounds so coarsely that the comparison fails (t5_rounding.py)
    --report CSV            prints the tables of the records
    --tiny                  tests the script on a CPU
"""

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pandas
import torch
import transformers
from scipy.stats import t as student
from torch import nn

import orderone as o1
from orderone.data import denoising, images, language

ROOT = Path(__file__).parents[1]
TINY = "--tiny" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BASE, WIDE, WIDEST = (32, 64, 64) if TINY else (128, 512, 1024)
LAYERS, DEEP = (1, 2) if TINY else (4, 16)
HEAD = 16 if TINY else 64
BATCH = 2 if TINY else 16
STEPS, TABLE_STEPS = (4, 4) if TINY else (250, 400)
LENGTH, TABLE_LENGTH = (16, 16) if TINY else (128, 256)
SEEDS = {"adamw": range(2 if TINY else 3), "muon": range(2)}
TABLE_SEEDS = range(2 if TINY else 3)
STARTS = ("keep", "fan-in", "zero-readout", "completep")
# a tied readout cannot be zero
TIED_STARTS = ("keep", "fan-in", "zero-residual", "completep")
NUMBER = 2 if TINY else 6  # of rates
CONFIDENCE = 0.95
IMAGES = 12_000
VOCAB = 256
SPECIAL = 4  # tokens of the denoising task
KEYS = ["piece", "architecture", "optimizer", "rule", "init", "depth", "width"]


def powers(first: int, number: int = NUMBER) -> list[float]:
    """Return powers of 2 from 2^first on."""
    return [2.0 ** (first + k) for k in range(number)]


def option(name: str, otherwise: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise


# --- models ---------------------------------------------------------------------------------------


def llama(width: int, depth: int = LAYERS) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        head_dim=HEAD,
        use_cache=False,
    )
    with torch.device(DEVICE):
        return transformers.LlamaForCausalLM(config)


def gpt2(width: int) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=width,
        n_layer=LAYERS,
        n_head=width // HEAD,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    with torch.device(DEVICE):
        return transformers.GPT2LMHeadModel(config)


def t5(width: int) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCAB + SPECIAL,
        d_model=width,
        d_kv=HEAD,
        d_ff=4 * width,
        num_layers=LAYERS,
        num_heads=width // HEAD,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    with torch.device(DEVICE):
        return transformers.T5ForConditionalGeneration(config)


def vit(width: int) -> nn.Module:
    is_colour = "--images" in sys.argv
    labels: dict[str, Any] = {"num_labels": 10}  # an option of all configurations
    config = transformers.ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=2 * width // HEAD,
        image_size=32 if is_colour else 8,
        patch_size=4 if is_colour else 2,
        num_channels=3 if is_colour else 1,
        **labels,
    )
    with torch.device(DEVICE):
        return transformers.ViTForImageClassification(config)


def pictures() -> Any:
    """Return the task of images: CIFAR-10 from `--images`, or scikit-learn's digits."""
    batch = 4 if TINY else 64
    source: Any = "digits"
    if "--images" in sys.argv:
        from safetensors.torch import load_file

        tensors = load_file(option("--images", ""))
        source = (tensors["images"], tensors["labels"])
    return images(source, batch, augment="flip", format="huggingface", device=DEVICE)


@dataclass(frozen=True)
class Architecture:
    """A model at any width, and its task."""

    build: Callable[[int], nn.Module]
    task: Callable[[], Any]
    starts: tuple[str, ...] = STARTS


def text() -> Any:
    return language(batch=BATCH, length=LENGTH, format="huggingface", device=DEVICE)


def spans() -> Any:
    return denoising(batch=BATCH, length=LENGTH, format="huggingface", device=DEVICE)


ARCHITECTURES = {
    "llama": Architecture(llama, text),
    "gpt2": Architecture(gpt2, text, TIED_STARTS),
    "vit": Architecture(vit, pictures),
    "t5": Architecture(t5, spans, TIED_STARTS),
}


# --- pieces ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """One sweep of the study."""

    name: str
    architecture: str
    build: Callable[..., nn.Module]
    task: Callable[[], Any]
    space: dict[str, Any]
    sizes: dict[str, Any]
    seconds: float  # estimate for one H200
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        several = [*self.space.values(), *self.sizes.values()]
        return math.prod(len(values) for values in several)


def all_pieces() -> Iterator[Piece]:
    """Yield the pieces in the order of their importance."""
    yield from _table()
    yield from _study("adamw")
    yield from _depth()
    yield from _study("muon")


def _table() -> Iterator[Piece]:
    def task() -> Any:
        return language(batch=BATCH, length=TABLE_LENGTH, format="huggingface", device=DEVICE)

    # at the size of the base both rules are the same
    parts = (("mup", BASE, -11, NUMBER, 15), ("mup", WIDEST, -11, NUMBER, 120))
    standard = ("standard", WIDEST, -14, NUMBER + 3, 170)
    for rule, width, first, number, seconds in (*parts, standard):
        yield Piece(
            name="table",
            architecture="llama",
            build=llama,
            task=task,
            space={
                "lr": powers(first, number),
                "init": ["keep", "fan-in"],
                "seed": TABLE_SEEDS,
                "rule": [rule],
            },
            sizes={"widths": [width]},
            seconds=seconds,
            options={"optimizer": "adamw", "steps": TABLE_STEPS},
        )


def _study(optimizer: str) -> Iterator[Piece]:
    for name, model in ARCHITECTURES.items():
        rates: dict[str, Any] = {"lr": powers(-11)}
        low: dict[str, Any] = {"lr": powers(-13)}
        if optimizer == "muon":  # the rate of hidden matrices; that of the others is fixed
            rates = {"lr.muon": powers(-9), "lr.adamw": [2.0**-8]}
            low = {"lr.muon": powers(-9), "lr.adamw": [2.0**-9]}
        shared = {"optimizer": optimizer, "steps": STEPS}
        for width, seconds in ((BASE, 15), (WIDE, 50)):
            yield Piece(
                name="study",
                architecture=name,
                build=model.build,
                task=model.task,
                space={**rates, "init": model.starts, "seed": SEEDS[optimizer], "rule": ["mup"]},
                sizes={"widths": [width]},
                seconds=seconds,
                options=shared,
            )
        yield Piece(
            name="study",
            architecture=name,
            build=model.build,
            task=model.task,
            space={**low, "init": ["keep"], "seed": SEEDS[optimizer], "rule": ["standard"]},
            sizes={"widths": [WIDE]},
            seconds=20,
            options=shared,
        )


def _depth() -> Iterator[Piece]:
    for depth, seconds in ((LAYERS, 20), (DEEP, 65)):
        yield Piece(
            name="depth",
            architecture="llama",
            build=llama,
            task=text,
            space={"lr": powers(-11), "init": STARTS, "seed": SEEDS["adamw"], "rule": ["mup"]},
            sizes={"widths": [BASE], "depths": [depth]},
            seconds=seconds,
            options={"optimizer": "adamw", "steps": STEPS, "depth": "completep"},
        )


def run(piece: Piece, store: str) -> pandas.DataFrame:
    """Train what is missing, and return all records of the piece."""
    base = {"width": BASE}
    if "depths" in piece.sizes:
        base["depth"] = LAYERS
    steps = piece.options["steps"]
    study = o1.sweep(
        piece.build,
        piece.space,
        **piece.sizes,
        **piece.options,
        base=base,
        data=piece.task(),
        weight_decay=0.0,
        schedule="cosine",
        warmup=max(1, steps // 10),
        clip=1.0,
        precision="bfloat16" if DEVICE == "cuda" else "float32",
        store=store,
        device=DEVICE,
        checkpoint_seconds=1e6,
        verify="--unproved" not in sys.argv,
        progress=False,
    )
    for note in study.notes:
        print(f"  note: {note}")
    frame = study.frame.assign(piece=piece.name, architecture=piece.architecture)
    if "depth" not in frame:
        frame["depth"] = LAYERS
    if "lr.muon" in frame:
        frame = frame.assign(lr=frame["lr.muon"])
    return frame


# --- records --------------------------------------------------------------------------------------


def report(frame: pandas.DataFrame) -> None:
    """Print loss at the optimum, drift of the optimum, and the cost of the carried rate."""
    frame = frame.assign(loss=frame["loss"].where(~frame["diverged"].astype(bool), math.inf))
    for piece, part in frame.groupby("piece"):
        axis = "depth" if piece == "depth" else "width"
        print(f"\n{piece}")
        print(
            f"| architecture | optimizer | rule | start | best at {axis} {part[axis].min()} (rate)"
            f" | {axis} {part[axis].max()}, carried rate | {axis} {part[axis].max()}, tuned (rate)"
            " | cost of carrying | drift, octaves | carried minus standard (keep, tuned) |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        keys = ["architecture", "optimizer", "rule", "init"]
        for names, rows in part.groupby(keys, sort=False):
            base = _base_rows(part, rows, axis)
            standard = _standard_rows(part, rows, axis)
            values = cast(tuple[str, ...], names)
            cells = [*map(str, values), *_cells(base, rows, standard, axis)]
            print("| " + " | ".join(cells) + " |")


def _base_rows(part: pandas.DataFrame, rows: pandas.DataFrame, axis: str) -> pandas.DataFrame:
    """Return the rows at the size of the base, where all rules are the same."""
    same = part[part[axis] == part[axis].min()]
    for key in ("architecture", "optimizer", "init"):
        same = same[same[key] == rows[key].iloc[0]]
    return cast(pandas.DataFrame, same)


def _standard_rows(part: pandas.DataFrame, rows: pandas.DataFrame, axis: str) -> pandas.DataFrame:
    """Return the rows of `standard` with the start of the model's code at the target's size."""
    same = part[(part[axis] == part[axis].max()) & (part["rule"] == "standard")]
    same = same[same["init"] == "keep"]
    for key in ("architecture", "optimizer"):
        same = same[same[key] == rows[key].iloc[0]]
    return cast(pandas.DataFrame, same).dropna(subset=["loss"])


def _cells(
    base: pandas.DataFrame, rows: pandas.DataFrame, standard: pandas.DataFrame, axis: str
) -> list[str]:
    target = cast(pandas.DataFrame, rows[rows[axis] == rows[axis].max()])
    if base.empty or bool(target[axis].max() == base[axis].max()):
        return ["-"] * 6
    base_lr = _best_rate(base)
    target_lr = _best_rate(target)
    best = _at(target, target_lr)
    carried = _at(target, base_lr)
    cells = [f"{_interval(_at(base, base_lr))} ({base_lr:.3g})"]
    cells.append(_interval(carried) if len(carried) else "not in the grid")
    cells.append(f"{_interval(best)} ({target_lr:.3g})")
    if len(carried):
        cells.append(_interval(carried - best))  # by seed
    else:
        cells.append("-")
    cells.append(f"{math.log2(target_lr / base_lr):+.0f}")
    if len(carried) and len(standard):
        cells.append(_interval(carried - _at(standard, _best_rate(standard))))
    else:
        cells.append("-")
    return cells


def _best_rate(rows: pandas.DataFrame) -> float:
    means = cast(pandas.Series, rows.groupby("lr")["loss"].mean())
    return float(cast(float, means.idxmin()))


def _at(rows: pandas.DataFrame, lr: float) -> pandas.Series:
    chosen = cast(pandas.DataFrame, rows[rows["lr"] == lr])
    return cast(pandas.Series, chosen.set_index("seed")["loss"]).sort_index()


def _interval(values: pandas.Series) -> str:
    """Return the mean with its confidence interval over seeds."""
    mean = float(values.mean())
    if not math.isfinite(mean):
        return "diverges"
    if len(values) < 2:
        return f"{mean:.3f}"
    error = float(values.std() / len(values) ** 0.5)
    width = error * float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return f"{mean:.3f} ± {width:.3f}"


def pack(folder: str, file: str) -> None:
    """Write 12,000 images of CIFAR-10, evenly over the files of the training set, and labels."""
    from safetensors.torch import save_file

    from orderone.data.vision.sets import cifar10

    train, _ = cifar10(folder)
    chosen = torch.arange(0, len(train), len(train) // IMAGES)[:IMAGES]
    part = train.part(chosen)
    save_file({"images": part.images.contiguous(), "labels": part.labels}, file)


def made_with() -> dict[str, Any]:
    """Return the versions and settings that are needed to reproduce the records."""
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    return {
        "command": " ".join(["python", *sys.argv]),
        "versions": {
            "orderone": o1.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "device": device,
        "base": BASE,
        "steps": [TABLE_STEPS, STEPS],
        "lengths": [TABLE_LENGTH, LENGTH],
        "batch": BATCH,
        "layers": [LAYERS, DEEP],
        "head": HEAD,
        "images": "CIFAR-10" if "--images" in sys.argv else "digits",
    }


def is_wanted(piece: Piece) -> bool:
    """Return whether the options of the command line ask for this piece."""
    pieces = option("--pieces", "table,study,depth").split(",")
    architectures = option("--architectures", ",".join(ARCHITECTURES)).split(",")
    optimizers = option("--optimizers", "adamw,muon").split(",")
    return (
        piece.name in pieces
        and piece.architecture in architectures
        and piece.options["optimizer"] in optimizers
    )


def known_records() -> pandas.DataFrame | None:
    """Return the records of the option `--known`, whose digits are written again unchanged."""
    if "--known" not in sys.argv:
        return None
    return pandas.read_csv(option("--known", ""), float_precision="round_trip")


def is_known(piece: Piece, known: pandas.DataFrame | None) -> bool:
    """Return whether records have trainings of this piece, with any number of seeds."""
    if known is None:
        return False
    same = known[known["piece"] == piece.name]
    same = same[same["architecture"] == piece.architecture]
    same = same[same["optimizer"] == piece.options["optimizer"]]
    same = same[same["rule"] == piece.space["rule"][0]]
    for axis, values in piece.sizes.items():
        same = same[same[axis.removesuffix("s")] == values[0]]
    return len(same) > 0


def main() -> None:
    """Run the pieces of the command line."""
    if "--pack" in sys.argv:
        pack(*sys.argv[sys.argv.index("--pack") + 1 :][:2])
        return
    if "--report" in sys.argv:
        report(pandas.read_csv(option("--report", "")))
        return
    store, csv = sys.argv[1:3]
    minutes = float(option("--minutes", "60"))
    known = known_records()
    pieces = [piece for piece in all_pieces() if is_wanted(piece) and not is_known(piece, known)]
    trials = sum(piece.trials for piece in pieces)
    estimate = sum(piece.seconds for piece in pieces) / 60
    print(
        f"{len(pieces)} sweeps, {trials} trainings, about {estimate:.0f} minutes on an H200;"
        f" stops after {minutes:g} minutes",
        flush=True,
    )
    start = time.perf_counter()
    frames = [] if known is None else [known]
    for piece in pieces:
        begun = time.perf_counter()
        if begun - start + piece.seconds > 60 * minutes:
            print(f"left for the next call: {piece.name} {piece.architecture} {piece.sizes}")
            continue
        try:
            frames.append(run(piece, store))
        except Exception as error:  # the other pieces count without it
            print(f"failed: {piece.name} {piece.architecture}: {type(error).__name__}: {error}")
            continue
        seconds = time.perf_counter() - begun
        labels = f"{piece.options['optimizer']}, {piece.space['rule'][0]}, {piece.sizes}"
        print(f"{piece.name} {piece.architecture}, {labels}: {seconds:.0f} s", flush=True)
        pandas.concat(frames).to_csv(csv, index=False)
        Path(csv).with_suffix(".json").write_text(json.dumps(made_with(), indent=2) + "\n")
    if frames:
        report(pandas.concat(frames))


if __name__ == "__main__":
    main()
