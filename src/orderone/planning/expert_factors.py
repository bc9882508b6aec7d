"""Adjustment of the tensors in mixtures of experts whose number, or number of active ones, differs.

The rule is in `rules.axes.experts`. Numbers of experts come from the tensors
(`roles.experts`), numbers of active experts and the sums of their weights from the forward code
(`routing`). A factor of the sum is folded into the last tensors of the experts.
"""

from dataclasses import dataclass, replace

from orderone.core.errors import InputError, with_code, without_code
from orderone.planning.adjustments import Adjusted, Draft, Drafts
from orderone.planning.counterparts import stack_of
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.roles.experts import ROUTER, ExpertPart
from orderone.planning.routing import RoutingChange
from orderone.rules.axes.experts import ExpertGrowth, expert_factors

SAME = 1e-6  # ratios with a smaller difference from 1 are 1


@dataclass(frozen=True)
class _Block:
    """One mixture of experts in base and target."""

    drafts: dict[str, tuple[Draft, ExpertPart]]
    routing: RoutingChange | None
    outputs: frozenset[str]  # last tensors of the experts; empty if unknown

    @property
    def part(self) -> ExpertPart:
        return next(iter(self.drafts.values()))[1]

    @property
    def growth(self) -> ExpertGrowth:
        routing = self.routing
        assert routing is not None
        fan_in = 1.0
        width = 1.0
        for name, (draft, part) in self.drafts.items():
            growth = float(draft.resolved.growth.fan_in)
            if part.kind == ROUTER:
                fan_in = max(fan_in, growth)
            elif name in self.outputs:
                width = max(width, growth)
        return ExpertGrowth(self.part.growth, routing.active, routing.weights, width, fan_in)


def mixtures_of_experts(drafts: Drafts, facts: ForwardFacts, rule: str | None) -> Adjusted:
    """Scale experts and routers with the number of experts; None: no rule, every factor is 1."""
    if rule is None:
        return Adjusted(drafts)
    result = dict(drafts)
    notes: dict[str, None] = {}
    for block in _blocks(drafts, facts):
        if not any(draft.trained for draft, _ in block.drafts.values()) or not _grew(block, facts):
            continue
        growth = block.growth
        _check_outputs(block, growth, rule)
        for name, (draft, part) in block.drafts.items():
            if draft.trained:
                result[name] = _scaled(draft, part, block, growth, rule)
        if abs(growth.tokens - 1) > SAME:
            notes[_sparsity_note(block, growth)] = None
    return Adjusted(result, notes=tuple(notes))


def _blocks(drafts: Drafts, facts: ForwardFacts) -> list[_Block]:
    by_block: dict[str, dict[str, tuple[Draft, ExpertPart]]] = {}
    for name, draft in drafts.items():
        part = draft.evidence.expert
        if part is not None:
            by_block.setdefault(part.block, {})[name] = (draft, part)
    blocks: list[_Block] = []
    for name, tensors in by_block.items():
        routing = facts.routing.get(stack_of(name))
        blocks.append(_Block(tensors, routing, _outputs(tensors, facts)))
    return blocks


def _grew(block: _Block, facts: ForwardFacts) -> bool:
    """Return whether numbers of experts differ; raise an InputError if the routing is unknown."""
    part = block.part
    routing = block.routing
    if routing is not None:
        changes = (part.growth, routing.active, routing.weights)
        return any(abs(ratio - 1) > SAME for ratio in changes)
    if part.growth == 1:
        return False
    why = without_code(facts.note)
    if facts.pair is not None:
        why = (
            "the block could not be called alone, or did not give the same output for equal"
            " tokens, as if experts drop some"
        )
    block_name = part.block or "the model itself"
    message = (
        f"experts: {block_name} has {part.count[0]} experts in the base and {part.count[1]} in the"
        " model, and it is unknown how many are active and how their weights add up, which is"
        f" measured in a forward pass ({why}). Pass inputs=, an example batch, with base and model"
        " on the CPU; or expert_rule=None for no rule"
    )
    raise InputError(message, "experts-not-read", argument="expert_rule")


