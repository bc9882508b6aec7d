"""Text of a check: rows that are UNCLEAR say why."""

from dataclasses import replace
from typing import Any

import pytest

from orderone.measure.check import Check
from orderone.measure.judge.verdict import Judgement, Reason, Verdict
from orderone.measure.observations import Observations
from orderone.observe.quantities import Quantity

PROVENANCE = {
    "rule": "mup",
    "optimizer": "adamw",
    "lr": 0.01,
    "sizes": (64, 128, 256),
    "seeds": (0,),
    "steps": 4,
}


def check(*lines: Judgement) -> Check:
    return Check(Observations("width", str), lines, Verdict.UNCLEAR, (), (), PROVENANCE)


def unclear(module: str, low: float, high: float, **changes: Any) -> Judgement:
    values = {"cause": "a reason", "bound": 0.0, "predicted": 0.0, "reason": Reason.OTHER} | changes
    return Judgement(
        module=module,
        quantity=Quantity.OUTPUT,
        step=0,
        exponent=0.0,
        low=low,
        high=high,
        verdict=Verdict.UNCLEAR,
        role="hidden",
        **values,
    )


def text_of(result: Check) -> str:
    return " ".join(str(result).split())


@pytest.mark.parametrize("bound", [0.0, float("nan")], ids=["at most", "exactly"])
def test_an_interval_that_reaches_out_is_the_reason(bound):
    result = check(
        unclear("a", -0.6, 0.6, bound=bound, reason=Reason.NOISY),
        unclear("b", -0.7, 0.7, bound=bound, reason=Reason.NOISY),
    )
    text = text_of(result)
    assert "[-0.60, +0.60]" in text
    assert "UNCLEAR: the interval" in text
    assert " 2 exponents" in text
    assert "a reason" not in text  # it repeats the interval


def test_growth_that_weakens_is_not_called_noise():
    text = text_of(check(unclear("a", 0.2, 0.9, reason=Reason.FADES, cause="it weakens")))
    assert "UNCLEAR: the interval" not in text
    assert "UNCLEAR, a, output: it weakens" in text


def test_another_reason_is_printed_with_its_modules():
    lines = [unclear(f"blocks.{k}", -0.1, 0.1) for k in range(3)]
    text = text_of(check(*lines, unclear("", -0.1, 0.1)))
    assert "UNCLEAR: the interval" not in text
    assert "UNCLEAR, blocks.{0..2} and (the model), output: a reason" in text


def test_growth_that_the_rule_predicts_is_a_reason_of_its_own():
    line = unclear("a", -9.0, 9.0, reason=Reason.PREDICTED_GROWTH, cause="predicted growth")
    assert "UNCLEAR, a, output: predicted growth" in text_of(check(line))


def test_few_reasons_are_printed():
    lines = [unclear(name, -0.1, 0.1, cause=f"reason {name}") for name in "abcdef"]
    result = check(*lines)
    assert text_of(result).count("reason ") == 3
    assert "3 more causes" in text_of(result)
    assert "reason a" in result._repr_html_()


def test_a_reason_names_the_row_that_it_explains():
    line = unclear("a", -0.1, 0.1, cause="a reason")
    later = replace(line, quantity=Quantity.CHANGE, step=4, cause="another reason")
    text = text_of(check(line, later))
    assert "UNCLEAR, a, output: a reason" in text
    assert "UNCLEAR, a, change, step 4: another reason" in text
