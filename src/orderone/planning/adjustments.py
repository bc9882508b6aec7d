"""What changes a tensor's factors beside its role, one consideration after the other.

Constants that the forward code itself multiplies with; the place in a residual branch; attention
scores; a tied readout; and at last the gauge. Each works on all drafts, and returns multipliers for
the forward pass and notes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from orderone.planning.counterparts import stack_of
from orderone.planning.draft import Draft
from orderone.planning.forward_facts import ForwardFacts, Score
from orderone.planning.options import Request
from orderone.planning.plan import Multiplier
from orderone.rules.factors import depth_factors, paper_multiplier, tied_multiplier

Drafts = Mapping[str, Draft]


def forward_constants(drafts: Drafts, seen: ForwardFacts) -> None:
    """The forward code multiplies by a power of the width: the tensor stands behind that
    already."""
    for draft in drafts.values():
        lookup = draft.role.tied is not None or draft.role.role == "embedding"
        power = seen.power(draft.seen_as, "lookup" if lookup else "matrix")
        if power and draft.grows:
            if draft.role.role == "readout":
                growth = draft.role.growth.fan_in
            else:
                growth = draft.role.growth.fan_out
            draft.stands_behind(growth**power)
            draft.reasons.append(f"the forward code multiplies by n^{power:.3g} itself")


def branches(
    drafts: Drafts, seen: ForwardFacts, rule: str | None
) -> tuple[list[Multiplier], list[str]]:
    """Residual branches of a deeper model shrink; the last tensor of a branch takes the factor."""
    deeper = [draft for draft in drafts.values() if draft.depth != 1]
    if not deeper:
        return [], []
    if rule is None:
        times = max(draft.depth for draft in deeper)
        return [], [
            f"the model is {times:.3g} times as deep as its base; depth=None, so nothing scales"
            " with depth"
        ]
    seen.require_branches()
    multipliers = []
    for draft in deeper:
        place = seen.branch(draft.seen_as)
        if place is None:
            continue
        last = place == "last"
        hooked = last and not draft.can_be_multiplied
        draft.factors *= depth_factors(rule, draft.depth, draft.algorithm.law, last and not hooked)
        draft.reasons.append("ends a residual branch" if last else "in a residual branch")
        if hooked:
            factor = depth_factors(rule, draft.depth, "adam", last=True).std
            module = draft.evidence.item.places[0].module
            multipliers.append(
                Multiplier(
                    module, factor, "output", "a residual branch; its gain is stored as an offset"
                )
            )
    return multipliers, []


def scores(drafts: Drafts, seen: ForwardFacts, wanted: float) -> list[str]:
    """q k / d^power: what the model's own scale lacks goes into the queries."""
    notes: dict[str, None] = {}
    for score in seen.scores:
        missing = score.head_growth ** -(wanted + score.power)
        if abs(missing - 1) < 1e-6:
            continue
        queries = [d for d in drafts.values() if d.seen_as in score.queries]
        if score.separate and queries:
            _divide_scores(drafts.values(), queries, score, missing)
        else:
            notes[_packed(score, missing)] = None
    return list(notes)


def _divide_scores(
    drafts: Iterable[Draft], queries: Iterable[Draft], score: Score, missing: float
) -> None:
    for draft in drafts:
        if draft.seen_as in (
            *score.queries,
            *score.keys,
        ):  # the gradients of both pass through the scores
            draft.factors = replace(draft.factors, gradient=draft.factors.gradient * missing)
    for draft in queries:
        draft.fold(missing, "attention scores are divided by the head size, not its root")


def _packed(score: Score, missing: float) -> str:
    return (
        f"attention scores need a factor {missing:.4g}, because the head size grows by"
        f" {score.head_growth:.4g}, and the queries cannot take it"
        f" ({', '.join(map(stack_of, score.queries)) or 'not found'}: packed with keys and values,"
        " or a gain stored as an offset): grow the number of heads instead of their size, or set"
        " the model's own attention scale"
    )


