"""S0 Table 3, column Δh_{L+2}: by how much logits change in a step, SP against muP, over widths.

With Condition A.2 SP's change stays of order one; with (31) it grows like sqrt(n), and muP's does not. Training tokens follow
(31) (erratum S0.5). Tokens that are not trained on see less of it in a linear network, where they share nothing with the
trained ones: SP's change is then n^0 and muP's n^{-1/2}. Behind ReLUs all tokens have a direction in common, and SP's
grows.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderone import rules
from orderone.gallery.bigram import HELD_OUT, TRAINED, WIDTHS, Setting, simulate
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.exponent_table import holds, interval
from orderone.gallery.layouts import SHADES, panels
from orderone.gallery.s0_alignment import BEND
from orderone.measure import fit_exponent

RULES = {"sp": "SP", "mup": "muP"}
ACTIVATIONS = {"linear": "linear networks", "relu": "ReLU networks"}
TOKENS = {TRAINED: "tokens trained on", HELD_OUT: "other tokens"}
TRAINING = {"steps": 3, "scale": 0.01, "vocab": 12, "tokens": (0, 1, 2, 3), "targets": (1, 2, 3, 4)}
CHANGE = "Δh5"
CONFIDENCE = 0.999  # of each of eight intervals


@dataclass(frozen=True)
class Settings:
    seeds: int  # networks at the largest width
    widths: tuple[int, ...] = WIDTHS


def parts(settings: Settings) -> Parts:
    return {
        f"{rule} {activation}": lambda rule=rule, activation=activation: measure(rule, activation, settings)
        for rule in RULES
        for activation in ACTIVATIONS
    }


def measure(rule: str, activation: str, settings: Settings) -> pd.DataFrame:
    held_out = tuple(range(len(TRAINING["tokens"]), TRAINING["vocab"]))
    setting = Setting(rules.get(rule), activation=activation, held_out=held_out, **TRAINING)
    frame = simulate(setting, settings.widths, settings.seeds)
    last = frame[(frame.step == frame.step.max()) & (frame.quantity == CHANGE)]
    return last.assign(rule=rule, activation=activation)[["rule", "activation", "tokens", "width", "seed", "value"]]


def judge(records: Records) -> list[Finding]:
    fit = fitted(records)
    linear, relu = ("linear", "relu")
    return [
        _equal("SP: the logits of training tokens change by n^0 (Condition A.2)", fit, "sp", ACTIVATIONS, TRAINED, "0"),
        _equal("SP: they change by n^1/2 (31)", fit, "sp", ACTIVATIONS, TRAINED, "1/2", "S0.5"),
        _equal("muP: the logits of training tokens change by n^0", fit, "mup", ACTIVATIONS, TRAINED, "0"),
        _equal("SP, linear network: those of other tokens change by n^0", fit, "sp", [linear], HELD_OUT, "0", "S0.5"),
        _equal("muP, linear network: those of other tokens by n^-1/2", fit, "mup", [linear], HELD_OUT, "-1/2", "S0.5"),
        _grows("SP, ReLU network: those of other tokens grow too", fit.loc["sp", relu, HELD_OUT]),
    ]


def fitted(records: Records) -> pd.DataFrame:
    """Straight fits, by rule, activation and tokens."""
    keys = ["rule", "activation", "tokens"]
    rows = {}
    for key, group in pd.concat(records.values()).groupby(keys, sort=False):
        fit = fit_exponent(group.width, group.value, confidence=CONFIDENCE, correction=False)
        rows[key] = {"measured": fit.exponent, "low": fit.low, "high": fit.high}
    frame = pd.DataFrame.from_dict(rows, orient="index")
    return frame.set_index(pd.MultiIndex.from_tuples(rows, names=keys))


def _equal(claim, fit: pd.DataFrame, rule: str, activations, tokens: str, exponent: str, erratum: str = "") -> Finding:
    """In all of these networks."""
    lines = [(activation, fit.loc[rule, activation, tokens]) for activation in activations]
    told = [holds(exponent, line, BEND) for _, line in lines]
    numbers = "; ".join(f"{activation}: n^{interval(line)}" for activation, line in lines)
    held = False if False in told else None if None in told else True
    return Finding(claim, held, numbers, "corrected" if erratum else "paper", erratum)


def _grows(claim: str, line: pd.Series) -> Finding:
    held = True if line.low > BEND else False if line.high < BEND else None
    return Finding(claim, held, f"n^{interval(line)}", "corrected", "S0.5")


def draw(records: Records) -> list[Picture]:
    frame, fit = pd.concat(records.values(), ignore_index=True), fitted(records)
    return [_picture(activation, frame[frame.activation == activation], fit) for activation in ACTIVATIONS]


def _picture(activation: str, frame: pd.DataFrame, fit: pd.DataFrame) -> Picture:
    """Each network a dot, the mean of logarithms a line; n^{1/2} and n^0 as guides."""
    data = []
    for row, tokens in enumerate(TOKENS):
        for rule, shade in zip(RULES, SHADES, strict=False):
            runs = frame[(frame.rule == rule) & (frame.tokens == tokens)]
            mean = np.exp(np.log(runs.value).groupby(runs.width).mean())
            data += _dots(runs, mean, f"{RULES[rule]}", shade, row)
            slope = 0.5 if rule == "sp" else 0.0
            guide = mean.iloc[0] * (mean.index / mean.index[0]) ** slope
            name = f"{RULES[rule]}: n<sup>{'1/2' if slope else '0'}</sup>"
            line = {"color": shade, "dash": "dash", "width": 1.5}
            data.append(_line(mean.index, guide, name, row) | {"line": line})
    layout = panels([f"RMS change, {words}" for words in TOKENS.values()], "width n", share=True, height=280, log="xy")
    for row in (1, 2):
        layout[f"xaxis{row}"] |= {"tickvals": sorted(int(n) for n in frame.width.unique())}
    said = "; ".join(
        f"{RULES[rule]} n^{fit.loc[(rule, activation, tokens), 'measured']:+.2f} on {words}"
        for rule in RULES
        for tokens, words in TOKENS.items()
    )
    alt = f"RMS of the change of the logits in a step against the width, {ACTIVATIONS[activation]}: {said}."
    return Picture(f"Change of the logits, {ACTIVATIONS[activation]}", {"data": data, "layout": layout}, alt)


def _dots(runs: pd.DataFrame, mean: pd.Series, name: str, shade: str, row: int) -> list[dict]:
    dots = {"type": "scatter", "mode": "markers", "x": runs.width.tolist(), "y": runs.value.tolist(), "opacity": 0.35}
    dots |= {"marker": {"color": shade, "size": 5}, "showlegend": False, "xaxis": f"x{row + 1}", "yaxis": f"y{row + 1}"}
    return [dots, _line(mean.index, mean, f"{name}, mean", row) | {"mode": "lines+markers", "line": {"color": shade, "width": 2.5}}]


def _line(x, y, name: str, row: int) -> dict:
    where = {"xaxis": f"x{row + 1}", "yaxis": f"y{row + 1}", "showlegend": row == 0}
    return {"type": "scatter", "mode": "lines", "x": [int(n) for n in x], "y": [float(v) for v in y], "name": name} | where


EXPERIMENT = Experiment(
    name="s0-logits",
    title="Logits of SP against muP",
    claim="The logits of SP change by order one in a step if W Δh does not align at the readout, and by n^1/2 if it does; those "
    "of muP by order one either way.",
    method="Bigram networks with three hidden layers, linear and ReLU; three sign steps on four tokens at the rates of Table 1; "
    "a power of the width is fitted to the RMS of the change in the third step, with 99.9 % intervals.",
    scales={"small": Settings(seeds=4), "paper": Settings(seeds=32, widths=(*WIDTHS, 2048, 4096))},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S0.5",),
)
