"""Adjustments of a tensor's factors, after its role has set them.

    weight norm          row lengths of a readout
    forward constants    powers of the width that the forward code already multiplies by
    residual branches    place in a residual branch of a deeper model
    attention scores     power of the head size that scores are divided by
    tied readouts        multiplier of a readout that shares its tensor with the embedding
    gauge                multipliers in the forward pass, if the user wants them there

Each adjustment takes all drafts and returns new ones, with multipliers for the forward pass and
notes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.weight_norm import WeightNorm

from orderone.core.errors import InputError, with_code
from orderone.core.roles import Role
from orderone.observe.trace.packed import Entries
from orderone.optimizers.table import Algorithm
from orderone.planning.attention_scores import Score
from orderone.planning.counterparts import stack_of
from orderone.planning.draw import Draw
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.initial import Initial
from orderone.planning.plan import Multiplier
from orderone.planning.request import Request
from orderone.planning.roles.evidence import Evidence
from orderone.planning.roles.resolve import ResolvedRole
from orderone.rules.axes import (
    Factors,
    depth_factors,
    paper_multiplier,
    tied_multiplier,
)
from orderone.theory.exponents.laws import UpdateLaw
from orderone.torch_compat import WeightNormParametrization, forward_pre_hook_registry


@dataclass(frozen=True)
class DraftBlock:
    """Rows of a tensor that attention scores give other factors: its queries, or its keys."""

    kind: str  # "queries" or "keys"
    entries: Entries
    score_factor: float  # factor that scores need

    def factors(self, whole: Factors, law: UpdateLaw) -> Factors:
        """Return the factors of these rows; `whole` are those of the rest of the tensor."""
        factors = replace(whole, gradient=whole.gradient * self.score_factor)
        if self.kind == "queries":
            return factors.folding(self.score_factor, law)
        return factors


@dataclass(frozen=True)
class Draft:
    """A row before it is complete: a tensor, its role, and the factors so far."""

    evidence: Evidence
    resolved: ResolvedRole
    algorithm: Algorithm
    factors: Factors
    base: Initial
    base_name: str
    depth: float  # layers of its stack, target over base
    traced_as: str  # the corresponding tensor of the traced instance
    multiplier: float = 1.0
    carried_multiplier: float = 1.0  # part of `multiplier` that other tensors hold
    own_depth: float = 1.0  # factor of the initial size in the model's own code at this depth
    reasons: tuple[str, ...] = ()
    blocks: tuple[DraftBlock, ...] = ()
    draw: Draw | None = None  # set if a start replaces the initial values

    @property
    def name(self) -> str:
        return self.evidence.item.name

    @property
    def role(self) -> Role:
        return self.resolved.role

    @property
    def update_law(self) -> UpdateLaw:
        return self.algorithm.update_law

    @property
    def trained(self) -> bool:
        return self.evidence.item.tensor.requires_grad

    @property
    def grows(self) -> bool:
        return self.role != Role.FIXED

    @property
    def can_be_multiplied(self) -> bool:
        """Whether the tensor can take a factor.

        Frozen tensors cannot, nor can a gain that is stored as an offset from one, starting at 0.
        """
        is_gain = self.evidence.item.tensor.dim() == 1 and not self.name.endswith("bias")
        return self.trained and not (is_gain and self.base.rms == 0)

    def because(self, reason: str) -> "Draft":
        """Return the draft with one more reason."""
        return replace(self, reasons=(*self.reasons, reason))

    def folding(self, multiplier: float, reason: str) -> "Draft":
        """Return the draft after a multiplier is folded into the tensor."""
        draft = replace(self, factors=self.factors.folding(multiplier, self.update_law))
        return draft.because(f"folded factor {multiplier:.4g}: {reason}")

    def compensating(self, multiplier: float) -> "Draft":
        """Return the draft for forward code that already multiplies by this number.

        Initial size and learning rate change, and no multiplier is added.
        """
        factors = replace(self.factors.with_multiplier(multiplier, self.update_law), multiplier=1.0)
        return replace(self, factors=factors)


Drafts = Mapping[str, Draft]


@dataclass(frozen=True)
class Adjusted:
    """Drafts after an adjustment, with its multipliers for the forward pass and its notes."""

    drafts: Drafts
    multipliers: tuple[Multiplier, ...] = ()
    notes: tuple[str, ...] = ()


# --- weight norm ----------------------------------------------------------------------------------


def weight_norm(drafts: Drafts, model: nn.Module) -> Drafts:
    """Scale the lengths of a readout's rows under weight norm.

    Weight norm: W = g v / |v|, with the length of every row apart from its direction. A direction
    is scaled like the matrix, whose entries it has. Lengths are sqrt(fan-in) times the entries. In
    hidden matrices entries go like fan-in^-1/2, so that lengths stay the same. The lengths of a
    readout scale with it, although none of their dimensions grows:

        initial size     sqrt(r_in) times that of the matrix
        learning rate    moves the output as much as the matrix does. For normalized steps:
                         sqrt(r_in) times the matrix's rate. For SGD: the matrix's rate, because
                         the gradient of a length is sqrt(r_in) times that of an entry. Never
                         larger than at base size

    Both hold after a few steps: the direction is then aligned with its input, and v h / |v| is of
    order sqrt(fan-in).
    """
    result = dict(drafts)
    for length_name, direction_name in weight_norm_pairs(model):
        length = drafts.get(length_name)
        matrix = drafts.get(direction_name)
        if length is None or matrix is None or not length.trained or length.grows:
            continue
        if matrix.role != Role.READOUT:
            continue
        root = float(matrix.resolved.growth.fan_in) ** 0.5
        lr = min(1.0, matrix.factors.lr * root ** float(1 - length.update_law.gradient))
        result[length_name] = replace(
            length,
            factors=Factors(std=matrix.factors.std * root, lr=lr),
            reasons=("row lengths of a readout (weight norm)",),
        )
    return result


def weight_norm_pairs(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield names of lengths and directions, for torch's present and former weight norm."""
    for name, module in model.named_modules():
        if isinstance(module, ParametrizationList) and any(
            isinstance(part, WeightNormParametrization) for part in module
        ):
            yield f"{name}.original0", f"{name}.original1"
        for hook in forward_pre_hook_registry(module).values():
            if isinstance(hook, WeightNorm):
                yield f"{name}.{hook.name}_g".lstrip("."), f"{name}.{hook.name}_v".lstrip(".")


