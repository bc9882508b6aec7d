"""S0 Table 3, column Δh_{L+2}: the change of the logits in a step, SP against muP, over widths.

Under Condition A.2 the change stays of order one in SP; under (31) it grows like sqrt(n) in SP and
not in muP. Training tokens follow (31) (erratum S0.5). In a linear network, held-out tokens have no
direction in common with training tokens: their change is n^0 in SP and n^{-1/2} in muP. In a ReLU
network all tokens have a direction in common, and the change grows in SP.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
import pandas as pd

from orderone import rules
from orderone.core.colours import rule_colours
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.exponent_table import holds, interval
from orderone.gallery.figures import GREY, Trace, panels, scatter
from orderone.gallery.judge import finding, joined, known, only, together
from orderone.gallery.s0.alignment import BEND
from orderone.gallery.s0.bigram import HELD_OUT, TRAINED, WIDTHS, Setting, simulate
from orderone.measure import fit_exponent

RULES = {"sp": "SP", "mup": "muP"}
ACTIVATIONS = {"linear": "linear networks", "relu": "ReLU networks"}
TOKENS = {TRAINED: "tokens trained on", HELD_OUT: "other tokens"}
VOCAB = 12
BATCH = (0, 1, 2, 3)
TARGETS = (1, 2, 3, 4)
STEPS = 3
SCALE = 0.01
CHANGE = "Δh5"
# Predicted exponents: with alignment at the readout, and without (linear networks, other tokens).
ALIGNED = {"sp": 0.5, "mup": 0.0}
ALONE = {"sp": 0.0, "mup": -0.5}
POWERS = dict.fromkeys(product(ACTIVATIONS, TOKENS), ALIGNED)
POWERS["linear", HELD_OUT] = ALONE
CONFIDENCE = 0.999  # of each of eight intervals
Fits: TypeAlias = dict[tuple[str, str], pd.Series]  # by activation and tokens


@dataclass(frozen=True)
class Claim:
    """The exponent of the change of the logits, in networks of these activations."""

    text: str
    rule: str
    activations: tuple[str, ...]
    tokens: str
    exponent: str
    erratum: str = ""


BOTH = tuple(ACTIVATIONS)
CLAIMS = (
    Claim(
        "SP: the logits of training tokens change by n^0 (Condition A.2)", "sp", BOTH, TRAINED, "0"
    ),
    Claim(
        "SP: the logits of training tokens change by n^1/2 (31)", "sp", BOTH, TRAINED, "1/2", "S0.5"
    ),
    Claim("muP: the logits of training tokens change by n^0", "mup", BOTH, TRAINED, "0"),
    Claim(
        "SP, linear networks: the logits of other tokens change by n^0",
        "sp",
        ("linear",),
        HELD_OUT,
        "0",
        "S0.5",
    ),
    Claim(
        "muP, linear networks: the logits of other tokens change by n^-1/2",
        "mup",
        ("linear",),
        HELD_OUT,
        "-1/2",
        "S0.5",
    ),
)


@dataclass(frozen=True)
class Settings:
    seeds: int  # networks at the largest width
    widths: tuple[int, ...] = WIDTHS


def parts(settings: Settings) -> Parts:
    measured = {}
    for rule, activation in product(RULES, ACTIVATIONS):
        measured[f"{rule} {activation}"] = partial(measure, rule, activation, settings)
    return measured


def measure(rule: str, activation: str, settings: Settings) -> pd.DataFrame:
    batch = {
        "vocab": VOCAB,
        "tokens": BATCH,
        "targets": TARGETS,
        "held_out": tuple(range(len(BATCH), VOCAB)),
    }
    setting = Setting(rules.get(rule), steps=STEPS, scale=SCALE, activation=activation, **batch)
    last = only(simulate(setting, settings.widths, settings.seeds), step=STEPS, quantity=CHANGE)
    return last.assign(rule=rule, activation=activation).drop(columns=["step", "quantity"])


def judge(records: Records) -> list[Finding]:
    fits = fitted(records)
    findings = [_equal(claim, fits) for claim in CLAIMS]
    grows = "SP, ReLU networks: the change of other tokens' logits grows with the width too"
    return [*findings, _grows(grows, fits["sp"]["relu", HELD_OUT])]


def fitted(records: Records) -> dict[str, Fits]:
    """Return straight fits: rule -> (activation, tokens) -> interval."""
    frame = joined(records)
    fits = {}
    for rule in RULES:
        fits[rule] = {}
        for activation in ACTIVATIONS:
            for tokens in TOKENS:
                runs = only(frame, rule=rule, activation=activation, tokens=tokens)
                fits[rule][activation, tokens] = _fit(runs)
    return fits


def _fit(runs: pd.DataFrame) -> pd.Series:
    if not known(runs.value):
        return pd.Series({"measured": np.nan, "low": np.nan, "high": np.nan})
    fit = fit_exponent(runs.width, runs.value, confidence=CONFIDENCE, correction=False)
    return pd.Series({"measured": fit.exponent, "low": fit.low, "high": fit.high})


def _equal(claim: Claim, fits: dict[str, Fits]) -> Finding:
    """Judge whether the exponent holds in all of these networks."""
    lines = {key: fits[claim.rule][key, claim.tokens] for key in claim.activations}
    numbers = "; ".join(f"{activation}: n^{interval(line)}" for activation, line in lines.items())
    verdict = together(holds(claim.exponent, line, BEND) for line in lines.values())
    return finding(claim.text, verdict, numbers, claim.erratum)


def _grows(claim: str, line: pd.Series) -> Finding:
    if line.low > BEND:
        held = True
    elif line.high < BEND:
        held = False
    else:
        held = None
    return finding(claim, held, f"n^{interval(line)}", "S0.5")


def draw(records: Records) -> list[Picture]:
    frame = joined(records)
    fits = fitted(records)
    return [
        _picture(activation, only(frame, activation=activation), fits) for activation in ACTIVATIONS
    ]


def _picture(activation: str, frame: pd.DataFrame, fits: dict[str, Fits]) -> Picture:
    """Draw networks as dots, geometric means as lines, and the predicted powers."""
    data = []
    for row, tokens in enumerate(TOKENS):
        for rule, shade in rule_colours(list(RULES)).items():
            data += _traces(
                only(frame, rule=rule, tokens=tokens), POWERS[activation, tokens][rule], shade, row
            )
    data.append(scatter([None], [None], "power of theory", line={"color": GREY, "dash": "dash"}))
    layout = panels(
        [f"RMS change, {words}" for words in TOKENS.values()],
        "width n",
        share=True,
        height=280,
        log="xy",
    )
    for row in (1, 2):
        layout[f"xaxis{row}"]["tickvals"] = sorted(set(frame.width.to_list()))
        layout[f"yaxis{row}"]["dtick"] = "D2"
    powers = []
    for rule, tokens in product(RULES, TOKENS):
        power = fits[rule][activation, tokens].measured
        powers.append(f"{RULES[rule]} n^{power:+.2f} on {TOKENS[tokens]}")
    alt = (
        f"RMS of the change of the logits in a step against the width, {ACTIVATIONS[activation]}:"
        f" {'; '.join(powers)}."
    )
    return Picture(
        f"Change of the logits, {ACTIVATIONS[activation]}", {"data": data, "layout": layout}, alt
    )


def _traces(runs: pd.DataFrame, power: float, shade: str, row: int) -> list[Trace]:
    mean = np.exp(np.log(runs.value).groupby(runs.width).mean())
    widths = mean.index.to_numpy()
    law = mean.iloc[-1] * (widths / widths[-1]) ** power
    if row:
        name = ""
    else:
        name = f"{RULES[runs.rule.iloc[0]]}, mean"
    return [
        scatter(
            runs.width,
            runs.value,
            row=row,
            mode="markers",
            marker={"color": shade, "size": 5},
            opacity=0.35,
        ),
        scatter(
            widths.tolist(),
            mean,
            name,
            row=row,
            mode="lines+markers",
            line={"color": shade, "width": 2.5},
        ),
        scatter(
            widths.tolist(),
            law.tolist(),
            row=row,
            line={"color": shade, "dash": "dash", "width": 1.5},
        ),
    ]


EXPERIMENT = Experiment(
    name="s0-logits",
    title="Logits of SP against muP",
    place="Condition A.2, (31) and Table 3",
    claim=(
        "The logits of SP change by order one in a step if W Δh does not align at the readout, and"
        " by n^1/2 if it does. The logits of muP change by order one in both cases."
    ),
    method=(
        "Bigram networks with three hidden layers, linear and ReLU; three sign steps on four tokens"
        " at the learning rates of Table 1; a power of the width is fitted to the RMS of the change"
        " in the third step, with 99.9 % intervals."
    ),
    scales={"small": Settings(seeds=4), "paper": Settings(seeds=32, widths=(*WIDTHS, 2048, 4096))},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S0.5",),
)
