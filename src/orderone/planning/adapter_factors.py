"""Adjustment of adapters whose rank differs between base and target.

LoRA: the rule is in `rules.axes.rank`; `roles.adapters` finds the pairs of matrices. The multiplier
of the adapter (alpha / r, alpha / sqrt(r)) is read from the forward code of base and target.

Others: `roles.adapter_blocks` finds them, and `adapter_response` measures their factors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import exp, log, prod
from statistics import fmean

from torch import nn

from orderone.core.errors import InputError, without_code
from orderone.core.roles import Role
from orderone.planning.adapter_response import NotMeasured, Response, response_ratios
from orderone.planning.adjustments import Draft, Drafts
from orderone.planning.counterparts import stack_of
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.request import Request
from orderone.planning.roles.adapter_blocks import AdapterBlock
from orderone.planning.roles.adapters import AdapterPart
from orderone.rules.axes import width_factors
from orderone.rules.axes.rank import rank_factors
from orderone.rules.factors import Factors, Growth

MEASURED = 4  # blocks of a stack whose responses are averaged


def adapters_of_other_rank(
    drafts: Drafts, parts: Mapping[str, AdapterPart], facts: ForwardFacts, request: Request
) -> Drafts:
    """Scale adapters with their rank; rank_rule=None: only with the width.

    The drafts of adapters have the factors of `factors_in_width`.
    """
    result = dict(drafts)
    for name, part in parts.items():
        if part.growth == 1 or request.rank_rule is None:
            continue
        _check_product(drafts, name, part)
        if part.matrix == "B":
            b = name
        else:
            b = part.partner
        multiplier = _multiplier(drafts[b], facts, part)
        result[name] = _scaled(drafts, name, part, multiplier, request)
    return result


def _scaled(
    drafts: Drafts, name: str, part: AdapterPart, multiplier: float, request: Request
) -> Draft:
    draft = drafts[name]
    if part.matrix == "A":
        a = name
    else:
        a = part.partner
    if drafts[a].base.rms:
        random = "A"
    else:
        random = "B"
    if request.rank_rule == "mup":
        factors = _by_rule(draft, request)
        if part.matrix == "B":
            factors = replace(factors.with_multiplier(multiplier, draft.update_law), multiplier=1.0)
    else:
        law = draft.algorithm.law
        in_rank = rank_factors(
            part.matrix, part.growth, multiplier, law, str(request.rank_rule), random
        )
        factors = draft.factors * in_rank
    reason = (
        f"{part.matrix} of an adapter, rank {part.rank[0]} -> {part.rank[1]}, multiplier"
        f" x{multiplier:.4g}, rule {request.rank_rule}"
    )
    return replace(draft, factors=factors, reasons=(reason,))


def _by_rule(draft: Draft, request: Request) -> Factors:
    """Return the factors of the rule, with the rank as a width."""
    return _factors(draft, draft.role, draft.resolved.growth, request)


def _factors(draft: Draft, role: str, growth: Growth, request: Request) -> Factors:
    algorithm = draft.algorithm
    rule = request.parameterization(algorithm.law)
    factors = width_factors(rule, role, growth, algorithm.law)
    # 1 except for Muon: its step multiplies lr by a function of the shape
    target = algorithm.rate_factor(draft.evidence.item.shape)
    base = algorithm.rate_factor(draft.evidence.base_shape)
    return replace(factors, lr=factors.lr / (target / base))


def factors_in_width(draft: Draft, part: AdapterPart, request: Request) -> Factors:
    """Return the factors of the rule for the growth of the frozen matrix alone."""
    growth = draft.resolved.growth
    if part.matrix == "A":
        role = Role.READOUT
        growth = Growth(fan_in=growth.fan_in)
    else:
        role = Role.EMBEDDING
        growth = Growth(fan_out=growth.fan_out)
    return _factors(draft, role, growth, request)


def _multiplier(b: Draft, facts: ForwardFacts, part: AdapterPart) -> float:
    """Return the multiplier of the adapter, target over base."""
    value = facts.constant_growth.get((b.traced_as, "matrix"))
    in_scores = any(b.traced_as in score.queries + score.keys for score in facts.scores)
    if value is not None and value > 0 and not in_scores:
        return value
    why = "a constant in the forward code could not be read"
    if facts.pair is None:
        why = without_code(facts.note)
    elif in_scores:
        why = "the head size changes too, and with it the scale of attention scores"
    message = (
        f"rank: {b.name} has rank {part.rank[0]} in the base and {part.rank[1]} in the model, and"
        f" the multiplier of the adapter (alpha / r) is not known ({why}). Pass inputs=, an example"
        " batch, with base and model on one device; or rank_rule=None, which leaves the rank out"
    )
    raise InputError(message, "adapter-not-read", argument="rank_rule")


def _check_product(drafts: Drafts, name: str, part: AdapterPart) -> None:
    """Raise an InputError if both matrices of the base start away from zero, and so does their
    product."""
    if not drafts[name].base.rms or not drafts[part.partner].base.rms:
        return
    if not _has_zero_gain(drafts, name, part):
        message = (
            f"rank: {name} and {part.partner} both start away from zero (as in PiSSA or OLoRA, or"
            " after training). The adapter is then part of the pretrained model, and other initial"
            " sizes would change this model. Let one of the two start at zero, or pass"
            " rank_rule=None and do not call apply"
        )
        raise InputError(message, "adapter-not-zero", argument="rank_rule")


def _has_zero_gain(drafts: Drafts, name: str, part: AdapterPart) -> bool:
    """Return whether a gain of the rank starts at zero between the matrices (AdaLoRA's B E A x)."""
    pairs = zip(name.split("."), part.partner.split("."), strict=False)
    container = [first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    for other, draft in drafts.items():
        if other in (name, part.partner) or other.split(".")[: len(container)] != container:
            continue
        sizes = (prod(draft.evidence.base_shape), prod(draft.evidence.item.shape))
        if sizes == tuple(part.rank) and draft.evidence.item.tensor.requires_grad:
            return not draft.base.rms
    return False


# --- adapters that are not read -------------------------------------------------------------------


def measured_adapters(
    drafts: Drafts,
    blocks: Sequence[AdapterBlock],
    models: tuple[nn.Module, nn.Module | None],
    facts: ForwardFacts,
    request: Request,
) -> Drafts:
    """Scale the rates of adapters by the response of their outputs; rank_rule=None: not at all.

    `models` are the target and the base. Tensors of equal layers have the same factors.
    """
    result = dict(drafts)
    if not blocks:
        return result
    if request.rank_rule is None:
        for block in blocks:
            for name in block.tensors:
                result[name] = drafts[name].because("tensor of an adapter, rank_rule=None")
        return result
    _check_blocks(blocks, facts, request)
    power = _power(drafts, blocks)
    model, base = models
    assert base is not None  # otherwise there is no pair of traced models
    assert facts.pair is not None
    some = _some_of_each_stack(blocks)
    try:
        found = response_ratios(model, base, facts.pair.inputs, some, power)
    except NotMeasured as error:
        raise _not_read(blocks[0], str(error)) from error
    except Exception as error:  # the block's forward code may raise anything
        raise _not_read(blocks[0], f"{type(error).__name__}: {error}") from error
    means = _by_stack(found)
    for block in blocks:
        for name in block.tensors:
            result[name] = _with_response(drafts[name], means[stack_of(name)])
    return result


def _with_response(draft: Draft, response: Response) -> Draft:
    factors = Factors(lr=1 / response.change, gradient=response.gradient)
    shapes = f"{draft.evidence.base_shape} -> {draft.evidence.item.shape}"
    reason = f"tensor of an adapter, {shapes}: rate by the measured response of its output"
    return replace(draft, factors=factors, reasons=(reason,))


def _some_of_each_stack(blocks: Sequence[AdapterBlock]) -> list[AdapterBlock]:
    """Return the blocks to measure: a few of each stack of layers."""
    stacks: dict[str, list[AdapterBlock]] = {}
    for block in blocks:
        stacks.setdefault(stack_of(block.name), []).append(block)
    return [block for stack in stacks.values() for block in stack[:MEASURED]]


def _check_blocks(blocks: Sequence[AdapterBlock], facts: ForwardFacts, request: Request) -> None:
    """Raise an InputError if there is no rule for these adapters."""
    shapes: dict[str, object] = {}  # by the name that tensors of equal layers share
    for block in blocks:
        if request.rank_rule != "mup":
            raise _not_read(block, f"the rule {request.rank_rule!r} is for LoRA (B A x) only")
        if facts.pair is None:
            raise _not_read(block, without_code(facts.note))
        if block.frozen_differs:
            raise _not_read(block, "the frozen matrix that it adapts differs in size, too")
        for name, both in zip(block.tensors, block.shapes, strict=True):
            if shapes.setdefault(stack_of(name), both) != both:
                raise _not_read(block, "its tensors have different shapes in different layers")


def _power(drafts: Drafts, blocks: Sequence[AdapterBlock]) -> int:
    """Return the power of the response that an update follows: 1 for Adam, 2 for SGD."""
    powers: set[int] = set()
    for block in blocks:
        for name in block.tensors:
            law = drafts[name].update_law
            if law.spectral or law.weight or law.gradient not in (0, 1):
                why = f"no rule is known for {drafts[name].algorithm.label}; use adamw or sgd"
                raise _not_read(block, why)
            powers.add(1 + int(law.gradient))
    if len(powers) > 1:
        raise _not_read(blocks[0], "its tensors have optimizers with different update laws")
    return powers.pop()


def _by_stack(found: Mapping[str, Response]) -> dict[str, Response]:
    """Return the geometric means over the layers of each stack."""
    stacks: dict[str, list[Response]] = {}
    for name, response in found.items():
        stacks.setdefault(stack_of(name), []).append(response)
    means: dict[str, Response] = {}
    for stack, members in stacks.items():
        change = exp(fmean(log(response.change) for response in members))
        gradient = exp(fmean(log(response.gradient) for response in members))
        means[stack] = Response(change, gradient)
    return means


def _not_read(block: AdapterBlock, why: str) -> InputError:
    first = next(iter(block.tensors))
    base, target = block.shapes[0]
    message = (
        f"rank: {first} belongs to an adapter of another size in the base ({base} -> {target}), and"
        f" its factors could not be measured: {why}. Pass rank_rule=None, which leaves adapters"
        " with the settings of the base, or build the base with an adapter of the same size"
    )
    return InputError(message, "adapter-not-read", argument="rank_rule")
