"""The best learning rate of GPTs of several widths.

    python benchmarks/transfer_study.py STORE [--widths 128,256,...]

A byte-level GPT of four layers on the text of the Python standard library: muP and the rule
`standard` (one learning rate for all tensors and widths), ten learning rates, three seeds, 1000
steps of AdamW with warm-up and cosine. Initial standard deviations are 0.02 at the smallest width;
both rules scale those of hidden matrices like 1/sqrt(fan-in). All runs of one width and rule are
one program. The store has all finished runs: after an interruption the same command continues, and
more widths can be added.

    --rules mup,sp    rules to compare
    --fan-in          matrices of the blocks start with variance 1 / fan_in instead of 0.02^2
    --csv FILE        writes the records, and their versions, device and settings as .json
    --tiny            tests the script on a CPU

The records of an H200 are in docs/results/transfer-gpt.csv (versions and commands in .json);
`--draw CSV PNG` prints their verdicts and draws them.
"""

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import pandas
import torch

import orderone as o1
from orderone.data import language
from orderone.nn import GPT

TINY = "--tiny" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, HEAD, BASE, DEPTH = (16, 16, 16, 2) if TINY else (128, 64, 128, 4)
FAN_IN: dict[str, float] | None = dict.fromkeys("QKVUWX", 1.0) if "--fan-in" in sys.argv else None
RATES = [2.0**k for k in (range(-9, -5) if TINY else range(-14, -4))]
SEEDS = range(2 if TINY else 3)
BATCH = 8
TRAINING: dict[str, Any] = {
    "optimizer": "adamw",
    "steps": 20 if TINY else 1000,
    "schedule": "cosine",
    "warmup": 5 if TINY else 100,
    "precision": "bfloat16" if DEVICE == "cuda" else "float32",
}


def build(width: int) -> torch.nn.Module:
    with torch.device(DEVICE):
        return GPT(
            vocab=256,
            length=LENGTH,
            width=width,
            heads=width // HEAD,
            depth=DEPTH,
            tied=False,
            C=FAN_IN,
        )


def option(name: str, otherwise: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise


def draw(records: str, picture: str) -> None:
    """Print and draw the verdicts; the column `start` distinguishes 0.02 and fan-in."""
    frame = pandas.read_csv(records)
    for start, part in frame.groupby("start"):
        study = o1.Transfer.from_frame(part.drop(columns=["start", "seconds"]))
        print(f"initial sizes: {start}\n{study}\n")
        if start == "0.02":
            o1.report.write_transfer_png(
                study, picture, "GPT of four layers, 1000 steps on bytes of Python code"
            )


def main() -> None:
    """Run the study of the command line."""
    if "--draw" in sys.argv:
        draw(*sys.argv[sys.argv.index("--draw") + 1 :][:2])
        return
    widths = [
        int(w) for w in option("--widths", "16,32" if TINY else "128,256,512,1024,2048").split(",")
    ]
    rules = option("--rules", "mup,standard").split(",")
    start = time.perf_counter()
    study = o1.sweep(
        build,
        {"lr": RATES, "seed": SEEDS},
        widths=widths,
        base=BASE,
        rule=rules,
        data=language(batch=BATCH, length=LENGTH),
        **TRAINING,
        compile=DEVICE == "cuda",
        store=sys.argv[1],
        device=DEVICE,
    )
    print(study.transfer())
    print(
        f"{study.ran} runs in {time.perf_counter() - start:.0f} s on {_machine()}, torch"
        f" {torch.__version__}"
    )
    if "--csv" in sys.argv:
        path = Path(option("--csv", ""))
        study.frame.to_csv(path, index=False)
        path.with_suffix(".json").write_text(
            json.dumps(made_with(path, widths, rules), indent=2) + "\n"
        )
        print(f"records: {path}; settings and versions: {path.with_suffix('.json')}")


def made_with(records: Path, widths: list[int], rules: list[str]) -> dict[str, Any]:
    """Return the versions and settings that are needed to reproduce the records."""
    return {
        "records": records.name,
        "commands": [" ".join(["python", *sys.argv])],
        "versions": {
            "orderone": o1.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "device": _machine(),
        **TRAINING,
        "data": "bytes of the Python standard library",
        "batch": BATCH,
        "length": LENGTH,
        "base": BASE,
        "depth": DEPTH,
        "head": HEAD,
        "widths": widths,
        "rules": rules,
        "rates": RATES,
        "seeds": list(SEEDS),
    }


def _machine() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"


if __name__ == "__main__":
    main()
