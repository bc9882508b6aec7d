"""Judge powers of the width in the forward code that no learning rate compensates.

`observe.trace.terms` finds the places where the size is fixed: in a sum, before a softmax, at the
output. What the number multiplies there was measured when the smallest and the largest model were
traced. If it is of order one without the number, it is not with it. What follows a readout starts
with n^-1/2 and becomes of order one. Other sizes, such as zero, do not tell what is right.

A sum of n products of two activations (queries times keys as an output, the dot product of two
tables) starts with n^1/2, and training aligns its terms: the factor must be 1/n if both are of
order one.
"""

from collections.abc import Iterator

from orderone.core.roles import Role
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.thresholds import BOUNDARY, EXACT
from orderone.measure.judge.verdict import SYMBOLS, Judgement, Reason, Verdict
from orderone.measure.observations import StudyResult
from orderone.observe.quantities import Quantity
from orderone.planning.forward_constants import ScaledTerm

START = -0.5  # exponent of the initial output of a readout


def multipliers(study: StudyResult, facts: StudyFacts) -> Iterator[Judgement]:
    """Yield one line for each power of the width that no tensor of the plan has."""
    if facts.theory is None or study.family is None or not study.in_width:
        return
    for term in study.family.facts.terms:
        near = [study.observations.key(name) for name in term.near]
        follows_readout = any(_follows_readout(facts, name) for name in near)
        result = term.power + term.size
        if abs(term.power) <= EXACT or _is_scaled_sum(term) or _is_compensated(facts, term):
            continue
        name = near[0] if near else ""
        if term.aligned is not None:
            yield _line_on_sum(study, name, term.power, term.aligned)
        elif abs(term.size) <= BOUNDARY or (follows_readout and abs(term.size - START) <= BOUNDARY):
            yield _line(study, name, term.power, result, Verdict.FAIL)
        elif abs(result) <= BOUNDARY:
            yield _line(study, name, term.power, result, Verdict.PASS)


def _follows_readout(facts: StudyFacts, name: str) -> bool:
    """Return whether a tensor is a readout, or a tensor of fixed size behind one in the network."""
    assert facts.theory is not None
    if name not in facts.theory.rows:
        return False
    role = facts.theory.rows[name][1].role
    return role == Role.READOUT or (role == Role.FIXED and bool(facts.interior_readouts))


def _is_compensated(facts: StudyFacts, term: ScaledTerm) -> bool:
    """Return whether the learning rate of a tensor is judged with this power.

    Those of queries and keys are judged along with attention scores.
    """
    assert facts.theory is not None
    assert facts.study.family is not None
    for tensor in term.linear_in:
        name = facts.study.observations.key(tensor)
        if tensor in facts.study.family.facts.scored or name not in facts.theory.rows:
            return True
        if facts.theory.exponent(name, lambda row: row.factors.gauge):
            return True
    return False


def _is_scaled_sum(term: ScaledTerm) -> bool:
    """Return whether all of a sum has the factor, so that it may be divided out behind it."""
    return term.others is not None and abs(term.others - term.power - term.size) <= BOUNDARY


def _line_on_sum(study: StudyResult, name: str, power: float, aligned: float) -> Judgement:
    """Judge the factor of a sum of products of activations, which training aligns."""
    excess = power + aligned  # over the factor that is right
    if abs(excess) <= BOUNDARY:
        return _line(study, name, excess, excess, Verdict.PASS)
    symbol = SYMBOLS[study.axis]
    cause = (
        f"the forward code multiplies a sum of products of activations, behind {name}, by"
        f" {symbol}^{power:+.2f}. Training aligns these products (squares are aligned at once), so"
        f" that their sum is of size {symbol}^{aligned:+.2f}: multiply it by"
        f" {symbol}^{-aligned:+.2f}"
    )
    return _line(study, name, excess, excess, Verdict.FAIL, cause)


def _line(
    study: StudyResult, name: str, power: float, result: float, verdict: Verdict, cause: str = ""
) -> Judgement:
    if verdict == Verdict.FAIL and not cause:
        cause = (
            f"the forward code multiplies what follows {name or 'the input'} by"
            f" {SYMBOLS[study.axis]}^{power:+.2f}, and no initial size or learning rate"
            " compensates it: remove it"
        )
    return Judgement(
        name,
        Quantity.MULTIPLIER,
        0,
        result,
        result,
        result,
        0.0,
        verdict,
        cause,
        "",
        Reason.SETTING,
        multiplier=power,
    )
