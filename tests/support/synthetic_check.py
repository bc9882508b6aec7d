"""Synthetic results of checks: power laws with noise, in all shapes that a real check returns."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

WIDTHS, SEEDS, STEPS = (64, 128, 256, 512, 1024), (0, 1, 2), (0, 1, 2, 3)
SLOPES = {"FAIL": 0.52, "UNCLEAR": 0.18, "SHRINKS": -0.4, "PASS": 0.01}
CAUSES = {
    "FAIL": "readout not scaled: its learning rate should fall as 1/width",
    "UNCLEAR": "too few widths",
    "SHRINKS": "under-trained at width: updates are less than fully aligned (alignment 0.61)",
    "PASS": "",
}


class Result(SimpleNamespace):
    """The attributes of a check that `orderone.report` draws."""

    axis: str
    frame: Any
    exponents: Any
    losses: Any
    verdict: str
    passed: bool
    causes: list[str]
    notes: list[str]
    provenance: dict[str, object]


def gpt(layers: int) -> list[str]:
    parts = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.act", "mlp.c_proj")
    blocks = [f"transformer.h.{i}.{part}" for i in range(layers) for part in parts]
    return ["transformer.wte", "transformer.wpe", *blocks, "transformer.ln_f", "lm_head"]


def check(
    verdicts, quantities=("output", "change"), axis="width", noise=0.04, steps=STEPS, **changes
) -> Result:
    """Make a check; `verdicts` maps a module to a verdict, or to {quantity: verdict}."""
    rng = np.random.default_rng(0)
    frame, exponents = [], []
    for module, verdict_or_map in verdicts.items():
        for quantity in quantities:
            verdict = verdict_or_map
            if not isinstance(verdict_or_map, str):
                verdict = verdict_or_map.get(quantity, "PASS")
            scale = 10 ** rng.uniform(-3, 1)
            for step in steps:
                law = 0.0 if quantity.endswith("change") and step == 0 else scale * (1 + 0.4 * step)
                slope = SLOPES[verdict] if step else SLOPES["PASS"]
                frame += [
                    _record(
                        axis,
                        n,
                        seed,
                        step,
                        module,
                        quantity,
                        law * (n / 64) ** slope * np.exp(noise * rng.normal()),
                    )
                    for n in WIDTHS
                    for seed in SEEDS
                ]
                if step:
                    exponents.append(
                        _exponent(
                            module, quantity, step, verdict if step == steps[-1] else "PASS", slope
                        )
                    )
    result = Result(
        axis=axis,
        frame=pd.DataFrame(frame),
        exponents=pd.DataFrame(exponents),
        losses=_losses(axis, rng),
        verdict="FAIL" if "FAIL" in (words := {e["verdict"] for e in exponents}) else "PASS",
        passed="FAIL" not in words,
        causes=["readout not scaled"],
        notes=["a run failed <b>"],
        provenance={
            "orderone": "0.1.0",
            "torch": "2.13.0",
            "rule": "mup",
            "optimizer": "AdamW",
            "lr": 0.01,
            "seeds": "0, 1, 2",
            "plan": "9f2c1a7e",
        },
    )
    vars(result).update(changes)
    return result


def _record(axis, n, seed, step, module, quantity, rms) -> dict:
    return {
        axis: n,
        "seed": seed,
        "step": step,
        "module": module,
        "quantity": quantity,
        "rms": rms,
        "mean": 0.0,
        "max": 3 * rms,
        "finite": 1.0,
    }


def _exponent(module, quantity, step, verdict, slope) -> dict:
    interval = {"exponent": slope, "low": slope - 0.04, "high": slope + 0.05, "predicted": 0.0}
    role = "readout" if module.endswith("head") else "hidden"
    return {
        "module": module,
        "quantity": quantity,
        "step": step,
        **interval,
        "verdict": verdict,
        "cause": CAUSES[verdict],
        "role": role,
    }


def _losses(axis, rng) -> pd.DataFrame:
    rows = [
        (n, seed, step, 4.6 - 0.05 * step * np.log2(n) + 0.02 * rng.normal())
        for n in WIDTHS
        for seed in SEEDS
        for step in STEPS
    ]
    return pd.DataFrame(rows, columns=[axis, "seed", "step", "loss"])