def tied_readouts(
    drafts: Drafts, seen: ForwardFacts, request: Request
) -> tuple[list[Multiplier], list[str]]:
    """The one multiplier that no gauge removes: into the norm before the readout, or a hook."""
    multipliers: list[Multiplier] = []
    notes: list[str] = []
    for draft in drafts.values():
        if draft.role.tied is None or not draft.grows:
            continue
        there = draft.role.tied ** (
            seen.power(draft.seen_as, "matrix") - seen.power(draft.seen_as, "lookup")
        )
        law = draft.algorithm.law
        needed = tied_multiplier(request.parameterization(law), draft.role.tied, law) / there
        draft.multiplier = needed
        if abs(needed - 1) < 1e-9:
            continue
        carriers = [
            other
            for other in drafts.values()
            if other.seen_as in seen.carriers.get(draft.seen_as, ())
        ]
        if carriers and all(other.can_be_multiplied for other in carriers):
            for other in carriers:
                other.fold(needed, "the multiplier of the tied readout")
            draft.reasons.append(
                f"as a readout times {needed:.4g}, carried by"
                f" {' and '.join(c.name for c in carriers)}"
            )
            continue
        looked_up = any(layout.kind == "lookup" for layout in draft.evidence.layouts)
        places = [
            p.module
            for p in draft.evidence.item.places
            if looked_up and p.layout and p.layout.kind == "matrix"
        ]
        multipliers += [
            Multiplier(module, needed, "input", "the readout is the embedding") for module in places
        ]
        draft.reasons.append(f"as a readout times {needed:.4g}")
        if not places:
            notes.append(
                f"{draft.name} is the readout too, in code that is no module: multiply its logits"
                f" by {needed:.6g} yourself, or put a trainable norm in front of it"
            )
    return multipliers, notes


def gauge(drafts: Drafts, request: Request) -> Iterator[Multiplier]:
    """Multipliers for those who want to see them. Biases and gains have none."""
    for draft in drafts.values():
        multiplier = _own_multiplier(draft, request)
        if abs(multiplier - 1) > 1e-12:
            draft.factors = draft.factors.behind(multiplier, draft.law)
            draft.multiplier *= multiplier  # a tied readout has one already
            yield from _hooks(draft, multiplier, request.gauge)


def _own_multiplier(draft: Draft, request: Request) -> float:
    if request.gauge == "folded" or not draft.grows or draft.role.role == "vector":
        return 1.0
    if request.gauge == "unit":
        return draft.factors.std
    return paper_multiplier(
        request.parameterization(draft.algorithm.law), draft.role.role, draft.role.growth
    )


def _hooks(draft: Draft, multiplier: float, name: str) -> Iterator[Multiplier]:
    """On what a lookup gives, on what a matrix reads; all places that hold a tied tensor."""
    kinds = {place.layout.kind for place in draft.evidence.item.places if place.layout}
    for place in draft.evidence.item.places:
        unreachable = (
            place.attribute != "weight" or place.owner == "NonDynamicallyQuantizableLinear"
        )
        if unreachable or place.layout is None or (draft.role.tied is not None and len(kinds) < 2):
            raise ValueError(
                f"gauge: no hook can multiply {draft.name} alone inside {place.owner}; use"
                " gauge='folded', which trains the same network"
            )
        side = "output" if place.layout.kind == "lookup" else "input"
        yield Multiplier(place.module, multiplier, side, f"{name} gauge")


def together(multipliers: Iterable[Multiplier]) -> tuple[Multiplier, ...]:
    """One multiplier for each side of a module."""
    merged: dict[tuple[str, str], Multiplier] = {}
    for m in multipliers:
        key = (m.module, m.side)
        before = merged.get(key)
        if before:
            merged[key] = replace(
                m, value=m.value * before.value, reason=f"{before.reason}, {m.reason}"
            )
        else:
            merged[key] = m
    return tuple(m for m in merged.values() if abs(m.value - 1) > 1e-12)
