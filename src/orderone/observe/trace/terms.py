"""Numbers that multiply activations at places where the size of the product is fixed.

    x + c relu(W x)

The other term of the sum fixes the size of c relu(W x). So do a softmax or another function that
is not homogeneous, and the output of the model. If c multiplies no use of a matrix, no learning
rate or initial size shows it, and the other terms of a sum hide it from measured sizes.
"""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from orderone.observe.trace.facts import Term
from orderone.observe.trace.graph import Graph
from orderone.observe.trace.steps import Step, Value

_FACTORS = ("constant", "gain", "weighting")
SAME = 1e-3  # relative difference of sums in single precision


def scaled_terms(graph: Graph, outputs: Sequence[Value]) -> tuple[Term, ...]:
    """Return the numbers, except those that a norm divides out; `outputs` are the model's."""
    terms: list[Term] = []
    for index, step in enumerate(graph.steps):
        if not _is_factor(step) or _follows_a_factor(graph, step) or graph.is_divided_out(index):
            continue
        linear_in = graph.linear_in(index)
        near = _nearest_tensors(graph, index)
        aligned = _aligned_size(graph, index)
        for term, others, factor in _readers(graph, index, step.factor, outputs):
            size_of_others = None
            if others:
                size_of_others = _rms(*others)
            terms.append(Term(factor, _rms(term), size_of_others, linear_in, near, aligned))
    return tuple(terms)


def _is_factor(step: Step) -> bool:
    return step.kind == "constant" or step.scaled_gain


def _follows_a_factor(graph: Graph, step: Step) -> bool:
    """Return whether a factor before this step already counts with this one, as their product."""
    while len(step.parents) == 1:
        step = graph.steps[step.parents[0]]
        if _is_factor(step):
            return True
        if step.kind != "pass" and step.kind not in _FACTORS:
            return False
    return False


def _readers(
    graph: Graph,
    index: int,
    factor: float | None,
    outputs: Sequence[Value],
    term: Value | None = None,
) -> Iterator[tuple[Value, Sequence[Value], float | None]]:
    """Yield each place that fixes the size: the term, the rest of a sum, and the factor.

    `term` is the result of an earlier step: what moves or masks its entries leaves its size alone,
    and so does a gain that starts at zero and learns to let it pass.
    """
    for child in graph.children[index]:
        step = graph.steps[child]
        result = next(value for value in step.flow if value.step == index)
        if term is not None and term.tensor.numel() == result.tensor.numel():
            result = term
        others = [value for value in step.flow if value.step != index]
        if step.kind in ("add", "pass") and len(step.flow) > 1:
            if len(others) == len(step.flow) - 1:
                yield result, others, factor
        elif step.kind == "softmax" or step.bends:
            # attention scores are judged by themselves; the logits of a loss are not
            is_score = step.kind in ("softmax", "softcap") and graph.is_product(index)
            if not is_score:
                yield result, (), factor
        elif step.kind == "product":  # a gate
            if len(others) == 1:
                yield from _readers(graph, child, factor, outputs)
        elif step.kind == "pass" and len(step.parents) == 1:
            yield from _readers(graph, child, factor, outputs, result)
        elif step.kind in _FACTORS and len(step.parents) == 1:
            product = None
            if factor is not None and step.factor is not None:
                product = factor * step.factor
            closed = step.kind == "gain" and _is_zero(graph, child)
            yield from _readers(graph, child, product, outputs, result if closed else None)
    for value in outputs:
        if value.step == index:
            yield value, (), factor


def _aligned_size(graph: Graph, index: int) -> float | None:
    """Return the RMS of what a factor multiplies if all products in a sum had the same sign.

    None if it is no sum of products of activations, squares among them, or if the root of the sum
    divides an activation.
    """
    result = graph.steps[index]
    if graph.makes_statistics(index):
        return None
    step = result
    while len(step.parents) == 1 and len(step.flow) == 1:
        at = step.parents[0]
        before = graph.steps[at]
        if before.kind == "contraction" and before.product is not None:
            return before.product[2] * math.prod(_rms(value) for value in before.flow)
        if before.kind == "product" or before.squares:
            products = next(value for value in step.flow if value.step == at)
            return _aligned_sum(products.tensor, result.flow[0].tensor)
        if before.kind != "pass":
            return None
        step = before
    return None


def _aligned_sum(products: Tensor, sums: Tensor) -> float | None:
    """Return the size of sums or means of products if all products had the same sign.

    The sums may have the other sign, as minus a squared distance has.
    """
    if products.is_meta or sums.is_meta or not sums.numel():
        return None
    terms = products.numel() / sums.numel()
    size = float(products.detach().abs().mean())
    total = abs(float(products.detach().cpu().double().sum()))
    total_of_sums = abs(float(sums.detach().cpu().double().sum()))
    if terms <= 1 or not total:
        return None
    if math.isclose(total_of_sums, total, rel_tol=SAME):
        return terms * size
    if math.isclose(total_of_sums * terms, total, rel_tol=SAME):
        return size
    return None


def _is_zero(graph: Graph, index: int) -> bool:
    """Return whether the result of a step is zero, as behind a gate that starts closed."""
    for child in graph.children[index]:
        for value in graph.steps[child].flow:
            if value.step == index:
                return _rms(value) == 0
    return False


def _nearest_tensors(graph: Graph, index: int) -> tuple[str, ...]:
    """Return the last tensors that are used on the way to a step."""
    level = [index]
    seen = set(level)
    while level:
        names = [name for at in level for name in _used_at(graph.steps[at])]
        if names:
            return tuple(dict.fromkeys(names))
        parents = [parent for at in level for parent in graph.steps[at].parents]
        level = [parent for parent in dict.fromkeys(parents) if parent not in seen]
        seen.update(level)
    return ()


def _used_at(step: Step) -> list[str]:
    return [name for name, use in step.uses if use.kind != "shift"]


def _rms(*values: Value) -> float:
    """Return the root mean square of all entries; NaN for tensors without entries or values."""
    squares = 0.0
    entries = 0
    for value in values:
        tensor: Tensor = value.tensor.detach()
        if tensor.is_meta or not tensor.numel():
            return math.nan
        squares += float(tensor.double().square().sum())
        entries += tensor.numel()
    return math.sqrt(squares / entries)
