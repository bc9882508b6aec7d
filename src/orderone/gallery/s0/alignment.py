"""S0 (15)-(17): the alignment exponents omega, alpha and u of every layer, over training steps.

    RMS(W dh) = n^omega RMS(W) RMS(dh),   RMS(dW h) = n^alpha RMS(dW) RMS(h),   RMS(dW dh) = n^u
                                          RMS(dW) RMS(dh)

Table 1 assumes alpha = u = 1 (full alignment), and omega = 1/2 in every layer for SP and NTK.
Errata S0.5, S0.6: omega is 1 at the readout from the first step on; u is 1/2 at first and rises in
training; alpha is 1/2 on held-out tokens.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pandas as pd

from orderone import rules
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.exponent_table import holds
from orderone.gallery.figures import GREY, SHADES, panels, scatter, spans
from orderone.gallery.judge import finding, joined, known, only, together
from orderone.gallery.s0.bigram import HELD_OUT, TRAINED, WIDTHS, Setting, fits, simulate

KINDS = {"omega": "ω", "alpha": "α", "u": "u"}
LAYERS = {1: "W₁", 2: "W₂", 3: "W₃", 4: "readout"}
READOUT = max(LAYERS)
ASSUMED = {"omega": "1/2", "alpha": "1", "u": "1"}  # by Table 1, in every layer of SP and NTK
SCALES = {
    "mup": 0.05,
    "sp": 0.01,
}  # C of (11): with these, muP and SP learn at about the same speed
TARGETS = (3, 1, 4, 1, 5, 9, 2, 6)
CONFIDENCE = 0.999  # of each interval; a claim is about dozens of intervals
# A sum of n aligned terms plus noise of order sqrt(n) biases straight fits over these widths by up
# to a tenth. Exponents are multiples of 1/2, so that none is mistaken for another.
BEND = 0.12


@dataclass(frozen=True)
class Settings:
    seeds: int  # networks at the largest width
    steps: int = 6
    widths: tuple[int, ...] = WIDTHS
    vocab: int = 12  # the first 8 are training tokens


def parts(settings: Settings) -> Parts:
    return {rule: lambda rule=rule: measure(rule, settings) for rule in SCALES}


def measure(rule: str, settings: Settings) -> pd.DataFrame:
    """Fit a straight line for every step, layer and kind of token."""
    batch = {"tokens": tuple(range(len(TARGETS))), "targets": TARGETS, "vocab": settings.vocab}
    held_out = tuple(range(len(TARGETS), settings.vocab))
    setting = Setting(
        rules.get(rule), steps=settings.steps, scale=SCALES[rule], held_out=held_out, **batch
    )
    frame = simulate(setting, settings.widths, settings.seeds)
    rows = []
    for step in range(1, settings.steps + 1):
        for tokens in (TRAINED, HELD_OUT):
            fit = fits(
                frame.query("step == @step"), tokens=tokens, confidence=CONFIDENCE, correction=False
            )
            for layer, kind in product(LAYERS, KINDS):
                name = f"{kind}{layer}"
                if name in fit.index:  # W_1 does not move h of held-out tokens: no omega, no u
                    rows.append((rule, tokens, step, kind, layer, *fit.loc[name]))
    return pd.DataFrame(
        rows, columns=["rule", "tokens", "step", "kind", "layer", "measured", "low", "high"]
    )


def judge(records: Records) -> list[Finding]:
    frame = joined(records)
    trained = only(frame, tokens=TRAINED)
    held = only(frame, tokens=HELD_OUT)
    omega = only(trained, kind="omega")
    alpha = only(trained, kind="alpha")
    u = only(trained, kind="u")
    hidden = omega.loc[omega.layer < READOUT]
    readout = only(omega, layer=READOUT)
    first = only(u, step=u.step.min())
    return [
        _all("ω = 1/2 in hidden layers, at every step", hidden, "1/2"),
        _all("α = 1 in every layer, at every step", alpha, "1"),
        _all("ω = 1/2 at the readout, as SP and NTK assume", readout, "1/2"),
        _all("ω = 1 at the readout, from the first step on", readout, "1", "S0.5"),
        _all("u = 1 in every layer, already at the first step", first, "1", of="ours"),
        _all("u = 1/2 at the first step", first, "1/2", "S0.6"),
        _rise(only(u, rule="mup")),
        _all("α = 1/2 on held-out tokens", only(held, kind="alpha"), "1/2", "S0.5"),
        _all(
            "ω = 1 at the readout on held-out tokens too",
            only(held, kind="omega", layer=READOUT),
            "1",
            "S0.5",
        ),
    ]


def _all(
    claim: str, lines: pd.DataFrame, exponent: str, erratum: str = "", of: str = "paper"
) -> Finding:
    verdicts = [holds(exponent, line, BEND) for _, line in lines.iterrows()]
    half = ((lines.high - lines.low) / 2).median()
    numbers = (
        f"measured {lines.measured.min():.2f} to {lines.measured.max():.2f}, intervals ± "
        f"{half:.2f}; {verdicts.count(True)} of {len(verdicts)} agree"
    )
    return finding(claim, together(verdicts), numbers, erratum, of)


def _rise(u: pd.DataFrame) -> Finding:
    """Judge whether intervals rise without overlap in every layer, and none is above 1."""
    start = only(u, step=u.step.min()).set_index("layer")
    end = only(u, step=u.step.max()).set_index("layer")
    risen: list[bool | None] = []
    for layer in end.index:
        if end.low[layer] > start.high[layer]:
            risen.append(True)
        elif end.high[layer] < start.high[layer]:
            risen.append(False)
        else:
            risen.append(None)
    bounded = None
    if known(u.low):
        bounded = bool((u.low <= 1 + BEND).all())
    numbers = (
        f"muP: {start.measured.mean():.2f} at step {u.step.min()}, {end.measured.mean():.2f} at"
        f" step {u.step.max()}"
    )
    return finding(
        "u rises in training, and 1 is its upper bound",
        together([together(risen), bounded]),
        numbers,
        "S0.6",
    )


def draw(records: Records) -> list[Picture]:
    frame = joined(records)
    names = {"mup": "muP", "sp": "SP"}
    pictures = []
    for rule, name in names.items():
        for tokens in (TRAINED, HELD_OUT):
            pictures.append(_picture(name, tokens, only(frame, rule=rule, tokens=tokens)))
    return pictures


def _picture(rule: str, tokens: str, frame: pd.DataFrame) -> Picture:
    """Draw three panels: ω, α and u over steps, with a line for each layer."""
    data = []
    ends = (frame.step.min() - 0.3, frame.step.max() + 0.3)
    for row, kind in enumerate(KINDS):
        assumed = [float(Fraction(ASSUMED[kind]))] * 2
        name = "" if row else "assumed by Table 1"
        data.append(scatter(ends, assumed, name, row=row, line={"dash": "dash", "color": GREY}))
        for layer, shade in zip(LAYERS, SHADES, strict=False):
            lines = only(frame, kind=kind, layer=layer)
            name = LAYERS[layer] if kind == "alpha" else ""  # every layer has an alpha
            bars = spans(lines.measured, lines.low, lines.high)
            style = {"line": {"color": shade}, "error_y": bars, "legendgroup": layer}
            data.append(
                scatter(lines.step, lines.measured, name, row=row, mode="lines+markers", **style)
            )
    layout = panels(
        [f"{symbol} of S0 ({15 + i})" for i, symbol in enumerate(KINDS.values())],
        "step",
        share=True,
    )
    for row in range(len(KINDS)):
        layout[f"yaxis{row + 1}"]["range"] = [0.2, 1.35]
    if tokens == TRAINED:
        where = "training tokens"
    else:
        where = "held-out tokens"
    return Picture(f"{rule}: alignment on {where}", {"data": data, "layout": layout}, _alt(frame))


def _alt(frame: pd.DataFrame) -> str:
    last = only(frame, step=frame.step.max())
    ranges = []
    for kind, symbol in KINDS.items():
        measured = only(last, kind=kind).measured
        ranges.append(f"{symbol} {measured.min():.2f} to {measured.max():.2f}")
    steps = int(frame.step.max())
    return (
        f"Fitted exponents of each layer over {steps} training steps; at the last step"
        f" {', '.join(ranges)}."
    )


EXPERIMENT = Experiment(
    name="s0-alignment",
    title="Alignment exponents over training",
    place="(15)-(17), (23) and Table 1",
    claim=(
        "Stability in training rests on assumptions: updates align fully with activations (alpha ="
        " u = 1), and weights of hidden layers align with changes of activations only by chance"
        " (omega = 1/2)."
    ),
    method=(
        "Bigram networks with three hidden layers, a batch of eight tokens and sign steps; at each"
        " step a power of the width is fitted to each ratio, on tokens of the batch and on others,"
        " with 99.9 % intervals."
    ),
    scales={
        "small": Settings(seeds=4),
        "paper": Settings(seeds=32, steps=20, widths=(*WIDTHS, 2048)),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S0.5", "S0.6"),
)
