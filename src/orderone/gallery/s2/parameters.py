"""S2 II.1.B and II.2.B: the numbers of parameters of the three models, counted on the meta
device."""

from dataclasses import dataclass

import pandas as pd
import torch

from orderone import nn
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Records
from orderone.gallery.frames import Line

# The printed sum, the rounded number, and the unit of its last digit.
PRINTED = {
    "ViT-B/16": ("768·768 + 196·768 + 768²·(4+2·4)·12 + 768·1000 + 1000", 86e6, 1e6),
    "BART-large": ("50265·1024 + 2·514·1024 + 1024²·(4+2·4)·12 + 1024²·(4+4+2·4)·12", 405e6, 1e6),
    "R2C2": ("50265·2048 + 2·514·2048 + 2048²·(4+2·4)·22 + 2048²·(4+4+2·4)·22", 2.7e9, 1e8),
}
MODELS = dict(zip(PRINTED, (nn.vit_b16, nn.bart_large, nn.r2c2), strict=True))


@dataclass(frozen=True)
class Settings:
    """No settings: the models are fixed."""


def parts(settings: Settings) -> Parts:
    return {"counts": count}


def count() -> pd.DataFrame:
    rows = []
    for name, (formula, rounded, digit) in PRINTED.items():
        with torch.device("meta"):
            counted = sum(p.numel() for p in MODELS[name]().parameters())
        rows.append((name, counted, evaluated(formula), formula, rounded, digit))
    return pd.DataFrame(
        rows, columns=["model", "counted", "formula", "written", "rounded", "digit"]
    )


def evaluated(formula: str) -> int:
    """Evaluate a sum of products, in which ² is a square."""
    total = 0
    for term in formula.split(" + "):
        product = 1
        for factor in term.replace("(4+2·4)", "12").replace("(4+4+2·4)", "16").split("·"):
            product *= int(factor.removesuffix("²")) ** (2 if factor.endswith("²") else 1)
        total += product
    return total


def judge(records: Records) -> list[Finding]:
    return [_finding(row) for _, row in records["counts"].iterrows()]


def _finding(row: Line) -> Finding:
    exact = row.counted == row.formula
    near = abs(row.counted - row.rounded) <= row.digit / 2
    numbers = (
        f"the model has {row.counted:,}, the sum is {row.formula:,}, rounded"
        f" {row.rounded / 1e6:,.0f} million"
    )
    return Finding(
        f"{row.model} has about {row.rounded / 1e6:,.0f} million parameters",
        bool(exact and near),
        numbers,
    )


def draw(records: Records) -> list[Grid]:
    rows = [
        (r.model, f"{r.counted:,}", f"{r.formula:,}", f"{r.rounded:.3g}", r.written)
        for _, r in records["counts"].iterrows()
    ]
    return [Grid("Parameters", ("model", "counted", "the paper's sum", "rounded", "sum"), rows)]


EXPERIMENT = Experiment(
    name="s2-parameters",
    title="Three Transformers without biases and gains",
    place="sections II.1.B and II.2.B",
    claim=(
        "The Vision Transformer has about 86 million parameters, BART-large 405 million, R2C2 2.7"
        " billion."
    ),
    method=(
        "The parameters of the models of orderone.nn, counted on the meta device, compared with the"
        " sums that the paper prints."
    ),
    scales={"small": Settings(), "paper": Settings()},
    parts=parts,
    judge=judge,
    draw=draw,
)
