"""Judge the tensors that no step of any run has changed."""

import math
from collections.abc import Sequence
from fnmatch import fnmatch

from orderone.core.errors import with_code
from orderone.measure.judge.verdict import Judgement, Reason, Verdict
from orderone.measure.observations import StudyResult
from orderone.observe.inventory import Item, inventory, modules_by_name
from orderone.observe.quantities import Quantity

NAN = math.nan


def untrained_tensors(study: StudyResult) -> tuple[list[Judgement], list[str]]:
    """Judge the tensors that no step of any run has changed, except those that are frozen.

    Return the judgements, and remarks on tensors that need not be trained.
    """
    judgements: list[Judgement] = []
    remarks: list[str] = []
    observations = study.observations
    if not observations.steps:
        return judgements, remarks
    frozen: list[str] = []  # on purpose
    unused: list[str] = []  # by the loss
    without_effect = frozenset().union(*(run.unused for run in observations.runs))
    for name, item in inventory(study.largest).items():
        if observations.largest(observations.key(name), Quantity.UPDATE) > 0:
            continue
        if not item.tensor.numel() or any(fnmatch(name, pattern) for pattern in study.frozen):
            continue
        if not item.tensor.requires_grad:
            frozen.append(name)
            continue
        if name in without_effect and _in_called_leaf(study, item):
            unused.append(name)
            continue
        verdict, reason = _reason_untrained(study, item)
        if verdict is None:
            remarks.append(with_code(f"{name} {reason}", "untrained-tensor"))
            continue
        cause = f"{Reason.FROZEN}: {reason}; if this is intended, pass frozen=({name!r},)"
        judgements.append(
            Judgement(
                name, Quantity.UPDATE, 0, NAN, NAN, NAN, NAN, verdict, cause, "", Reason.FROZEN
            )
        )
    if frozen:
        text = f"frozen (requires_grad=False): {_first_few(frozen)}"
        remarks.append(with_code(text, "untrained-tensor"))
    if unused:
        text = f"not used in training, as the loss does not depend on them: {_first_few(unused)}"
        remarks.append(with_code(text, "untrained-tensor"))
    return judgements, remarks


def _first_few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + " ..." * (len(names) > 3)


def _reason_untrained(study: StudyResult, item: Item) -> tuple[Verdict | None, str]:
    """Return the verdict and the reason; without a verdict, the reason is only noted."""
    observations = study.observations
    gradient = observations.largest(observations.key(item.name), Quantity.GRADIENT)
    if math.isnan(gradient):
        if _in_called_leaf(study, item):
            return Verdict.FAIL, "no gradient reaches it"
        return None, "is not used in training"
    if gradient == 0:
        return Verdict.UNCLEAR, "its gradient is zero in all of these steps"
    rates = []
    for run in observations.runs:
        for rates_now in run.rates:
            if item.name in rates_now:
                rates.append(rates_now[item.name])
    if not rates:
        return Verdict.FAIL, "it has a gradient, but no step changes it (is it in the optimizer?)"
    if not any(rates):
        planned = [
            run.settings.get(item.name, {}).get("initial_lr", 0.0) for run in observations.runs
        ]
        if any(planned):  # a schedule may raise it later
            return Verdict.UNCLEAR, "its learning rate is zero in all of these steps"
        return Verdict.FAIL, "its learning rate is zero"
    return None, "has updates that are too small to change it"


def _in_called_leaf(study: StudyResult, item: Item) -> bool:
    """Return whether a module without children holds the tensor and was called."""
    observations = study.observations
    modules = modules_by_name(study.largest)
    for place in item.places:
        called = observations.at(observations.key(place.module), Quantity.OUTPUT, 0)
        if called and not list(modules[place.module].children()):
            return True
    return False
