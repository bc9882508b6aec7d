"""Evidence for the roles of tensors: each tensor of a model beside that of its base, and sizes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from orderone.core.errors import InputError
from orderone.core.roles import Role
from orderone.observe.inventory import Item, inventory, shapes_of
from orderone.planning.base import Base
from orderone.planning.counterparts import Counterpart, counterparts
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.repetition_factors import Repetition, repetitions
from orderone.planning.request import Request
from orderone.planning.roles.adapter_blocks import AdapterBlock, adapter_blocks
from orderone.planning.roles.adapters import AdapterPart, adapter_parts
from orderone.planning.roles.evidence import Evidence, Widths, declared_layouts, read_overrides
from orderone.planning.roles.experts import ExpertPart, Size, expert_parts, lists_of_experts
from orderone.planning.roles.parallel import parallel_by_shape
from orderone.planning.roles.resolve import unambiguous_roles


@dataclass(frozen=True)
class Comparison:
    """A model, its base, the options of the user, and facts from the forward passes of both."""

    model: nn.Module
    base: Base
    request: Request
    facts: ForwardFacts

    @cached_property
    def items(self) -> dict[str, Item]:
        return inventory(self.model)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_of(self.model)

    @cached_property
    def counterparts(self) -> dict[str, Counterpart]:
        return counterparts(self.shapes, self.base.shapes, self.parallel)

    @cached_property
    def parallel(self) -> frozenset[str]:
        """Names of lists whose modules are not layers: as traced, or as shapes tell."""
        if self.facts.pair is not None:
            return self.facts.parallel
        as_layers = counterparts(self.shapes, self.base.shapes)
        heads = parallel_by_shape(self._evidence(as_layers), self.base.shapes)
        return heads | lists_of_experts(self._experts(as_layers))

    @cached_property
    def traced_as(self) -> dict[str, str]:
        """Names of the corresponding tensors of the traced instance, by tensor."""
        return self.facts.traced_as(self.shapes)

    @cached_property
    def tensors(self) -> list[Evidence]:
        """All tensors. Those of adapters that are not read have no role."""
        tensors: list[Evidence] = []
        for evidence in self.all_tensors:
            if evidence.name in self.measured_names:
                evidence = replace(evidence, override=Role.FIXED)
            tensors.append(evidence)
        return tensors

    @cached_property
    def all_tensors(self) -> list[Evidence]:
        return self._evidence(self.counterparts)

    def _evidence(self, counterparts: Mapping[str, Counterpart]) -> list[Evidence]:
        overrides = read_overrides(self.request.overrides, list(self.items))
        self._check_dimensions(counterparts)
        experts = self._experts(counterparts)
        tensors: list[Evidence] = []
        for name, item in self.items.items():
            traced = self.traced_as.get(name, "")
            evidence = Evidence(
                item,
                self.base.shapes[counterparts[name].name],
                override=overrides.get(name),
                traced=self.facts.layouts.get(traced, ()),
                declared=declared_layouts(item),
                is_output=not set(self.facts.outputs).isdisjoint(item.modules),
                siblings=(1, 1) if name in experts else counterparts[name].siblings,
                generated=self.facts.generated.get(traced),
                reads_data=self.facts.reads_data(traced),
                makes_output=self.facts.makes_output(traced),
                expert=experts.get(name),
            )
            tensors.append(evidence)
        return tensors

    def _check_dimensions(self, counterparts: Mapping[str, Counterpart]) -> None:
        for name, item in self.items.items():
            base_shape = self.base.shapes[counterparts[name].name]
            if len(base_shape) != len(item.shape):
                message = (
                    f"base: {name} has {len(base_shape)} dimensions in the base and"
                    f" {len(item.shape)} in the model; build the base with the same code"
                )
                raise InputError(message, "other-architecture", argument="base")
            if 0 in base_shape and 0 not in item.shape:
                message = (
                    f"base: {name} has no entries in the base, {base_shape}, and {item.shape} in"
                    " the model, so that it grows by no ratio; choose sizes of the base at which it"
                    " has entries"
                )
                raise InputError(message, "other-architecture", argument="base")

    def _experts(self, counterparts: Mapping[str, Counterpart]) -> dict[str, ExpertPart]:
        """Return the place of every tensor that belongs to a mixture of experts."""
        names = {name: counterpart.name for name, counterpart in counterparts.items()}
        declared = [name for name, item in self.items.items() if declared_layouts(item)]
        return expert_parts(
            self.shapes,
            self.base.shapes,
            names,
            declared,
            parallel=self.facts.parallel,
            summed=self.facts.summed_axes(self.traced_as),
            in_scores=self.facts.in_scores(self.traced_as),
        )

    @cached_property
    def widths(self) -> Widths:
        tensors = [e for e in self.tensors if e.name not in self.measured_names]
        return Widths(tensors, self._summed_products(tensors))

    def _summed_products(self, tensors: Iterable[Evidence]) -> set[Size]:
        """Return the sizes of tensors that products of activations are summed over."""
        result: set[Size] = set()
        for evidence in tensors:
            name = self.traced_as.get(evidence.name, "")
            if name in self.facts.shapes and name in self.facts.small_shapes:
                traced = zip(self.facts.small_shapes[name], self.facts.shapes[name], strict=True)
                for size, as_traced in zip(evidence.sizes, traced, strict=True):
                    if as_traced in self.facts.summed_products:
                        result.add(size)
        return result

    @cached_property
    def adapters(self) -> dict[str, AdapterPart]:
        """Matrices of LoRA, by name."""
        parts = adapter_parts(self.all_tensors)
        return {name: part for name, part in parts.items() if name not in self.measured_names}

    @cached_property
    def adapter_blocks(self) -> list[AdapterBlock]:
        """Blocks with adapters other than LoRA whose sizes differ from those of the base."""
        if self.base.module is None:
            return []
        names = {name: counterpart.name for name, counterpart in self.counterparts.items()}
        lora = adapter_parts(self.all_tensors)
        return adapter_blocks(self.all_tensors, lora, names, self.model, self.base.module)

    @cached_property
    def measured_names(self) -> set[str]:
        """Names of the tensors of these blocks."""
        return {name for block in self.adapter_blocks for name in block.tensors}

    @cached_property
    def repetitions(self) -> dict[str, Repetition]:
        """Repetitions of keys and values, by name."""
        return repetitions(self.tensors)

    def as_traced(self, evidence: Evidence) -> Evidence:
        """Return the evidence with the shape in the traced instance, which is wider than the base.

        At base size a vocabulary may happen to be as large as the width, and the choice of tensors
        for Muon must not depend on that.
        """
        shape = self.facts.shapes.get(self.traced_as.get(evidence.name, ""))
        if shape is None:
            return evidence
        return replace(evidence, item=replace(evidence.item, shape=shape))

    @cached_property
    def traced_roles(self) -> dict[str, Role]:
        """Return the roles between the two traced instances, if these differ in size.

        At base size nothing grows, but the instances may: those of a Hugging Face model, or the
        largest model of a sweep.
        """
        tensors: list[Evidence] = []
        for evidence in self.tensors:
            name = self.traced_as.get(evidence.name, "")
            if name in self.facts.shapes and name in self.facts.small_shapes:
                item = replace(evidence.item, shape=self.facts.shapes[name])
                small = self.facts.small_shapes[name]
                tensors.append(replace(evidence, item=item, base_shape=small))
        if all(evidence.item.shape == evidence.base_shape for evidence in tensors):
            return {}
        return unambiguous_roles(tensors, Widths(tensors, self.facts.summed_products))

    @cached_property
    def ranks_of_adapters_only(self) -> set[Size]:
        """Ranks of adapters that are nothing else: no other tensor has this size."""
        others: set[Size] = set()
        for evidence in self.tensors:
            if evidence.name not in self.adapters and evidence.name not in self.measured_names:
                others.update(evidence.sizes)
        return self.ranks - others

    @property
    def query_groups(self) -> set[Size]:
        """Whole numbers of queries that share a key."""
        groups: set[Size] = set()
        for repetition in self.repetitions.values():
            base, target = repetition.sizes
            if base == int(base) and target == int(target):
                groups.add((int(base), int(target)))
        return groups

    @property
    def ranks(self) -> set[Size]:
        """Ranks of LoRA, and sizes of other adapters."""
        ranks = {part.rank for part in self.adapters.values()}
        return ranks.union(*(block.sizes for block in self.adapter_blocks))

    @property
    def expert_counts(self) -> set[Size]:
        parts = [evidence.expert for evidence in self.tensors]
        return {part.count for part in parts if part is not None}
