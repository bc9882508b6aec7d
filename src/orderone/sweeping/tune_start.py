"""Cheap search at the base for the constants that muP leaves free, and what it was worth.

    1. the learning rate, on its grid
    2. random points of the constants (`multipliers`) around that rate, in one stack: initial size
       and rate of embedding and readout, and the temperature of attention (initial size of queries)
    3. the best point and the start as it was, with seeds that the search did not use

The third step removes the luck of the winner: the gain is the mean difference over new seeds, by
seed, with the interval of Student's t.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from orderone.core.errors import InputError
from orderone.core.roles import Role
from orderone.core.text_table import wrapped
from orderone.planning import plan
from orderone.planning.roles.vocabulary import ATTENTION_PARTS
from orderone.sweeping.job import call_build, read_built
from orderone.sweeping.multipliers import multipliers
from orderone.sweeping.optimum import quantile
from orderone.sweeping.result import Sweep
from orderone.sweeping.sweep import sweep
from orderone.sweeping.trial import setting_of

TRIALS = 24
CONFIDENCE = 0.95


@dataclass(frozen=True)
class TunedStart:
    """Constants that were best at the base, and the gain in loss over new seeds."""

    width: int
    lr: float  # best rate of the start as it was
    settings: Mapping[str, float]  # of the best point: lr, lr.embedding, init_scale.embedding, ...
    before: float  # mean loss over the new seeds, with the start as it was
    after: float
    gain: float  # before - after
    low: float
    high: float
    seeds: int
    points: int
    init: str | float | Mapping[str, str | float] | None = None  # the start that was tuned

    @property
    def is_worth_it(self) -> bool:
        """Whether the interval of the gain lies above zero."""
        return self.low > 0

    @property
    def code(self) -> str:
        """The settings as arguments of `plan`."""
        parts: list[str] = []
        if self.init is not None:
            parts.append(f"init={json.dumps(self.init)}")
        for name in ("lr", "init_scale"):
            value = setting_of(self.settings, name)
            if isinstance(value, Mapping):
                entries = [f'"{key}": {float(number):.4g}' for key, number in value.items()]
                parts.append(f"{name}={{{', '.join(entries)}}}")
            elif value is not None:
                parts.append(f"{name}={float(value):.4g}")
        return ", ".join(parts)

    def __str__(self) -> str:
        gain = f"{self.gain:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"
        lines = [f"tuned start at width {self.width}: gain {gain} (how far the loss falls)"]
        lines += wrapped(
            f"loss {self.before:.4g} with the original start (lr {self.lr:.3g}), {self.after:.4g}"
            f" tuned; {self.points} points, {self.seeds} new seeds"
        )
        if not self.is_worth_it:
            lines += wrapped("the gain is not certain: keep the original start, or use more seeds")
        lines.append(f"  o1.plan(..., {self.code})")
        return "\n".join(lines)


def tune_start(
    build: Callable[..., Any],
    *,
    width: int,
    rates: Sequence[float],
    seeds: Sequence[int],
    trials: int = TRIALS,
    **options: Any,
) -> TunedStart:
    """Search the constants of the start at one width, and measure the gain with new seeds.

    `options` are those of `sweep`: data, steps, init, optimizer, store, ...
    """
    if len(seeds) < 2:
        raise InputError(
            f"tune: expected 2 seeds or more for an interval of the gain, got {len(seeds)}",
            "needs-more-seeds",
            argument="seeds",
        )
    first = sweep(build, {"lr": rates, "seed": seeds}, widths=[width], **options)
    lr = float(_best(first)["lr"])
    keys = _keys(build, width)
    space: dict[str, Any] = {"lr": [lr], "seed": seeds}
    constants = multipliers(*keys, lr=lr)
    queries = [key for key in keys if key.startswith("*")]
    for key in queries:  # only the temperature: its rate has the same effect as that of all
        del constants[f"lr.{key}"]
    searched = sweep(
        build, {**space, **constants}, widths=[width], sampler="random", trials=trials, **options
    )
    best = _best(searched)
    settings = {name: float(best[name]) for name in ("lr", *constants)}
    fresh = [max(seeds) + 1 + k for k in range(len(seeds))]
    before = sweep(build, {"lr": [lr], "seed": fresh}, widths=[width], **options)
    tuned: dict[str, Any] = {name: [value] for name, value in settings.items()}
    after = sweep(build, {**tuned, "seed": fresh}, widths=[width], **options)
    tuned_start = _compared(width, lr, settings, _by_seed(before), _by_seed(after), trials)
    return replace(tuned_start, init=options.get("init"))


def _best(result: Sweep) -> Mapping[str, Any]:
    """Return the settings with the lowest mean loss over seeds."""
    best = result.best()
    if not len(best) or not math.isfinite(float(best["loss"].iloc[0])):
        raise InputError(
            "tune: every training diverged or failed; use smaller learning rates",
            "all-trials-failed",
            argument="lr",
        )
    return best.iloc[0].to_dict()


def _by_seed(result: Sweep) -> np.ndarray:
    """Return the losses in the order of the seeds."""
    return result.frame.sort_values("seed")["loss"].to_numpy(float)


def _compared(
    width: int,
    lr: float,
    settings: Mapping[str, float],
    before: np.ndarray,
    after: np.ndarray,
    points: int,
) -> TunedStart:
    gains = before - after
    seeds = len(gains)
    reach = quantile(float(seeds - 1), CONFIDENCE) * float(gains.std(ddof=1)) / seeds**0.5
    gain = float(gains.mean())
    return TunedStart(
        width=width,
        lr=lr,
        settings=settings,
        before=float(before.mean()),
        after=float(after.mean()),
        gain=gain,
        low=gain - reach,
        high=gain + reach,
        seeds=seeds,
        points=points,
    )


def _keys(build: Callable[..., Any], width: int) -> list[str]:
    """Return the roles and patterns of tensors whose constants are free."""
    with torch.device("meta"):
        base = read_built(call_build(build, {"width": width}, {})).model
        large = read_built(call_build(build, {"width": 2 * width}, {})).model
    roles = {row.role for row in plan(large, base=base).rows}
    keys = [str(role.value) for role in (Role.EMBEDDING, Role.READOUT) if role in roles]
    return [*keys, *_queries(base)]


def _queries(model: nn.Module) -> list[str]:
    """Return patterns of separate query projections; packed ones have no tensor of their own."""
    patterns: dict[str, None] = {}
    for name, _ in model.named_parameters():
        parent, _, leaf = name.rpartition(".")
        module = parent.rpartition(".")[2]
        if leaf == "weight" and module in ATTENTION_PARTS["Q"]:
            patterns[f"*.{module}.weight"] = None
    return list(patterns)