# --- constants in the forward code ----------------------------------------------------------------


def forward_constants(drafts: Drafts, facts: ForwardFacts, without: Collection[str] = ()) -> Drafts:
    """Compensate powers of the width that the forward code already multiplies by.

    c (W x + b) is compensated in W and in b: both start larger, and learn at another rate. Tensors
    in `without` are left out: their constants follow something else than the width.
    """
    traced = {draft.traced_as: draft for draft in drafts.values()}
    result = dict(drafts)
    for name, draft in drafts.items():
        maker = traced.get(facts.biases.get(draft.traced_as, ""))
        power = facts.power(draft.traced_as, _use_of(draft))
        if not power and maker is not None:
            power = facts.power(draft.traced_as, "shift")
        else:
            maker = draft
        if not power or not draft.trained or not maker.grows or name in without:
            continue
        growth = maker.resolved.growth
        if maker.role == Role.READOUT:
            width_growth = growth.fan_in
        else:
            width_growth = growth.fan_out
        reason = f"the forward code already multiplies by n^{power:.3g}"
        result[name] = draft.compensating(width_growth**power).because(reason)
    return result


def _use_of(draft: Draft) -> str:
    """Return the kind of use whose constants count for a tensor."""
    is_lookup = draft.resolved.tied is not None or "lookup" in draft.evidence.kinds
    if is_lookup:
        return "lookup"
    return "matrix"


# --- residual branches ----------------------------------------------------------------------------


def residual_branches(drafts: Drafts, facts: ForwardFacts, rule: str) -> Adjusted:
    """Scale down the residual branches of a deeper model.

    The factor is folded into the last tensor of a branch.
    """
    deeper = {name: draft for name, draft in drafts.items() if draft.depth != 1}
    if not deeper:
        note = (
            f"depth={rule!r} has no effect: base and model have the same number of layers; pass a"
            " base with the number of layers that you tuned"
        )
        return Adjusted(drafts, notes=(with_code(note, "depth-without-effect"),))
    facts.require_branches()
    result = dict(drafts)
    multipliers: list[Multiplier] = []
    for name, draft in deeper.items():
        place = facts.branch(draft.traced_as)
        if place is None:
            continue
        last = place == "last"
        hooked = last and not draft.can_be_multiplied
        factors = depth_factors(rule, draft.depth, draft.algorithm.law, last and not hooked)
        reason = "in a residual branch"
        if last:
            reason = "ends a residual branch"
        result[name] = replace(draft, factors=draft.factors * factors).because(reason)
        if hooked:
            multiplier = depth_factors(rule, draft.depth, "adam", last=True).std
            module = draft.evidence.item.places[0].module
            why = "end of a residual branch; its gain is stored as an offset from one"
            multipliers.append(Multiplier(module, multiplier, "output", why))
    return Adjusted(result, tuple(multipliers))


# --- attention scores -----------------------------------------------------------------------------


