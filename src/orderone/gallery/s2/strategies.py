"""S2 Tables II.1.E and II.2.E: initial standard deviations and relative learning rates of every
group.

The printed powers of n_in = 768, n and n_out = 1000 are compared with `theory.lr_factors` and
`theory.init_std` at several widths, and with the learning rates that a plan assigns to the tensors
of a Vision Transformer. Exponents that are misprinted are read as in footnotes 8 and 26 (erratum
S2.9). The tables omit the factor M = 4 of the MLP (footnote 41).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderone import nn, theory
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Records
from orderone.gallery.frames import Frame
from orderone.gallery.s2.strategy_runs import MLP, STRATEGIES, Point, Training, optimizer_of

N_IN = 768
N_OUT = 1000
TABLE_WIDTH = 768
HIDDEN = ("QKVU", "W", "X")
Powers = tuple[float, float, float]  # of n_in, n and n_out
ONE: Powers = (0.0, 0.0, 0.0)


def vision(lift: float) -> dict[str, Powers]:
    """Return the learning rates of II.1.E except standard: below the head, n^lift times those of
    neural-tangent."""
    below = {
        "patch": (-1.0, lift - 0.5, 0.0),
        "PE": (0.0, lift - 0.5, 0.0),
        **dict.fromkeys(HIDDEN, (0.0, lift - 1.5, 0.0)),
    }
    return below | {"head": (0.0, -1.0, -0.5), "head_bias": (0.0, 0.0, -0.5)}


RATES: dict[str, dict[str, dict[str, Powers]]] = {
    "vision": {
        "standard": dict.fromkeys(vision(0.0), ONE),
        "neural-tangent": vision(0.0),
        "hybrid": vision(0.25),
        "maximal-update": vision(0.5),
    },
    "language": {
        "standard": dict.fromkeys(("WE", "PE", *HIDDEN), ONE),
        "neural-tangent": {
            "WE": (0.0, -0.5, 0.0),
            "PE": (0.0, -0.5, 0.0),
            **dict.fromkeys(HIDDEN, (0.0, -1.5, 0.0)),
        },
    },
}
# Powers of initial deviations, up to constants of order one; HEADS has those of the head.
HEADS = {"standard": -0.5, "neural-tangent": -0.5, "hybrid": -0.75, "maximal-update": -1.0}
STDS: dict[str, Powers] = {"patch": (-0.5, 0.0, 0.0), **dict.fromkeys(HIDDEN, (0.0, -0.5, 0.0))}
ILLEGIBLE = "20 · 768^(-3/2)"  # a number of II.1.E whose power of ten cannot be read
EQUAL = 1e-9  # relative tolerance: rounding only


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...] = (TABLE_WIDTH, 1024, 3072)


def parts(settings: Settings) -> Parts:
    return {
        "tables": lambda: pd.DataFrame(
            tables(settings), columns=["task", "strategy", "group", "what", "n", "printed", "ours"]
        ),
        "plan": planned,
        "numbers": numbers,
    }


def value(powers: Powers, n: int) -> float:
    return float(N_IN ** powers[0] * n ** powers[1] * N_OUT ** powers[2])


def tables(settings: Settings) -> Iterator[tuple[object, ...]]:
    """Yield printed and predicted values, both without M."""
    for task, strategies in RATES.items():
        for strategy, groups in strategies.items():
            for n in settings.widths:
                rates = theory.lr_factors(strategy, "adamw", n=n, n_in=N_IN, n_out=N_OUT, mlp=1)
                stds = theory.init_std(strategy, n=n, n_in=N_IN, n_out=N_OUT, mlp=1)
                for group, powers in groups.items():
                    yield task, strategy, group, "lr", n, value(powers, n), rates[group]
                if task == "vision":
                    printed = STDS | {"head": (0.0, HEADS[strategy], 0.0)}
                else:
                    printed = {}
                for group, powers in printed.items():
                    yield task, strategy, group, "std", n, value(powers, n), stds[group]


def planned() -> pd.DataFrame:
    """Return the learning rates of tensors of ViT-B/16, one per group, at lr = 1."""
    names = {
        "patch": "patchify.weight",
        "PE": "positions.weight",
        "QKVU": "layers.0.attention.query.weight",
        "W": "layers.0.mlp.up.weight",
        "X": "layers.0.mlp.down.weight",
        "head": "head.weight",
        "head_bias": "head.bias",
    }
    rows = []
    how = Training(1, 0, 1, "cosine", 0.999, 1e-8)
    for strategy in STRATEGIES:
        model = nn.vit_b16(depth=1)
        start = theory.vision_constants()
        optimizer = optimizer_of(model, Point(strategy, 1.0, 0.0, 0), how, start)
        rate = {}
        for group in optimizer.param_groups:
            rate |= dict.fromkeys(map(id, group["params"]), group["lr"])
        tensors = dict(model.named_parameters())
        for role, name in names.items():
            printed = value(RATES["vision"][strategy][role], TABLE_WIDTH)
            rows.append((strategy, role, name, printed, rate[id(tensors[name])]))
    return pd.DataFrame(rows, columns=["strategy", "group", "tensor", "printed", "planned"])


def numbers() -> pd.DataFrame:
    """Return numbers of the text: the effective learning rate of II.1.E, C_WE of II.2.C, and the
    effect of M on W and X."""
    with_M = theory.lr_factors(
        "neural-tangent", "adamw", n=TABLE_WIDTH, n_in=N_IN, n_out=N_OUT, mlp=MLP
    )
    words = theory.language_constants(1024, MLP)["WE"]
    rows = [
        (ILLEGIBLE, math.nan, 20 * with_M["QKVU"]),
        ("C_WE of BART", 0.02, words),
        ("standard deviation of its words", theory.LANGUAGE_STD, words**0.5),
        (
            "W, theory over table",
            1.0,
            with_M["W"] / value(RATES["vision"]["neural-tangent"]["W"], TABLE_WIDTH),
        ),
        (
            "X, theory over table",
            1.0,
            with_M["X"] / value(RATES["vision"]["neural-tangent"]["X"], TABLE_WIDTH),
        ),
    ]
    return pd.DataFrame(rows, columns=["number", "printed", "ours"])


def judge(records: Records) -> list[Finding]:
    text: Frame = records["numbers"].set_index("number")
    return [
        *_tables(records["tables"]),
        _plan(records["plan"]),
        *_arithmetic(text),
        *_variance(text),
        *_mlp(text),
    ]


def _tables(frame: Frame) -> Iterator[Finding]:
    for (task, strategy), rows in frame.groupby(["task", "strategy"], sort=False):
        same = np.isclose(rows.printed, rows.ours, rtol=EQUAL, atol=0)
        wrong = ", ".join(
            f"{r.what} of {r.group}"
            for r in rows[~same].drop_duplicates(["what", "group"]).itertuples()
        )
        numbers = f"{same.sum()} of {len(same)} entries agree, over {rows.n.nunique()} widths"
        if wrong:
            numbers += f"; not {wrong}"
        claim = f"{task}, {strategy}: initial sizes and learning rates are as predicted without M"
        yield Finding(claim, bool(same.all()), numbers)


def _plan(frame: Frame) -> Finding:
    same = np.isclose(frame.printed, frame.planned, rtol=1e-6, atol=0)
    claim = "a plan assigns the learning rates of II.1.E to the tensors of ViT-B/16"
    return Finding(
        claim, bool(same.all()), f"{same.sum()} of {len(same)} tensors", "corrected", "S2.9"
    )


def _arithmetic(text: Frame) -> Iterator[Finding]:
    row = text.loc[ILLEGIBLE]
    yield Finding(
        "20 · 768^(-3/2) is 9.4e-4, which is near 0.001",
        bool(np.isclose(row.ours, 9.4e-4, rtol=0.01)),
        f"{row.ours:.4g}; the power of ten in II.1.E is not legible",
        "ours",
    )


def _variance(text: Frame) -> Iterator[Finding]:
    row = text.loc["C_WE of BART"]
    std = float(text.loc["standard deviation of its words"].printed)
    numbers = (
        f"a standard deviation of {std:g} is C = {row.ours:.3g}, and C = {row.printed:g} is one"
        f" of {row.printed**0.5:.3g}"
    )
    yield Finding(
        "BART's C_PE = C_WE = .02 is a standard deviation of .02",
        bool(np.isclose(row.ours, row.printed)),
        numbers,
    )
    yield Finding(
        "C_PE = C_WE = (.02)², as for R2C2",
        bool(np.isclose(row.ours, std**2)),
        numbers,
        "corrected",
        "S2.8",
    )


def _mlp(text: Frame) -> Iterator[Finding]:
    ratios = {name: float(text.loc[f"{name}, theory over table"].ours) for name in ("W", "X")}
    listed = ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items())
    numbers = f"theory over table: {listed}"
    right = np.isclose(ratios["W"], MLP**-0.5) and np.isclose(ratios["X"], 1 / MLP)
    claim = "the tables leave out M = 4: M^(-1/2) for W and M^(-1) for X (footnote 41)"
    yield Finding(claim, bool(right), numbers)


def draw(records: Records) -> list[Grid]:
    frame: Frame = records["tables"]
    grids = []
    for task in RATES:
        n = TABLE_WIDTH if task == "vision" else 1024
        rows = frame[(frame.task == task) & (frame.n == n)]
        lines = [
            (
                r.strategy,
                r.group,
                {"lr": "relative lr", "std": "initial std"}[r.what],
                f"{r.printed:.4g}",
                f"{r.ours:.4g}",
            )
            for r in rows.itertuples()
        ]
        head = ("strategy", "group", "quantity", "paper", "theory")
        grids.append(
            Grid(
                f"{task.capitalize()}, n = {n}",
                head,
                lines,
                "Without constants of order one and without M.",
            )
        )
    numbers: Frame = records["numbers"]
    lines = []
    for r in numbers.itertuples():
        if r.number == ILLEGIBLE:
            printed = "0.94, power of ten illegible"
        else:
            printed = f"{r.printed:.4g}"
        lines.append((r.number, printed, f"{r.ours:.4g}"))
    return [*grids, Grid("Numbers in the text", ("number", "paper", "here"), lines)]


EXPERIMENT = Experiment(
    name="s2-strategies",
    title="Four scaling strategies, group by group",
    place="sections II.1.C, II.1.D, II.2.C and II.2.D",
    claim=(
        "The tables of initial standard deviations and relative learning rates that the"
        " experiments use follow from the theory."
    ),
    method=(
        "The printed powers of n_in, n and n_out, compared with theory.lr_factors and"
        " theory.init_std at three widths, and with the learning rates that a plan assigns to the"
        " tensors of a Vision Transformer."
    ),
    scales={"small": Settings(), "paper": Settings()},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S2.8", "S2.9"),
)
