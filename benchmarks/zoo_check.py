"""A coordinate check of muP on every unmodified model of tests/support/zoo.py: verdicts, and the
quantities that do not pass.

python benchmarks/zoo_check.py [lr=0.01] [optimizer=adamw] [seeds=3] [name ...]
"""

import logging
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.zoo import ZOO

import orderone as o1

WIDTHS = (64, 128, 256, 512)
MEANT = {"whisper": "*embed_positions*"}  # sinusoids


def line(name: str, lr: float, optimizer: str, seeds: int) -> str:
    entry = ZOO[name]
    check = o1.coord_check(
        entry.build,
        WIDTHS,
        lr=lr,
        optimizer=optimizer,
        batches=entry.batch(0),
        loss=entry.loss,
        seeds=seeds,
        frozen=MEANT.get(name, ()),
    )
    counts = ", ".join(
        f"{check.count(v)} {v}" for v in ("PASS", "SHRINKS", "UNCLEAR", "FAIL") if check.count(v)
    )
    failed = [j for j in check.judgements if j.verdict == "FAIL"]
    failures = [f"{j.module} {j.quantity} {j.exponent:+.2f}" for j in failed[:3]]
    return f"| {name} | {check.verdict} | {counts} | {'; '.join([*check.causes[:1], *failures])}"


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    given = dict(word.split("=") for word in arguments if "=" in word)
    names = [word for word in arguments if "=" not in word] or list(ZOO)
    for name in names:
        print(
            line(
                name,
                float(given.get("lr", 1e-2)),
                given.get("optimizer", "adamw"),
                int(given.get("seeds", 3)),
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
