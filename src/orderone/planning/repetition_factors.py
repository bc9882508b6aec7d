"""Adjustment of keys and values whose number of queries differs: grouped-query attention.

Separate projections are recognised by their names (`roles.vocabulary.ATTENTION_PARTS`): queries,
keys and values of one module. Their widths are those of the queries; that there are fewer keys than
queries is the repetition, with the rule of `rules.axes.repetition`. A number of key heads that is
the same in base and target, while queries grow, stays a bottleneck.
"""

from dataclasses import dataclass, replace

from orderone.core.roles import Role
from orderone.planning.adjustments import Draft, Drafts
from orderone.planning.request import Request
from orderone.planning.roles.evidence import Evidence
from orderone.planning.roles.experts import Size
from orderone.planning.roles.resolve import ResolvedRole
from orderone.rules.axes import width_factors
from orderone.rules.axes.repetition import repetition_factors
from orderone.rules.factors import Factors, Growth


@dataclass(frozen=True)
class Repetition:
    """How many queries share a key or value, in the base and in the target."""

    base: float
    target: float
    queries: str  # name of the matrix of the queries

    @property
    def growth(self) -> float:
        return self.target / self.base

    @property
    def sizes(self) -> tuple[float, float]:
        return self.base, self.target


def repetitions(tensors: list[Evidence]) -> dict[str, Repetition]:
    """Return the repetition of every matrix and bias of keys and values."""
    queries: dict[str, Evidence] = {}
    for evidence in tensors:
        if evidence.hints.attention_part == "Q" and evidence.only_matrix is not None:
            queries[_attention(evidence)] = evidence
    result: dict[str, Repetition] = {}
    for evidence in tensors:
        query = queries.get(_attention(evidence))
        if query is None or evidence.hints.attention_part not in ("K", "V"):
            continue
        ours = _outputs(evidence)
        theirs = _outputs(query)
        if ours is not None and theirs is not None:
            base = theirs[0] / ours[0]
            result[evidence.name] = Repetition(base, theirs[1] / ours[1], query.name)
    return result


def _attention(evidence: Evidence) -> str:
    """Return the module that contains the projections."""
    return evidence.item.places[0].module.rpartition(".")[0]


def _outputs(evidence: Evidence) -> Size | None:
    layout = evidence.only_matrix
    if layout is not None:
        return evidence.together(layout.fan_out)
    if len(evidence.sizes) == 1:
        return evidence.sizes[0]
    return None


def repeated_keys(
    drafts: Drafts, repeated: dict[str, Repetition], request: Request
) -> dict[str, Draft]:
    """Give keys and values the widths of the queries, and the factors of their repetition."""
    result = dict(drafts)
    for name, repetition in repeated.items():
        draft = drafts[name]
        query = drafts[repetition.queries]
        outputs = _outputs(draft.evidence)
        # heads are equally many in base and target: a bottleneck, or no repetition
        if (
            repetition.growth == 1
            or outputs is None
            or outputs[0] == outputs[1]
            or not draft.trained
        ):
            continue
        result[name] = _scaled(draft, query, repetition, request)
    return result


def _scaled(draft: Draft, query: Draft, repetition: Repetition, request: Request) -> Draft:
    law = draft.algorithm.law
    growth = Growth(draft.resolved.growth.fan_in, query.resolved.growth.fan_out)
    role = query.role
    if draft.evidence.only_matrix is None:  # a bias
        growth = Growth(fan_out=growth.fan_out)
        if growth.fan_out == 1:
            role = Role.FIXED
        else:
            role = Role.VECTOR
    factors = Factors()
    if role != Role.FIXED:
        factors = width_factors(request.parameterization(law), role, growth, law)
    if request.repetition_rule is not None:
        base, target = repetition.sizes
        factors = factors * repetition_factors(base, target, law, request.repetition_rule)
    target_rate = draft.algorithm.rate_factor(draft.evidence.item.shape)
    base_rate = draft.algorithm.rate_factor(draft.evidence.base_shape)
    factors = replace(factors, lr=factors.lr / (target_rate / base_rate))
    base_words = f"{repetition.base:.4g}"
    reason = (
        f"shared by {repetition.target:.4g} queries (base: {base_words}), rule"
        f" {request.repetition_rule}"
    )
    if role != Role.FIXED:
        reason = f"{query.resolved.reason}, as for the queries; {reason}"
    resolved = ResolvedRole(role, growth, reason)
    return replace(draft, resolved=resolved, factors=factors, reasons=(reason,))
