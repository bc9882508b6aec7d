"""The start of a plan: initial sizes at the size of the base, instead of those of the model's code.

Starts (`rules.starts`) are for matrices and lookup tables; gains and biases keep the values of the
model's own code, unless a start names the end of residual branches, or a key says "zero".

The size of the base is the product of the start; the rule carries it to the target like any other
base. Both change together, and every ratio between them stays. What only a forward pass shows (the
ends of residual branches, constants in the forward code) is read off the traced instances.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from torch import nn

from orderone.core.errors import InputError, with_code, without_code
from orderone.core.roles import MATRIX_ROLES, Role
from orderone.observe.inventory import modules_by_name
from orderone.planning.adjustments import Adjusted, Draft, Drafts, weight_norm_pairs
from orderone.planning.base import Base
from orderone.planning.counterparts import common_name, stack_of
from orderone.planning.draw import ZERO, Draw
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.initial import Initial
from orderone.planning.roles.evidence import Evidence
from orderone.planning.roles.standalone import learned_table, named_layouts, with_parts
from orderone.planning.roles.structure import group_of, residual_width
from orderone.planning.settings import Choice, Subject
from orderone.planning.start_setting import (
    INIT,
    KEEP,
    KEPT,
    ZERO_VALUE,
    StartSetting,
    StartValue,
)
from orderone.rules import starts
from orderone.rules.starts import CONSTANT, NORMAL, ORTHOGONAL, Facts, order_one
from orderone.rules.starts.zero_residual import ZERO_RESIDUAL

# --- tensors --------------------------------------------------------------------------------------


def started(
    drafts: Drafts,
    subjects: Mapping[str, Subject],
    setting: StartSetting,
    facts: ForwardFacts,
    base: Base,
    model: nn.Module,
) -> Adjusted:
    """Return the drafts with the initial sizes of the start in place of those of the base."""
    if setting.is_unset:
        return _as_the_base(drafts, base)
    if setting.keeps_all:
        return Adjusted(drafts)
    return _Starter(drafts, subjects, setting, facts, base, model).adjusted()


def order_one_sizes(
    drafts: Drafts,
    subjects: Mapping[str, Subject],
    facts: ForwardFacts,
    base: Base,
    model: nn.Module,
) -> dict[str, float]:
    """Return the size in the base at which the output of a matrix or table is of order one.

    Tensors of unknown fan-in are left out.
    """
    starter = _Starter(drafts, subjects, KEPT, facts, base, model)
    sizes: dict[str, float] = {}
    for name, draft in drafts.items():
        size = starter.order_one(draft)
        if size is not None:
            sizes[name] = size
    return sizes


def _as_the_base(drafts: Drafts, base: Base) -> Adjusted:
    """Return the drafts with the draws of a saved plan; its sizes are those of the base already."""
    if not base.draws:
        return Adjusted(drafts)
    result = dict(drafts)
    for name, draft in drafts.items():
        how = base.draws.get(draft.base_name)
        if how is not None and draft.trained:
            result[name] = replace(draft, draw=how).because(f"start {how.start} of the saved plan")
    return Adjusted(result)


@dataclass(frozen=True)
class _Starter:
    drafts: Drafts
    subjects: Mapping[str, Subject]
    setting: StartSetting
    facts: ForwardFacts
    base: Base
    model: nn.Module

    def adjusted(self) -> Adjusted:
        result: dict[str, Draft] = {}
        inner: list[str] = []
        for name, draft in self.drafts.items():
            choice = self.setting.of(self.subjects[name])
            zero_by_role = choice.value == ZERO_VALUE and choice.key == Role.READOUT
            if zero_by_role and not self._is_output(draft):
                inner.append(name)
                choice = Choice(self.setting.default)
            result[name] = self._started(draft, choice)
        result = self._with_lengths(result)
        notes: list[str] = []
        if inner:
            note = (
                f"init: {common_name(inner)} is a readout inside the network, such as a router or a"
                " bottleneck, and is not set to zero; name it in init if you want that"
            )
            notes.append(with_code(note, "inner-readout"))
        return Adjusted(result, notes=tuple(notes))

    def _started(self, draft: Draft, choice: Choice[StartValue]) -> Draft:
        value = choice.value
        if not draft.trained or value is None or value == KEEP:
            return draft
        if isinstance(value, str) and value != ZERO_VALUE:
            return self._by_start(draft, value)
        if self._is_vector(draft):
            return self._vector(draft, choice)
        if value == ZERO_VALUE:
            return _zero(draft)
        size = float(value)
        how = Draw(f"{size:g}", NORMAL)
        return replace(draft, base=Initial(size), draw=how).because(
            f"start: {size:.4g} in the base (init)"
        )

    def _vector(self, draft: Draft, choice: Choice[StartValue]) -> Draft:
        """Return a gain or a bias: its own values, or zero if a key says so."""
        if choice.key is None or choice.key in MATRIX_ROLES:
            return draft
        if choice.value != ZERO_VALUE:
            raise InputError(
                f"init: {draft.name} is a gain or a bias, which starts as a constant; expected"
                f" 'keep' or 'zero' for the key {choice.key!r}, got {choice.value!r}",
                argument=INIT,
            )
        return self._zero_vector(draft, ZERO.start)

    def _zero_vector(self, draft: Draft, start: str) -> Draft:
        is_bias = draft.name.endswith("bias")
        if not is_bias and draft.base.rms == 0:
            raise InputError(
                f"init: {draft.name} already starts at zero: it is a gain that is stored as an"
                " offset from one, so zero would not remove what it multiplies. Use another start,"
                ' or keep it: init={"default": ..., ' + f'"{draft.name}": "keep"}}',
                argument=INIT,
            )
        return _zero(draft, start)

    def _by_start(self, draft: Draft, name: str) -> Draft:
        start = starts.get(name)
        if start.uses_branches:
            self._require_branches(name)
        sizes: dict[str, float | None] = {}
        for facts in self._all_facts(draft):
            sizes[facts.role] = start.size(facts)
        if len(set(sizes.values())) > 1:
            self._raise_ambiguous(draft, name, sizes)
        [size] = set(sizes.values())
        if size is None:
            return draft
        if size == 0 and self._is_vector(draft):
            return self._zero_vector(draft, name)
        if size == 0:
            return _zero(draft, name)
        how = self._how(draft, start.name, start.distribution)
        return replace(draft, base=Initial(size), draw=how).because(
            f"start {name}: {size:.4g} in the base"
        )

    def _require_branches(self, name: str) -> None:
        """Raise an InputError if the start depends on residual branches, and they are unknown."""
        if self.facts.pair is None:
            message = (
                f"init: the start {name!r} depends on the ends of residual branches, which only a"
                f" forward pass shows, and none was traced ({without_code(self.facts.note)})"
            )
            raise InputError(message, "needs-example-batch", argument=INIT)
        if name == ZERO_RESIDUAL.name and not self.facts.branches:
            message = f"init: the model has no residual branches for {name!r}; use 'fan-in'"
            raise InputError(message, "no-residual-branches", argument=INIT)
        if name == ZERO_RESIDUAL.name and self.facts.open_branches:
            message = (
                f"init: {name!r} sets the end of every residual branch to zero, and a branch of"
                " this model ends without parameters (in a norm without gain, or in a"
                " nonlinearity); use 'fan-in'"
            )
            raise InputError(message, "no-residual-branches", argument=INIT)

    def _raise_ambiguous(self, draft: Draft, name: str, sizes: Mapping[str, float | None]) -> None:
        words = " or ".join(f"{role} ({size})" for role, size in sizes.items())
        message = (
            f"init: the role of {draft.name} depends on the size: {words}, and the start {name!r}"
            f" differs between them. Add the key {draft.name!r} to init, or choose the role:"
            f' overrides={{"{draft.name}": role}}'
        )
        raise InputError(message, "ambiguous-role", argument=INIT)

    def _how(self, draft: Draft, start: str, distribution: str) -> Draw:
        evidence = self._at_base[draft.name]
        layout = evidence.only_matrix
        if distribution != ORTHOGONAL or layout is None:
            return Draw(start)
        fan_out = math.prod(evidence.item.shape[axis] for axis in layout.fan_out)
        if _has_experts(evidence):
            fan_out //= evidence.item.shape[0]
        parts = 1
        if evidence.part and fan_out % evidence.part == 0:
            parts = fan_out // evidence.part
        return Draw(start, ORTHOGONAL, layout.fan_out, parts, _has_experts(evidence))

    def order_one(self, draft: Draft) -> float | None:
        """Return the size at which the output is of order one; None for gains and biases."""
        if not draft.trained or self._is_vector(draft) or self._is_unknown(draft):
            return None
        return order_one(self._all_facts(draft)[0])

    # --- facts ------------------------------------------------------------------------------------

    @cached_property
    def _at_base(self) -> dict[str, Evidence]:
        """Evidence with the shapes of the base; packed matrices have the fan-out of one of them."""
        tensors: list[Evidence] = []
        for draft in self.drafts.values():
            evidence = draft.evidence
            item = replace(evidence.item, shape=evidence.base_shape)
            named = named_layouts(item)
            evidence = replace(evidence, item=item, named=named)
            table = learned_table(evidence)
            # without a hint in its name, a table of equal entries may as well be a bias
            if table is not None and (named or draft.base.constant is None):
                evidence = replace(evidence, traced=(), declared=(table,))
            tensors.append(evidence)
        return {evidence.name: evidence for evidence in with_parts(tensors)}

    @cached_property
    def _width(self) -> int | None:
        roles = {name: self._roles(name)[0] for name in self.drafts}
        return residual_width(list(self._at_base.values()), roles)

    def _roles(self, name: str) -> tuple[Role, ...]:
        return tuple(Role(role) for role in self.subjects[name].roles)

    def _is_vector(self, draft: Draft) -> bool:
        """Return whether a tensor is a gain, a bias or a scalar: nothing is summed over it."""
        evidence = self._at_base[draft.name]
        return not {"matrix", "lookup"} & set(evidence.kinds) and not self._is_unknown(draft)

    def _is_unknown(self, draft: Draft) -> bool:
        """Return whether nothing tells which axes of a tensor are summed over."""
        evidence = self._at_base[draft.name]
        long = [size for size in evidence.item.shape if size > 1]
        return not evidence.layouts and len(long) > 1

    def _all_facts(self, draft: Draft) -> list[Facts]:
        """Return the facts about a tensor, once for every role that it may have."""
        evidence = self._at_base[draft.name]
        place = self.facts.branch(draft.traced_as)
        ends_branch = place == "last"
        if self._is_vector(draft):
            return [Facts(Role.VECTOR, 1.0, 1.0, ends_branch=ends_branch)]
        if self._is_unknown(draft):
            message = (
                f"init: it is unknown which axes of {draft.name} {evidence.item.shape} are summed"
                f" over, so its fan-in is unknown ({without_code(self.facts.note)}). Pass an"
                " example batch, plan(..., inputs=...), register the module type, or add a size:"
                f' init={{"{draft.name}": 0.02, ...}}'
            )
            raise InputError(message, "unknown-fan-in", argument=INIT)
        fan_in, fan_out = evidence.fans
        if _has_experts(evidence) and not evidence.part:
            fan_out //= evidence.item.shape[0]
        fan_in = max(1.0, fan_in / self._overlap(evidence))
        fan_out = max(1.0, fan_out * self._spread(evidence))
        result: list[Facts] = []
        for role in self._roles(draft.name) or (Role.HIDDEN,):
            if role in (Role.VECTOR, Role.FIXED):
                role = self._role_of_filter(evidence)
            if role == Role.READOUT and not self._is_output(draft):
                role = Role.HIDDEN  # a router, a bottleneck, keys that all heads share
            facts = Facts(
                role=role,
                fan_in=fan_in,
                fan_out=fan_out,
                constant=self._constant(draft, role),
                as_readout=self._as_readout(draft),
                group=group_of(evidence, role, self._width),
                width=float(self._width or fan_in),
                layers=self._layers.get(stack_of(draft.base_name), 1),
                ends_branch=ends_branch,
                is_output=self._is_output(draft),
            )
            result.append(facts)
        return result

    def _role_of_filter(self, evidence: Evidence) -> Role:
        """Return the role of a tensor whose fan-in is one channel.

        A table of positions and a filter of an input with one channel are embeddings. A depthwise
        filter, which sums over its kernel, is inside the network.
        """
        module = self._modules.get(evidence.item.places[0].module)
        if getattr(module, "groups", 1) > 1:
            return Role.HIDDEN
        return Role.EMBEDDING

    @cached_property
    def _layers(self) -> Mapping[str, int]:
        """Numbers of branches of the base that end in the tensors of a stack.

        Not every number in a name is a layer: `blocks.1.mlp.2` is in the same stack as
        `blocks.1.mlp.0`, which ends no branch.
        """
        layers: dict[str, int] = {}
        for name, traced in self.facts.traced_as(self.base.shapes).items():
            if self.facts.branch(traced) == "last":
                layers[stack_of(name)] = layers.get(stack_of(name), 0) + 1
        return layers

    @cached_property
    def _modules(self) -> Mapping[str, nn.Module]:
        return modules_by_name(self.base.module or self.model)

    def _overlap(self, evidence: Evidence) -> float:
        """Return the factor by which inputs times kernel exceed the terms of one output.

        A transposed convolution spreads its kernel: one output gets kernel / stride terms of the
        inputs of its group. The shape of its weight does not show the groups.
        """
        module = self._modules.get(evidence.item.places[0].module)
        if not getattr(module, "transposed", False):
            return 1.0
        stride = getattr(module, "stride", (1,))
        return float(prod(stride)) * float(getattr(module, "groups", 1))

    def _spread(self, evidence: Evidence) -> float:
        """Return the outputs that one input of a convolution is a term of, over its channels.

        They are the kernel, over stride and groups. For a transposed convolution its shape has the
        channels of one group, and every input reaches the whole kernel.
        """
        layout = evidence.only_matrix
        if layout is None:
            return 1.0
        channels = {*layout.fan_in, *layout.fan_out}
        kernel = prod(n for axis, n in enumerate(evidence.item.shape) if axis not in channels)
        module = self._modules.get(evidence.item.places[0].module)
        if getattr(module, "transposed", False):
            return float(kernel)
        stride = getattr(module, "stride", (1,))
        return kernel / (float(prod(stride)) * float(getattr(module, "groups", 1)))

    def _constant(self, draft: Draft, role: Role) -> float:
        """Return the constant by which the forward code multiplies the output of a tensor.

        Constants inside the network stay as they are: they are part of the design of its blocks.
        But queries make up for scores that are not divided by the root of the head size (T5).
        """
        is_lookup = "lookup" in draft.evidence.kinds
        score_size = self.facts.score_sizes.get(draft.traced_as)
        if score_size is not None and not is_lookup:
            return score_size
        if role not in (Role.EMBEDDING, Role.READOUT):
            return 1.0
        kind = "lookup" if is_lookup else "matrix"
        return self.facts.constant_at(draft.traced_as, kind, draft.evidence.base_shape)

    # --- readouts ---------------------------------------------------------------------------------

    def _is_output(self, draft: Draft) -> bool:
        """Return whether a readout makes the output of the model.

        A router or a bottleneck is a readout too, in the middle of the network.
        """
        if draft.evidence.is_output:
            return True
        if self.facts.outputs or draft.resolved.bottleneck:
            return False
        if self.facts.branch(draft.traced_as) is not None:
            return False
        if draft.traced_as in self.facts.readouts:
            return True
        if draft.evidence.makes_output and not draft.evidence.is_router:
            return True
        goes_on = self.facts.last_makers and draft.traced_as not in self.facts.last_makers
        return not goes_on and draft.name not in self._followed

    @cached_property
    def _followed(self) -> set[str]:
        """Tensors that a hidden matrix follows in the model's order."""
        followed: set[str] = set()
        pending: list[str] = []
        for name in self.drafts:
            if Role.HIDDEN in self._roles(name):
                followed.update(pending)
                pending = []
            pending.append(name)
        return followed

    def _as_readout(self, draft: Draft) -> float | None:
        """Return the size at which the logits of a tied table are of order one.

        Tables that are added to a tied one get its size, so that none of them drowns the others.
        """
        evidence = self._at_base[draft.name]
        if _is_tied(evidence):
            constant = self.facts.constant_at(draft.traced_as, "matrix", draft.evidence.base_shape)
            return float(evidence.fans[1] ** -0.5 / constant)
        if "lookup" not in evidence.kinds:
            return None
        return self._tied_sizes.get(evidence.fans[1])

    @cached_property
    def _tied_sizes(self) -> dict[int, float]:
        """Sizes of tied tables, by their width."""
        sizes: dict[int, float] = {}
        for name, evidence in self._at_base.items():
            if _is_tied(evidence):
                [facts, *_] = self._all_facts(self.drafts[name])
                sizes[evidence.fans[1]] = order_one(facts) * facts.constant
        return sizes

    # --- weight norm ------------------------------------------------------------------------------

    def _with_lengths(self, drafts: dict[str, Draft]) -> dict[str, Draft]:
        """Give row lengths of weight norm the size of their matrix; directions have no size."""
        for length_name, direction_name in weight_norm_pairs(self.model):
            length = drafts.get(length_name)
            direction = drafts.get(direction_name)
            if length is None or direction is None or direction.draw is None:
                continue
            rows = prod(length.evidence.base_shape)
            entries = prod(direction.evidence.base_shape) / rows
            size = direction.base.rms * entries**0.5
            reason = f"row lengths of {direction_name}: start {direction.draw.start}"
            how = replace(direction.draw, distribution=CONSTANT)
            drafts[length_name] = replace(length, base=Initial(size, size), draw=how).because(
                reason
            )
            if size == 0:  # a direction of zero has no length
                drafts[direction_name] = self.drafts[direction_name]
        return drafts


def _zero(draft: Draft, start: str = ZERO.start) -> Draft:
    how = replace(ZERO, start=start)
    return replace(draft, base=Initial(0.0, 0.0), draw=how).because(f"start {start}: 0")


def _has_experts(evidence: Evidence) -> bool:
    return len(evidence.item.shape) == 3 and (evidence.hints.expert or evidence.is_stack)


def _is_tied(evidence: Evidence) -> bool:
    """Return whether a tensor is embedding and readout."""
    matrices = [layout for layout in evidence.layouts if layout.kind == "matrix"]
    if "lookup" in evidence.kinds:
        return bool(matrices)
    both = {(layout.fan_in, layout.fan_out) for layout in matrices}
    return any((fan_out, fan_in) in both for fan_in, fan_out in both)
