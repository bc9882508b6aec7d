"""From verdicts to words: what is likely wrong, the most specific first."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orderone.measure.verdict import FAIL

if TYPE_CHECKING:
    from orderone.measure.check import Judgement

RATES = ("update", "relative update")
ACTIVATIONS = ("change", "output")
FORWARD = (*ACTIVATIONS, "score change")
REMEDIES = {
    "embedding": (
        "embedding learning rate: updates of {names} scale like n^{measured:+.2f}, and {rule} asks"
        " for n^{predicted:+.2f}"
    ),
    "hidden": (
        "hidden learning rate: updates of {names} scale like n^{measured:+.2f}, and {rule} asks for"
        " n^{predicted:+.2f}"
    ),
    "readout": (
        "readout not scaled: updates of {names} scale like n^{measured:+.2f}, and {rule} asks for "
        "n^{predicted:+.2f}"
    ),
    "fixed": (
        "learning rate: updates of {names} scale like n^{measured:+.2f}, and {rule} asks for"
        " n^{predicted:+.2f}"
    ),
    "vector": (
        "learning rate of biases and gains: updates of {names} scale like n^{measured:+.2f}, and"
        " {rule} asks for n^{predicted:+.2f}"
    ),
}


@dataclass(frozen=True)
class Context:
    """What is known beside the verdicts."""

    rule: str
    tied: bool = False
    no_growth: bool = False  # every size gives the same shapes
    base_is_target: bool = False  # a plan whose factors are all 1
    schedule: str = ""  # what plan.check said
    undone: Sequence[str] = ()  # what the plan asks for and cannot do by itself
    in_depth: bool = False  # the models differ in depth
    unscaled_branches: bool = (
        False  # they have residual branches, and nothing scales them with depth
    )
    one_rate: bool = (
        False  # the optimizer has one learning rate for everything, and the rule has not
    )
    wrong_start: Callable[[str, str, float], tuple[float, float] | None] = (
        lambda name, quantity, e: None
    )  # see Outlook
    rate_is_right: Callable[[str], bool] = lambda name: (
        False
    )  # of a tensor, as its optimizer has it


def likely_causes(judgements: "Sequence[Judgement]", context: Context) -> list[str]:
    failed = [j for j in judgements if j.verdict == FAIL]
    found = [*_whole(failed, context), *_frozen(failed)]
    if not found:
        found = [
            *_rates(failed, context),
            *_held_back(failed, context),
            *([] if context.in_depth else _attention(failed)),
            *_initial(failed, context),
            *_decay(failed),
        ]
    if not found and failed:
        found = _activations(failed, context)
    return list(dict.fromkeys(found))


def _whole(failed: "Sequence[Judgement]", context: Context) -> list[str]:
    """Faults that show everywhere at once hide all others."""
    if context.no_growth:
        return [
            "base equals target: every size gives a model of the same shapes; does build use its"
            " argument?"
        ]
    if context.base_is_target:
        return [
            "base equals target: every factor of the plan is 1; give the same, smaller base at"
            " every size"
        ]
    if context.schedule:
        return [f"schedule: {context.schedule}"]
    rates = any(j.quantity in RATES for j in failed)
    if context.undone and not rates and any(j.quantity in FORWARD for j in failed):
        return [f"left to you: {told}" for told in context.undone]
    if context.unscaled_branches and any(j.quantity in ACTIVATIONS for j in failed):
        return [
            "residual branches are not scaled with depth: give depth='sqrt' or depth='completep'"
        ]
    itself = [j for j in failed if "rule itself" in j.cause and j.role != "attention"]
    if itself and not rates:
        worst = max(itself, key=lambda j: j.exponent)
        return [
            f"the rule itself: {context.rule} lets {_name(worst)} grow (theory"
            f" n^{worst.predicted:+.2f}, measured n^{worst.exponent:+.2f}); mup keeps it of"
            " order one"
        ]
    unscaled = not context.in_depth and context.rule != "standard"
    if failed and unscaled and (_one_rate(failed) or context.one_rate):
        return [
            f"standard parameterization, not {context.rule}: updates are as large in wide models as"
            " in narrow ones (one learning rate for everything)"
        ]
    return []


def _one_rate(failed: "Sequence[Judgement]") -> bool:
    """Updates of hidden matrices and readouts are off by the power of n by which one rate for all
    is off."""
    off = {j.role: j.exponent - j.predicted for j in failed if j.quantity in RATES}
    return off.get("hidden", 0.0) > 0.75 and "readout" in off


def _frozen(failed: "Iterable[Judgement]") -> list[str]:
    return [f"{j.module}: {j.cause}" for j in failed if j.cause.startswith("frozen")][:3]


def _rates(failed: "Sequence[Judgement]", context: Context) -> list[str]:
    found = []
    for role, words in REMEDIES.items():
        mine = [
            j for j in failed if j.quantity in RATES and j.role == role and not _start(j, context)
        ]
        mine = [j for j in mine if not _small(j, context)]
        if mine:
            told = words.format(
                names=_names(mine),
                rule=context.rule,
                measured=mine[0].exponent,
                predicted=mine[0].predicted,
            )
            found.append(f"tied weights: {told}" if context.tied and role == "embedding" else told)
    return found


def _start(j: "Judgement", context: Context) -> tuple[float, float] | None:
    if j.quantity in RATES:
        return context.wrong_start(j.module, j.quantity, j.exponent)
    return None


def _small(j: "Judgement", context: Context) -> bool:
    return j.quantity in RATES and j.exponent < j.predicted and context.rate_is_right(j.module)


def _held_back(failed: "Sequence[Judgement]", context: Context) -> list[str]:
    mine = [j for j in failed if _small(j, context) and not _start(j, context)]
    if not mine:
        return []
    return [
        f"small gradients: updates of {_names(mine)} scale like n^{mine[0].exponent:+.2f}, not"
        f" n^{mine[0].predicted:+.2f}, though their learning rates scale as they should: eps is not"
        " small beside the gradients (give a smaller one), or they are clipped"
    ]


def _attention(failed: "Sequence[Judgement]") -> list[str]:
    """Not where a matrix inside learns too fast: then scores grow for that."""
    rates = [j.module for j in failed if j.quantity in RATES and j.exponent > j.predicted]
    mine = [
        j
        for j in failed
        if j.role == "attention" and not any(f".{x}".startswith(_inside(j.module)) for x in rates)
    ]
    if not mine:
        return []
    return [
        f"attention scale: scores of {_names(mine)} grow like n^{mine[0].exponent:+.2f}; divide"
        " queries times keys by the head size, not by its root"
    ]


def _initial(failed: "Sequence[Judgement]", context: Context) -> list[str]:
    """By role: the size of weights and outputs at the start, or what relative updates say of it."""
    by_role: dict[str, list[tuple[str, float, float]]] = {}
    for j in failed:
        start = _start(j, context)
        if j.quantity in ("weight", "output") and j.step == 0:
            start = (j.exponent, j.predicted)
        if start:
            by_role.setdefault(j.role, []).append((j.module or "the model", *start))
    return [
        f"{'readout not scaled: ' if role == 'readout' else ''}initial size of"
        f" {_list([x[0] for x in found])}: n^{found[0][1]:+.2f}, and {context.rule} asks for"
        f" n^{found[0][2]:+.2f}"
        for role, found in by_role.items()
    ]


def _decay(failed: "Sequence[Judgement]") -> list[str]:
    rates = {j.module for j in failed if j.quantity in RATES}
    penalties = [j for j in failed if j.quantity == "penalty"]
    if penalties:
        return [
            f"weight decay: the penalty of {_names(penalties)}, which is normalized together with"
            f" the gradient, grows beside it like n^{penalties[0].exponent:+.2f}; let weight_decay"
            " go like the gradient over the weight, or decay apart from it (AdamW)"
        ]
    mine = [
        j for j in failed if j.quantity == "decay" and j.module not in rates
    ]  # it goes with the rate
    if not mine:
        return []
    return [
        f"weight decay: a step shrinks {_names(mine)} by a fraction that scales like"
        f" n^{mine[0].exponent:+.2f}; keep lr * weight_decay the same at every size"
        " (decay='independent')"
    ]


def _activations(failed: "Sequence[Judgement]", context: Context) -> list[str]:
    if all(j.exponent < j.predicted for j in failed):
        return [
            f"{_name(failed[0])} shrinks (n^{failed[0].exponent:+.2f}), more than its readout lacks"
            " alignment: something divides it"
        ]
    if context.in_depth and all(j.quantity in FORWARD for j in failed):
        return [
            f"residual branches are not scaled with depth: {_name(failed[0])} grows like"
            f" n^{failed[0].exponent:+.2f}; multiply what every branch adds by 1/sqrt(L) or 1/L"
        ]
    readouts = [j for j in failed if j.role == "readout"]
    grows = max(
        (j for j in failed if not math.isnan(j.exponent)),
        key=lambda j: j.exponent,
        default=failed[0],
    )
    if readouts and len(readouts) == len([j for j in failed if j.role]):
        return [f"readout not scaled: {_name(grows)} grows like n^{grows.exponent:+.2f}"]
    first = failed[0]
    return [
        f"{_name(first)} is the first to grow (n^{first.exponent:+.2f}), {_name(grows)} the fastest"
        f" (n^{grows.exponent:+.2f}): look at what the forward code multiplies there"
    ]


def _inside(module: str) -> str:
    return f".{module}." if module else "."


def _name(j: "Judgement") -> str:
    return f"the {j.quantity} of {j.module or 'the model'}"


def _names(js: "Sequence[Judgement]") -> str:
    return _list([j.module or "the model" for j in js])


def _list(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