def attention_scores(drafts: Drafts, facts: ForwardFacts, wanted: float) -> Adjusted:
    """Fold into the queries the factor by which the model's scale differs from d^-wanted."""
    result = dict(drafts)
    notes: dict[str, None] = {}
    for score in facts.scores:
        missing = score.head_growth ** -(wanted + score.power)
        if abs(missing - 1) < 1e-6:
            continue
        has_queries = any(draft.traced_as in score.queries for draft in drafts.values())
        in_rows = _divide_packed_scores(result, score, missing)
        if in_rows is not None:
            result = in_rows
        elif score.separate and has_queries:
            result = _divide_scores(result, score, missing)
        else:
            notes[_packed_note(score, missing)] = None
    return Adjusted(result, notes=tuple(notes))


def _divide_packed_scores(drafts: Drafts, score: Score, missing: float) -> dict[str, Draft] | None:
    """Fold a factor into the rows of packed projections that are queries.

    Return None if the rows are not known, or cannot take a factor.
    """
    if score.packed is None:
        return None
    result = dict(drafts)
    folded = False
    sides = (("queries", score.packed.queries), ("keys", score.packed.keys))
    for name, draft in drafts.items():
        for kind, rows in sides:
            entries = rows.get(draft.traced_as)
            if entries is None:
                continue
            entries = entries.scaled_to(draft.evidence.item.shape[entries.axis])
            if entries is None or not draft.trained:
                return None
            block = DraftBlock(kind, entries, missing)
            draft = replace(draft, blocks=(*draft.blocks, block))
            if kind == "queries":
                folded = True
                reason = "query rows times {:.4g}: attention scores are divided by the head size"
                draft = draft.because(reason.format(missing))
        result[name] = draft
    if folded:
        return result
    return None


def _divide_scores(drafts: Drafts, score: Score, missing: float) -> dict[str, Draft]:
    result = dict(drafts)
    for name, draft in drafts.items():
        is_query = draft.traced_as in score.queries
        if is_query or draft.traced_as in score.keys:
            # the gradients of both pass through the scores
            gradient = draft.factors.gradient * missing
            draft = replace(draft, factors=replace(draft.factors, gradient=gradient))
        if is_query:
            reason = "attention scores are divided by the head size, not its root"
            draft = draft.folding(missing, reason)
        result[name] = draft
    return result


def _packed_note(score: Score, missing: float) -> str:
    queries = ", ".join(stack_of(name) for name in score.queries)
    note = (
        f"attention scores need a factor {missing:.4g}, because the head size grows by"
        f" {score.head_growth:.4g}. The plan cannot write this factor into the queries"
        f" ({queries or 'unknown'}): it does not know their rows, a norm without gain follows them,"
        " or their gain is stored as an offset. Grow the number of heads instead of their size, or"
        f" multiply the scores by {missing:.4g} in the model's code"
    )
    return with_code(note, "attention-scale")


# --- tied readouts --------------------------------------------------------------------------------


def tied_readouts(drafts: Drafts, facts: ForwardFacts, request: Request) -> Adjusted:
    """Place the multiplier of a tied readout: in the norm before the readout, or in a hook.

    No gauge shift removes this multiplier.
    """
    result = dict(drafts)
    multipliers: list[Multiplier] = []
    notes: list[str] = []
    for name, draft in drafts.items():
        if draft.resolved.tied is None or not draft.grows:
            continue
        needed = _tied_multiplier(draft, draft.resolved.tied, facts, request)
        result[name] = replace(result[name], multiplier=needed)
        if abs(needed - 1) < 1e-9:
            continue
        reason = f"as readout, its input is multiplied by {needed:.4g}"
        norm = facts.carriers.get(draft.traced_as, ())
        carriers = [other for other in result.values() if other.traced_as in norm]
        if carriers and all(carrier.can_be_multiplied for carrier in carriers):
            for carrier in carriers:
                why = f"the multiplier of the tied readout {name}, applied only here"
                result[carrier.name] = carrier.folding(needed, why)
            carrier_names = " and ".join(carrier.name for carrier in carriers)
            carried = replace(result[name], carried_multiplier=needed)
            result[name] = carried.because(f"{reason} (folded into {carrier_names})")
            continue
        result[name] = result[name].because(reason)
        modules = _readout_modules(draft)
        if facts.is_outside(draft.traced_as, "matrix"):
            modules = []
        if modules and facts.needs_inputs and request.gauge == "folded":
            raise _unknown_norm(name, needed)
        for module in modules:
            why = "readout tied to the embedding"
            multipliers.append(Multiplier(module, needed, "input", why))
        if not modules:
            note = (
                f"{draft.name} is also used as readout, by code that no hook can reach: multiply"
                f" the logits by {needed:.6g} in that code, or put a trainable norm before it"
            )
            notes.append(with_code(note, "tied-readout-in-code"))
    return Adjusted(result, tuple(multipliers), tuple(notes))


