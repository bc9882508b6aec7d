"""Expected exponents of attention scores and of their changes.

They follow from the growth of the head size, the power of it by which the model divides scores, and
the sizes of queries and keys. One function for each row of `quantities`.
"""

import math
from dataclasses import replace

from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.thresholds import MISSING_ALIGNMENT
from orderone.measure.judge.verdict import UNKNOWN, Expected
from orderone.observe.quantities import Quantity
from orderone.planning.counterparts import stack_of

ATTENTION = "attention"  # role of the lines about scores


def scores(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect scores of order one, or those of random queries and keys in growing heads."""
    study = facts.study
    if facts.theory is None or not study.in_width or study.family is None:
        return None
    entries = {m.entries for m in study.observations.at(name, Quantity.SCORES, 0).values()}
    growth = _head_growth(facts)
    if not growth and (len(entries) == 1 or study.family.facts.pair is None):
        return None  # another softmax than that of attention, or unknown heads
    if growth:
        least = -growth / 2 - facts.fading
        return Expected(-growth / 2, bound=0.0, least=least, role=ATTENTION)
    if facts.fading:
        return Expected(0.0, bound=0.0, least=-facts.fading, role=ATTENTION)
    return Expected(0.0, two_sided=True, role=ATTENTION)


def score_change(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect at most aligned queries and keys."""
    if facts.theory is None or not facts.study.in_width:
        return Expected(0.0 if facts.theory is None else UNKNOWN, bound=0.0, role=ATTENTION)
    expected = Expected(_score_growth(facts), bound=0.0, role=ATTENTION)
    if not facts.has_lower_ends or step < facts.study.observations.steps:
        return expected
    least = -MISSING_ALIGNMENT - _head_growth(facts) / 2 - facts.fading - facts.small_gradients
    return replace(expected, least=least)


def _head_growth(facts: StudyFacts) -> float:
    """Return the power of the size by which heads grow; 0 if only their number grows."""
    study = facts.study
    assert study.family is not None
    growths = [0.0]
    for score in study.family.facts.scores:
        growths.append(math.log(score.head_growth) / math.log(study.sizes[-1] / study.sizes[0]))
    return max(growths)


def _score_growth(facts: StudyFacts) -> float:
    """Return the power by which scores are predicted to grow.

    Aligned queries and keys give d_H, which the model divides by d_H^power; the sizes of queries
    and keys add theirs (`theory.exponents.Attention`).
    """
    study = facts.study
    if study.family is None or not study.family.facts.scores:
        return 0.0
    natural = replace(study.family.request, score_power=None).power
    outputs = facts.measured_exponents(Quantity.OUTPUT)
    predicted = []
    for score in study.family.facts.scores:
        head_growth = math.log(score.head_growth) / math.log(study.sizes[-1] / study.sizes[0])
        queries = _mean_exponent(outputs, score.queries)
        keys = _mean_exponent(outputs, score.keys)
        if score.packed is not None:
            queries = _planned_queries(facts, score.queries)
            keys = 0.0
        predicted.append(head_growth * (natural + score.power) + (queries + keys))
    return max(0.0, *predicted)


def _planned_queries(facts: StudyFacts, names: tuple[str, ...]) -> float:
    """Return the exponent of queries whose rows of a packed tensor have a factor."""
    study = facts.study
    if study.has_user_optimizer:
        return 0.0
    stacks = {stack_of(name) for name in names}
    for row in study.plans[study.sizes[-1]].rows:
        for block in row.blocks:
            if stack_of(row.name) in stacks and block.kind == "queries":
                factor = block.factors.std / row.factors.std
                return math.log(factor) / math.log(study.sizes[-1] / study.sizes[0])
    return 0.0


def _mean_exponent(outputs: dict[str, float], tensors: tuple[str, ...]) -> float:
    """Average over the modules that hold these tensors, or the same ones in other layers."""
    stacks = {stack_of(tensor.rpartition(".")[0]) for tensor in tensors}
    exponents = [exponent for name, exponent in outputs.items() if stack_of(name) in stacks]
    if not exponents:
        return 0.0
    return sum(exponents) / len(exponents)
