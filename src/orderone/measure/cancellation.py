"""Growth that is none: what is left of an output where its start and its change cancel in small
models.

    RMS(h_t) <= RMS(h_0) + RMS(h_t - h_0)

so that an output grows no faster than the faster of the two, which are judged by themselves. If
neither grows and the output seems to, it is small in small models, not large in large ones: a
strong weight decay does that, and fades where weights are large beside their updates.
"""

from collections.abc import Sequence
from dataclasses import replace

from orderone.measure.check import Judgement
from orderone.measure.verdict import FAIL, PASS, SHRINKS, UNCLEAR


def without_cancellation(judgements: Sequence[Judgement]) -> list[Judgement]:
    good = {(j.module, j.quantity, j.step) for j in judgements if j.verdict in (PASS, SHRINKS)}

    def is_none(j: Judgement) -> bool:
        parts = {(j.module, "output", 0), (j.module, "change", j.step)}
        return j.verdict == FAIL and j.quantity == "output" and j.step > 0 and parts <= good

    return [_doubted(j) if is_none(j) else j for j in judgements]


def _doubted(j: Judgement) -> Judgement:
    why = "neither its start nor its change grows: they cancel in small models"
    return replace(j, verdict=UNCLEAR, cause=f"{j.cause}; but {why}")
