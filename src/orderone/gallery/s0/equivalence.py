"""S0 1.2.1: SP and NTK (and muP and MF) train identically, step by step, if the learning rates
shift with the multipliers.

    a + theta,   b - theta,   c - k theta

The paper has k = 1, which is right for Adam. SGD needs k = 2 and Adafactor k = 0 (erratum S0.3).
Networks with the same seed have the same weights up to their scale, so equivalent rules have equal
logits, up to rounding.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product

import pandas as pd
import torch

from orderone import rules
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.figures import GREY, SHADES, Trace, panels, scatter
from orderone.gallery.judge import finding, joined, only
from orderone.gallery.s0.bigram import Setting, network, observe, step
from orderone.nn import learning_rates
from orderone.theory.exponents import MATRIX_ROLES, Parameterization, max_lr, shift
from orderone.theory.exponents.updates import update_law

PAIRS = {"SP and NTK": ("sp", "ntk"), "muP and MF": ("mup", "mf")}
OPTIMIZERS = {"sign": "Adam without momentum", "sgd": "SGD", "adafactor": "Adafactor"}
SCALES = {
    "sign": 0.01,
    "sgd": 0.02,
    "adafactor": 0.01,
}  # C of (11), at which all three learn in a few steps
SHIFTS = {
    int(update_law(optimizer).gauge_weight): optimizer for optimizer in OPTIMIZERS
}  # k -> an optimizer with this k
MOVED = {0: "c unchanged", 1: "c - θ", 2: "c - 2θ"}
PRINTED = 1
ORIGINAL = -1  # in the column k: the rule without a shift
TOKENS = (0, 0, 1, 1, 2, 2, 3, 3)
TARGETS = (1, 2, 3, 4, 5, 6, 7, 8)  # two targets per token, so that no gradient can vanish
SAME = 1e-6  # relative to the logits: far above rounding in double precision over these steps
OTHER = 0.05  # a difference that is visible in the figure


@dataclass(frozen=True)
class Settings:
    seeds: int
    steps: int
    widths: tuple[int, ...]


def parts(settings: Settings) -> Parts:
    measured = {}
    for optimizer, pair in product(OPTIMIZERS, PAIRS):
        measured[f"{pair} {optimizer}"] = partial(measure, pair, optimizer, settings)
    return measured


def measure(pair: str, optimizer: str, settings: Settings) -> pd.DataFrame:
    """Return loss and largest difference of a logit from the original's, over their RMS, at every
    step."""
    first, second = (rules.get(name) for name in PAIRS[pair])
    first = first.with_c(max_lr(first, optimizer, "full"))
    theta = {role: second.a[role] - first.a[role] for role in MATRIX_ROLES}
    shifted = {k: shift(first, theta, like) for k, like in SHIFTS.items()}
    rows = []
    for width in settings.widths:
        for seed in range(settings.seeds):
            original = _train(first, optimizer, width, seed, settings.steps)
            for k, p in {ORIGINAL: first, **shifted}.items():
                if k == ORIGINAL:
                    run = original
                else:
                    run = _train(p, optimizer, width, seed, settings.steps)
                for i, ((loss, logits), (_, known)) in enumerate(zip(run, original, strict=True)):
                    apart = float((logits - known).abs().max() / known.pow(2).mean().sqrt())
                    rows.append((pair, optimizer, k, width, seed, i, loss, apart))
    return pd.DataFrame(
        rows, columns=["pair", "optimizer", "k", "width", "seed", "step", "loss", "apart"]
    )


def _train(
    p: Parameterization, optimizer: str, width: int, seed: int, steps: int
) -> list[tuple[float, torch.Tensor]]:
    """Return loss and logits before each step and after the last."""
    model = network(Setting(p), width, seed)
    tokens = torch.tensor(TOKENS)
    targets = torch.tensor(TARGETS)
    rates = learning_rates(model, p, width, SCALES[optimizer])
    trajectory = []
    for _ in range(steps + 1):
        state = observe(model, tokens, targets)
        trajectory.append(
            (float(torch.nn.functional.cross_entropy(state.h[-1], targets)), state.h[-1])
        )
        step(model, state, rates, optimizer)
    return trajectory


def judge(records: Records) -> list[Finding]:
    frame = joined(records)
    findings = []
    for optimizer, name in OPTIMIZERS.items():
        for pair in PAIRS:
            runs = only(frame, optimizer=optimizer, pair=pair)
            right = int(update_law(optimizer).gauge_weight)
            # the paper prints the shift for Adam only
            claim = f"{name}: {pair} train identically with c - θ"
            of = "paper" if optimizer == "sign" else "ours"
            findings.append(_finding(claim, runs, PRINTED, of=of))
            if right != PRINTED:
                findings.append(
                    _finding(
                        f"{name}: {pair} train identically with {MOVED[right]}", runs, right, "S0.3"
                    )
                )
    return findings


def _finding(
    claim: str, runs: pd.DataFrame, k: int, erratum: str = "", of: str = "paper"
) -> Finding:
    """Judge: equal at every step of every run, or visibly different in every run."""
    apart = only(runs, k=k).groupby(["width", "seed"]).apart.max()
    if (apart < SAME).all():
        held = True
    elif (apart > OTHER).all():
        held = False
    else:
        held = None
    numbers = (
        f"logits differ by {apart.min():.1e} to {apart.max():.1e} of their size in {len(apart)}"
        " runs"
    )
    return finding(claim, held, f"{numbers} of {runs.step.max()} steps", erratum, of)


def draw(records: Records) -> list[Picture | Grid]:
    frame = joined(records)
    pictures: list[Picture | Grid] = []
    for optimizer in OPTIMIZERS:
        pictures.append(_picture(optimizer, only(frame, optimizer=optimizer)))
    return [*pictures, _grid(frame)]


def _picture(optimizer: str, frame: pd.DataFrame) -> Picture:
    """Draw one network of the largest width: the original as a line, the shifted rules as marks."""
    one = only(frame, width=frame.width.max(), seed=frame.seed.min())
    data = []
    for row, pair in enumerate(PAIRS):
        for k in (ORIGINAL, *sorted(MOVED, reverse=True)):
            run = only(one, pair=pair, k=k)
            name, style = _style(k)
            data.append(
                scatter(run.step, run.loss, "" if row else name, row=row, legendgroup=name, **style)
            )
    name = OPTIMIZERS[optimizer]
    right = int(update_law(optimizer).gauge_weight)
    layout = panels([f"loss, {pair}" for pair in PAIRS], "step", share=True, log="y")
    alt = (
        f"Loss over {frame.step.max()} steps with {name}. Marks of the shift {MOVED[right]} lie on"
        " the line of the original rule (logits differ by at most"
        f" {only(frame, k=right).apart.max():.0e}); marks of the other two shifts do not."
    )
    return Picture(
        f"{name}: a rule and its shifted versions", {"data": data, "layout": layout}, alt
    )


def _style(k: int) -> tuple[str, Trace]:
    if k == ORIGINAL:
        return "SP, muP", {"line": {"color": GREY, "width": 5}}
    symbol = ("circle-open", "x-thin-open", "square-open")[k]
    marker = {
        "symbol": symbol,
        "size": 9,
        "color": SHADES[k],
        "line": {"width": 2, "color": SHADES[k]},
    }
    line = {"color": SHADES[k], "dash": "dot"}
    return f"NTK, MF: {MOVED[k]}", {"mode": "lines+markers", "marker": marker, "line": line}


def _grid(frame: pd.DataFrame) -> Grid:
    rows = []
    for optimizer, name in OPTIMIZERS.items():
        for pair in PAIRS:
            runs = only(frame, optimizer=optimizer, pair=pair)
            rows.append((name, pair, *(f"{only(runs, k=k).apart.max():.1e}" for k in MOVED)))
    return Grid(
        "Largest difference of a logit, in units of their RMS",
        ("optimizer", "rules", *MOVED.values()),
        rows,
    )


EXPERIMENT = Experiment(
    name="s0-equivalence",
    title="Equivalent parameterizations",
    place="section 1.2.1 and Table 1",
    claim=(
        "Moving theta from the initialization into the multiplier, with learning rates"
        " n^-(c - theta), leaves the conditions of stability as they are (section 1.2.1): SP is"
        " equivalent to NTK, and muP to MF (Table 1, Adam)."
    ),
    method=(
        "Bigram networks in double precision with the same seed under both rules and the largest"
        " stable learning rates of each optimizer; logits are compared at every step for the shifts"
        " c, c - theta and c - 2 theta."
    ),
    scales={
        "small": Settings(seeds=2, steps=10, widths=(100, 256)),
        "paper": Settings(seeds=8, steps=50, widths=(64, 100, 256, 1000)),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S0.3",),
)
