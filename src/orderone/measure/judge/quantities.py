"""Table of everything that a coordinate check judges: one row for each quantity.

A *law* is an equality, a *bound* an upper end, a *range* has a lower end too: the smallest exponent
that missing alignment explains. *exact* quantities are known numbers, without a fit.
`docs/read-a-check.md` and `Check.explain` print this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from orderone.measure.judge.expected_activations import (
    change,
    input_at_start,
    output_at_start,
    output_gradient,
    output_later,
)
from orderone.measure.judge.expected_scores import score_change, scores
from orderone.measure.judge.expected_tensors import decay, gradient, update, weight
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.verdict import Expected
from orderone.observe.quantities import Quantity

Predictor = Callable[[StudyFacts, str, int], Expected | None]

SIZES = "src/orderone/theory/exponents/sizes.py"
UPDATES = "src/orderone/theory/exponents/updates.py"
SOLVER = "src/orderone/theory/exponents/solver.py"
FACTORS = "src/orderone/rules/axes/width.py"
ATTENTION = "src/orderone/theory/exponents/attention.py"
SCHEDULES = "src/orderone/planning/schedule.py"
JUDGE = "src/orderone/measure/judge"
STUDY = "study"  # subject of the lines about all tensors together


class When(StrEnum):
    """Steps at which a quantity is judged."""

    START = "at the start"
    FIRST_AND_LAST = "after the first step and after the last"
    LAST = "after the last step"
    FIRST_UPDATE = "at the first update of the tensor"
    ALWAYS = "the whole training"


@dataclass(frozen=True)
class JudgedQuantity:
    """How one quantity is judged."""

    quantity: Quantity
    subject: str  # module, tensor or study
    when: When
    kind: str  # law, bound, range or exact
    measured: str
    prediction: str
    tolerance: tuple[str, ...]  # names of thresholds
    source: str  # file of the theory behind the prediction
    predict: Predictor | None = None  # None: `judged_in` judges it without a fit
    judged_in: str = ""  # file and function, of quantities without a predictor

    @property
    def code(self) -> tuple[str, ...]:
        """Places in `JUDGE` that decide a line, at most five, in the order to read them."""
        if self.predict is None:
            return ("quantities.py: TABLE", self.judged_in, "thresholds.py: THRESHOLDS")
        file = self.predict.__module__.rpartition(".")[2]
        return (
            "quantities.py: TABLE",
            f"{file}.py: {self.predict.__name__}",
            "theory.py: Theory",
            "verdict.py: verdict_on_fit",
            "thresholds.py: THRESHOLDS",
        )


TABLE: tuple[JudgedQuantity, ...] = (
    JudgedQuantity(
        Quantity.RATE,
        "tensor",
        When.ALWAYS,
        "exact",
        "the learning rate of the tensor's parameter group",
        "the learning rate of the rule for the role of the tensor, corrected for the multipliers in"
        " the forward code and for the initial size",
        ("exact",),
        SOLVER,
        judged_in="settings.py: SettingsJudge._of_tensor",
    ),
    JudgedQuantity(
        Quantity.WEIGHT,
        "tensor",
        When.START,
        "law",
        "the initial size of a tensor",
        "the initial size of the rule. Tensors whose shape does not grow may start smaller. In a"
        " model that comes with its optimizer, readouts, biases and position embeddings may start"
        " smaller too",
        ("boundary", "next", "drawn"),
        FACTORS,
        weight,
    ),
    JudgedQuantity(
        Quantity.UPDATE,
        "tensor",
        When.FIRST_UPDATE,
        "law",
        "the first update of a tensor",
        "the size that the update law gives for the learning rate, the measured gradient and the"
        " measured weights",
        ("boundary", "next"),
        UPDATES,
        update,
    ),
    JudgedQuantity(
        Quantity.STEP,
        STUDY,
        When.FIRST_UPDATE,
        "exact",
        "one factor for all tensors: the measured update divided by the update that follows from"
        " learning rate and gradient",
        "the same factor at every size: steps are neither clipped nor made smaller by eps",
        ("common", "exact"),
        UPDATES,
        judged_in="common_excess.py: common_excess",
    ),
    JudgedQuantity(
        Quantity.DECAY,
        "tensor",
        When.START,
        "law",
        "the fraction by which weight decay shrinks a tensor in one step",
        "the fraction is the same at every size",
        ("boundary", "next"),
        FACTORS,
        decay,
    ),
    JudgedQuantity(
        Quantity.PENALTY,
        "tensor",
        When.START,
        "exact",
        "weight_decay, where the optimizer adds it to the gradient and normalizes the sum (Adam)",
        "it scales like gradient / weight",
        ("exact", "negligible"),
        FACTORS,
        judged_in="settings.py: SettingsJudge._penalty",
    ),
    JudgedQuantity(
        Quantity.EPS,
        "tensor",
        When.START,
        "exact",
        "eps, where it is at least a tenth of the gradient and so changes the size of steps",
        "it scales like the gradient of the rule",
        ("exact", "damped"),
        UPDATES,
        judged_in="settings.py: SettingsJudge._eps",
    ),
    JudgedQuantity(
        Quantity.SETTINGS,
        STUDY,
        When.START,
        "exact",
        "betas, momentum and other time scales in steps",
        "they are the same at every size",
        (),
        FACTORS,
        judged_in="settings.py: SettingsJudge._time_scales",
    ),
    JudgedQuantity(
        Quantity.MULTIPLIER,
        "tensor",
        When.START,
        "exact",
        "a number in the forward code that depends on the width and that no matrix can absorb,"
        " because it multiplies a term of a sum after a nonlinearity, the input of a softmax, or"
        " the output of the model",
        "the product is of order one. So where the activation that the number multiplies is of"
        " order one, the number must not depend on the width. A sum of n products of activations"
        " counts as n times one product, because training aligns the products",
        ("exact", "boundary"),
        SIZES,
        judged_in="multipliers.py: multipliers",
    ),
    JudgedQuantity(
        Quantity.SCHEDULE,
        STUDY,
        When.ALWAYS,
        "exact",
        "the learning rates of each tensor over the whole schedule",
        "at every step the same multiple of those of the smallest model",
        (),
        SCHEDULES,
        judged_in="judging.py: _without_fits",
    ),
    JudgedQuantity(
        Quantity.SHAPES,
        STUDY,
        When.START,
        "exact",
        "the shapes of all tensors",
        "they depend on the size",
        (),
        FACTORS,
        judged_in="judging.py: _without_fits",
    ),
    JudgedQuantity(
        Quantity.INPUT,
        "module",
        When.START,
        "range",
        "the input of a hidden matrix or readout",
        "of order one, at the start or after the last step. There are three exceptions. First, some"
        " networks have a readout (a layer with many inputs and a fixed number of outputs) before"
        " their end: the input of a layer after it may be smaller by n^-1/2, and after two or more"
        " of them by n^-1. Second, an input may consist of a growing part and a fixed number of"
        " entries (an action, a position): it may shrink at these sizes. Third, biases that start"
        " smaller in large models (as torch draws them) may be most of an output before it",
        ("boundary", "missing alignment", "dominant"),
        SIZES,
        input_at_start,
    ),
    JudgedQuantity(
        Quantity.OUTPUT,
        "module",
        When.START,
        "law",
        "the output of a module",
        "the product of the initial size of its tensors and of the measured size of its input",
        ("boundary", "next", "drawn"),
        SIZES,
        output_at_start,
    ),
    JudgedQuantity(
        Quantity.SCORES,
        "module",
        When.START,
        "range",
        "the input of the softmax of attention",
        "of order one at most, and at least n^-1/2 where the head size grows like n; exactly of"
        " order one where only the number of heads grows",
        ("boundary", "next"),
        ATTENTION,
        scores,
    ),
    JudgedQuantity(
        Quantity.CHANGE,
        "module",
        When.FIRST_AND_LAST,
        "range",
        "how far the output of a module on a fixed batch has moved since the start",
        "at most the size for the largest possible alignment; after the last step, at least the"
        " size for the measured alignment, unless the loss does not depend on the output",
        ("boundary", "next", "missing alignment", "vanishing"),
        SIZES,
        change,
    ),
    JudgedQuantity(
        Quantity.SCORE_CHANGE,
        "module",
        When.FIRST_AND_LAST,
        "range",
        "attention: how far the input of the softmax has moved",
        "computed from three things: how the head size grows, by which power of the head size the"
        " model divides scores, and the sizes of queries and keys",
        ("boundary", "next", "missing alignment"),
        ATTENTION,
        score_change,
    ),
    JudgedQuantity(
        Quantity.OUTPUT,
        "module",
        When.LAST,
        "bound",
        "the output of a module",
        "at most the larger of its initial size and the size of its change",
        ("boundary", "next"),
        SIZES,
        output_later,
    ),
    JudgedQuantity(
        Quantity.OUTPUT_GRADIENT,
        "module",
        When.START,
        "range",
        "the gradient of the output of a module",
        "the gradient of the rule, or n^-1/2 times as much without alignment. A larger one is not a"
        " fault by itself, except for SGD at the output of the whole model",
        ("boundary", "missing alignment"),
        SIZES,
        output_gradient,
    ),
    JudgedQuantity(
        Quantity.GRADIENT,
        "tensor",
        When.START,
        "law",
        "the gradient of a tensor",
        "the gradient of the rule; it helps to find causes, and is never FAIL by itself",
        ("rough",),
        SIZES,
        gradient,
    ),
    JudgedQuantity(
        Quantity.GRADIENT,
        STUDY,
        When.START,
        "exact",
        "the factor by which the gradients of all tensors are larger than those of the rule; for"
        " optimizers whose steps follow gradients (SGD)",
        "the same factor at every size: the loss has no factor that depends on the size",
        ("rough",),
        SIZES,
        judged_in="common_excess.py: common_gradient",
    ),
)


def row_of(quantity: Quantity, step: int, of_study: bool) -> JudgedQuantity:
    """Return the row by which a line was judged; `of_study`: it is about all tensors together."""
    rows = [row for row in TABLE if row.quantity == quantity]
    rows = [row for row in rows if (row.subject == STUDY) == of_study] or rows
    for row in rows:
        if (row.when == When.START) == (step == 0):
            return row
    return rows[0]