def _outputs(tensors: dict[str, tuple[Draft, ExpertPart]], facts: ForwardFacts) -> frozenset[str]:
    """Return the last tensors of the experts: at the end of a residual branch, or by their sizes.

    By size, the last matrix writes what the router reads, and reads something else.
    """
    traced: set[str] = set()
    router_sizes: set[tuple[int, int]] = set()
    for name, (draft, part) in tensors.items():
        layout = draft.evidence.only_matrix
        if part.kind == ROUTER and layout is not None:
            router_sizes.add(draft.evidence.together(layout.fan_in))
        elif part.kind != ROUTER and facts.branches.get(draft.traced_as) == "last":
            traced.add(name)
    if traced:
        return frozenset(traced)
    outputs: set[str] = set()
    for name, (draft, part) in tensors.items():
        layout = draft.evidence.only_matrix
        if part.kind == ROUTER or layout is None:
            continue
        writes = draft.evidence.together(layout.fan_out)
        if writes in router_sizes and draft.evidence.together(layout.fan_in) not in router_sizes:
            outputs.add(name)
            module = name.rpartition(".")[0]
            outputs |= {other for other in (f"{module}.bias", f"{name}_bias") if other in tensors}
    return frozenset(outputs)


def _check_outputs(block: _Block, growth: ExpertGrowth, rule: str) -> None:
    """Raise an InputError if a factor cannot be folded into the last tensors of the experts."""
    needed = abs(growth.weights - 1) > SAME
    if rule == "mssp":
        needed = needed or abs(growth.active - 1) > SAME
    part = block.part
    frozen = [name for name in block.outputs if not block.drafts[name][0].trained]
    if not needed or (block.outputs and not frozen):
        return
    if frozen:
        why = f"{frozen[0]} is frozen"
    else:
        why = "it is unknown which of their tensors is the last"
    message = (
        f"experts: the weights of the active experts in {part.block} sum to"
        f" {growth.weights:.4g} times the base's, and the factor cannot be folded into the experts,"
        f" because {why}. Normalize the weights in the model's code (norm_topk_prob), pass inputs=,"
        " an example batch, or expert_rule=None for no rule"
    )
    raise InputError(message, "experts-not-read", argument="expert_rule")


def _scaled(
    draft: Draft, part: ExpertPart, block: _Block, growth: ExpertGrowth, rule: str
) -> Draft:
    if part.kind == ROUTER:
        tensor = "router"
    else:
        tensor = "expert"
    if draft.name in block.outputs:
        tensor = "expert output"
    routing = block.routing
    assert routing is not None
    factors = expert_factors(tensor, growth, draft.algorithm.law, rule)
    reason = (
        f"{tensor} of {routing.target.active:.4g} of {part.count[1]} experts (base:"
        f" {routing.base.active:.4g} of {part.count[0]}), rule {rule}"
    )
    if tensor == "expert output" and abs(growth.weights - 1) > SAME:
        reason += f"; the weights of active experts sum to {growth.weights:.4g} times the base's"
    return replace(draft, factors=draft.factors * factors).because(reason)


def _sparsity_note(block: _Block, growth: ExpertGrowth) -> str:
    routing = block.routing
    assert routing is not None
    part = block.part
    note = (
        f"experts: {stack_of(part.block)} has {routing.target.active:.4g} of {part.count[1]}"
        f" experts active, the base {routing.base.active:.4g} of {part.count[0]}: each expert gets"
        f" {growth.tokens:.4g} times as many tokens per step as in the base. This changes the batch"
        " size of an expert, and no rule corrects its learning rate for that. Let the number of"
        " active experts grow with"
        " the number of experts"
    )
    return with_code(note, "expert-tokens")
