"""Expected exponents of tensors: initial sizes, gradients, weight decay and the first update.

One function for each row of `quantities`. Learning rates are known numbers: `settings` judges them.
"""

import math
from typing import TYPE_CHECKING

from orderone.measure.fit import fit_exponents
from orderone.measure.judge.study_facts import CONFIDENCE, StudyFacts
from orderone.measure.judge.verdict import Expected
from orderone.measure.observations import RunKey
from orderone.observe.quantities import Quantity
from orderone.optimizers.table import record_named

if TYPE_CHECKING:
    from orderone.planning import Row


def weight(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect the initial size in the plan. `settings` judges models of unknown gauge."""
    if facts.theory is None or facts.study.has_user_optimizer or name not in facts.theory.rows:
        return None
    return facts.theory.expect(name, Quantity.WEIGHT)


def gradient(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect the gradient of the rule; this is a witness only."""
    if facts.theory is None or name not in facts.theory.rows:
        return None
    return facts.theory.expect(name, Quantity.GRADIENT)


def decay(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect that a step shrinks a weight by the same fraction at every size."""
    if facts.theory is None or name not in facts.theory.rows:
        return None
    return facts.theory.expect(name, Quantity.DECAY)


def update(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect what the learning rate, the gradient and the weights imply.

    Whether the learning rate itself is right is judged in `settings`.
    """
    if facts.theory is None or name not in facts.theory.rows:
        return None
    row = facts.theory.rows[name][1]
    law = record_named(row.optimizer).update_law
    if law.spectral:
        return None  # the size of entries depends on the rank of the gradient
    starts = facts.study.observations.at(name, Quantity.WEIGHT, 0).values()
    if law.weight and any(moments.rms == 0 for moments in starts):
        return None  # steps that are relative to zero depend on eps, and then on earlier steps
    implied = _implied_updates(facts, name, step, row)
    if len(implied) < 3 or min(implied.values()) <= 0:
        return None
    (fit,) = fit_exponents(
        [size for size, _ in implied], [list(implied.values())], confidence=CONFIDENCE
    )
    return Expected(fit.exponent, two_sided=True, role=row.role)


def _implied_updates(facts: StudyFacts, name: str, step: int, row: "Row") -> dict[RunKey, float]:
    """Return the size of an update in each run: lr |g|^gradient |W|^weight, and decay."""
    observations = facts.study.observations
    law = record_named(row.optimizer).update_law
    gradients = observations.at(name, Quantity.GRADIENT, step)
    # steps hardly change weights, which are not recorded at later steps
    weights = observations.at(name, Quantity.WEIGHT, step) or observations.at(
        name, Quantity.WEIGHT, 0
    )
    if row.lr and row.row_settings:
        in_rows = row.rms(lambda part: part.lr) / row.lr
    else:
        in_rows = 1.0
    sizes: dict[RunKey, float] = {}
    for run in observations.complete:
        key = (run.size, run.seed)
        if step >= len(run.rates) or key not in gradients or key not in weights:
            continue
        rates = [rate for raw, rate in run.rates[step].items() if observations.key(raw) == name]
        if not rates:
            continue
        rate = math.sqrt(sum(rate * rate for rate in rates) / len(rates))
        weight = weights[key].rms
        size = in_rows * gradients[key].rms ** float(law.gradient)
        settings = {}
        for raw, numbers in run.settings.items():
            if observations.key(raw) == name:
                settings = numbers
        size *= weight ** float(law.weight)
        sizes[key] = rate * math.hypot(size, settings.get("weight_decay", 0.0) * weight)
    return sizes