def _unknown_norm(name: str, needed: float) -> InputError:
    message = (
        f"inputs: {name} is embedding and readout; its multiplier {needed:.4g} belongs in the norm"
        " before the readout, which only a forward pass shows. Pass an example batch, plan(...,"
        " inputs=...); or ask for a hook with gauge='paper'"
    )
    return InputError(message, "needs-example-batch", argument="inputs")


def _tied_multiplier(draft: Draft, growth: float, facts: ForwardFacts, request: Request) -> float:
    """Return the multiplier of a tied readout beyond the constants of the forward code."""
    as_readout = facts.power(draft.traced_as, "matrix")
    as_lookup = facts.power(draft.traced_as, "lookup")
    present = growth ** (as_readout - as_lookup)
    law = draft.algorithm.law
    return tied_multiplier(request.parameterization(law), growth, law) / present


def _readout_modules(draft: Draft) -> list[str]:
    """Return the modules in which a tied tensor is the readout."""
    if "lookup" not in draft.evidence.kinds:
        return []
    modules: list[str] = []
    for place in draft.evidence.item.places:
        if place.layout and place.layout.kind == "matrix":
            modules.append(place.module)
    return modules


# --- gauge ----------------------------------------------------------------------------------------


def gauge(drafts: Drafts, facts: ForwardFacts, request: Request) -> Adjusted:
    """Move multipliers into the forward pass, as the gauge says. Biases and gains have none."""
    result = dict(drafts)
    multipliers: list[Multiplier] = []
    for name, draft in drafts.items():
        multiplier = _gauge_multiplier(draft, request)
        if abs(multiplier - 1) > 1e-12:
            result[name] = replace(
                draft,
                factors=draft.factors.with_multiplier(multiplier, draft.update_law),
                multiplier=draft.multiplier * multiplier,  # a tied readout may have one
            )
            multipliers += _hooks(draft, multiplier, facts, request.gauge)
    return Adjusted(result, tuple(multipliers))


def _gauge_multiplier(draft: Draft, request: Request) -> float:
    role = draft.role
    if request.gauge == "folded" or role in (Role.FIXED, Role.VECTOR):
        return 1.0
    if request.gauge == "unit":
        return draft.factors.std
    rule = request.parameterization(draft.algorithm.law)
    return paper_multiplier(rule, role, draft.resolved.growth)


def _hooks(
    draft: Draft, multiplier: float, facts: ForwardFacts, gauge_name: str
) -> list[Multiplier]:
    """Return hooks on the output of a lookup and on the input of a matrix, in all places that hold
    the tensor."""
    places = draft.evidence.item.places
    kinds = {place.layout.kind for place in places if place.layout}
    tied_in_code = draft.resolved.tied is not None and len(kinds) < 2
    hooks: list[Multiplier] = []
    for place in places:
        unreachable = (
            place.attribute != "weight" or place.owner == "NonDynamicallyQuantizableLinear"
        )
        if place.layout is not None:
            unreachable |= facts.is_outside(draft.traced_as, place.layout.kind)
        if unreachable or place.layout is None or tied_in_code:
            message = (
                f"gauge: no hook can multiply only {draft.name} inside {place.owner}; use"
                " gauge='folded', which trains the same network"
            )
            raise InputError(message, "gauge-without-hook", argument="gauge")
        if place.layout.kind == "lookup":
            side = "output"
        else:
            side = "input"
        hooks.append(Multiplier(place.module, multiplier, side, f"{gauge_name} gauge"))
    return hooks


def hook_notes(multipliers: Iterable[Multiplier]) -> list[str]:
    """Return a note if factors are in hooks, where a state_dict does not have them."""
    modules = list(dict.fromkeys(multiplier.module for multiplier in multipliers))
    if not modules:
        return []
    note = (
        f"the multipliers of {', '.join(modules[:3])}{' ...' * (len(modules) > 3)} are in hooks,"
        " and a state_dict does not have them; plan.bake(model) returns a plain model with the same"
        " outputs"
    )
    return [with_code(note, "multiplier-in-hook")]


def merged_multipliers(multipliers: Iterable[Multiplier]) -> tuple[Multiplier, ...]:
    """Return one multiplier for each side of a module."""
    merged: dict[tuple[str, str], Multiplier] = {}
    for multiplier in multipliers:
        side = (multiplier.module, multiplier.side)
        before = merged.get(side)
        if before is not None:
            multiplier = replace(
                multiplier,
                value=multiplier.value * before.value,
                reason=f"{before.reason}, {multiplier.reason}",
            )
        merged[side] = multiplier
    result: list[Multiplier] = []
    for multiplier in merged.values():
        if abs(multiplier.value - 1) > 1e-12:
            result.append(multiplier)
    return tuple(result)
