"""What `alignment` measured: ratios by width, their exponents by layer and by role, and the numbers
that solvers take.

    log(ratio) = e log n + k,      e is omega, alpha or u of S0 (15)-(17)

A role has one exponent: the ratios of its layers are averaged (in the logarithm) within each run
and then fitted, which gives the mean of the layers' exponents, and an interval that knows that
layers of one run are not independent.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.measure.fit import Fit, fit_exponent
from orderone.theory.exponents.updates import ALIGNED_ROLES, KINDS

TRAINING = "training"
HELD_OUT = "held-out"
COLUMNS = ["width", "seed", "step", "module", "role", "tokens", "quantity", "ratio"]
NAMED = 4  # modules in a note
DECIMALS = 2  # of exponents that are handed on; no measurement of a few widths knows more


class MeasuredAlignment:
    """Made by `alignment`. `frame` has the ratios, `exponents` the fits by layer, `by_role` those
    by role."""

    def __init__(self, frame: pd.DataFrame, notes: tuple[str, ...] = ()):
        usable, unusable = (_rows(frame, keep) for keep in _usable(frame["ratio"]))
        self.frame: pd.DataFrame = usable
        self.notes = (*notes, *_left_out(unusable))

    @cached_property
    def exponents(self) -> pd.DataFrame:
        """module, role, tokens, step, quantity, exponent, low, high."""
        return _fits(self.frame, ["module", "role", "tokens", "step", "quantity"])

    @cached_property
    def by_role(self) -> pd.DataFrame:
        """role, tokens, step, quantity, exponent, low, high: all layers of a role together."""
        key = ["role", "tokens", "step", "quantity"]
        frame: Any = self.frame
        runs = frame.assign(
            run=frame.groupby(["width", "seed"]).ngroup(), log=np.log(frame["ratio"])
        )
        own, all_of_them = (
            runs.groupby(by)["run"].transform("nunique") for by in ([*key, "module"], key)
        )
        means = (
            runs[own == all_of_them]
            .groupby([*key, "width", "seed"], sort=False)["log"]
            .mean()
            .reset_index()
        )
        return _fits(means.assign(ratio=np.exp(means["log"])), key)

    @property
    def omega(self) -> dict[str, float]:
        """By layer, on training tokens across the last step; likewise `alpha` and `u`."""
        return self._of("omega")

    @property
    def alpha(self) -> dict[str, float]:
        return self._of("alpha")

    @property
    def u(self) -> dict[str, float]:
        return self._of("u")

    def _of(self, kind: str) -> dict[str, float]:
        rows = [row for row in self.exponents.to_dict("records") if row["tokens"] == TRAINING]
        last = max((row["step"] for row in rows), default=0)
        return {
            row["module"]: row["exponent"]
            for row in rows
            if (row["step"], row["quantity"]) == (last, kind)
        }

    def as_alignment(
        self, tokens: Any = TRAINING, step: Any = None
    ) -> dict[str, dict[str, Fraction]]:
        """{"omega": {"hidden": ..., "readout": ...}, "alpha": ..., "u": ...} for `max_lr`, at the
        last step or another.

        Rounded to exact hundredths, within [0, 1]. What could not be measured is missing, and is
        read as `full`.
        """
        values: dict[str, dict[str, Fraction]] = {}
        for row in self._at(tokens, step):
            values.setdefault(row["quantity"], {})[row["role"]] = _hundredths(row["exponent"])
        return {kind: values[kind] for kind in KINDS if kind in values}

    def _at(self, tokens: Any, step: Any) -> list[dict[str, Any]]:
        one_of(tokens, (TRAINING, HELD_OUT), "tokens")
        rows = [row for row in self._role_rows if row["tokens"] == tokens]
        if not rows:
            raise ValueError(
                f"tokens: nothing was fitted on {tokens} tokens: {'; '.join(self.notes)}"
            )
        steps = sorted({row["step"] for row in rows})
        asked = steps[-1] if step is None else count(step, "step")
        if asked not in steps:
            raise ValueError(f"step: expected one of {', '.join(map(str, steps))}, got {asked}")
        return [row for row in rows if row["step"] == asked]

    @property
    def _role_rows(self) -> list[dict[str, Any]]:
        return self.by_role.to_dict("records")  # pyright: ignore[reportReturnType]

    # --- reading ----------------------------------------------------------------------------------

    def __str__(self) -> str:
        """For every role, the exponents at the first and at the last step."""
        cells = {
            (r["role"], r["tokens"], r["step"], r["quantity"]): _cell(r) for r in self._role_rows
        }
        steps = sorted({step for _, _, step, _ in cells})
        ends = dict.fromkeys([*steps[:1], *steps[-1:]])
        rows = [
            (role, tokens, step)
            for role in ALIGNED_ROLES
            for tokens in (TRAINING, HELD_OUT)
            for step in ends
        ]
        lines = [("role", "tokens", "step", *KINDS)]
        for key in rows:
            found = [cells.get((*key, kind), "") for kind in KINDS]
            lines += [(*map(str, key), *found)] if any(found) else []
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([self._headline, *text, *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__

    @property
    def _headline(self) -> str:
        p = self.frame.attrs.get("provenance", {})
        if "widths" not in p:
            return "alignment"
        sizes = (
            f"widths {', '.join(map(str, p['widths']))}, {p['steps']} steps, {len(p['seeds'])}"
            " seeds"
        )
        return f"alignment: {p['rule']} for {p['optimizer']}, {sizes}"


def _fits(frame: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """One fit for each group that has two widths and a third point."""
    groups: Any = frame.groupby(key, sort=False) if len(frame) else ()
    rows = []
    for values, group in groups:
        if group["width"].nunique() > 1 and len(group) > 2:
            fit = fit_exponent(group["width"], group["ratio"], correction=False)
            rows.append((*values, fit.exponent, fit.low, fit.high))
    result = pd.DataFrame(rows, columns=[*key, "exponent", "low", "high"])
    result.attrs = frame.attrs
    return result


def _usable(ratios: Any) -> tuple[Any, Any]:
    usable = np.isfinite(ratios.astype(float)) & (ratios > 0)
    return usable, ~usable


def _rows(frame: Any, keep: Any) -> Any:
    return frame[keep].reset_index(drop=True)


def _left_out(frame: Any) -> list[str]:
    if frame.empty:
        return []
    by_kind = {
        kind: some_of(dict.fromkeys(group["module"]))
        for kind, group in frame.groupby("quantity", sort=False)
    }
    named = "; ".join(f"{kind} of {modules}" for kind, modules in by_kind.items())
    return [f"{len(frame)} ratios are left out, being 0 or not finite: {named}"]


def some_of(names: Iterable[str]) -> str:
    names = list(names)
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _hundredths(exponent: float) -> Fraction:
    return Fraction(round(min(max(exponent, 0.0), 1.0) * 10**DECIMALS), 10**DECIMALS)


def _cell(row: dict[str, Any]) -> str:
    return str(Fit(row["exponent"], row["low"], row["high"]))
