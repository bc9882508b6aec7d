"""Adapters whose code is not read: trained tensors beside a frozen matrix, in one block.

LoRA is read from products with the input (`roles.adapters`). Others multiply their tensors with
each other first (LoHa, HiRA), rotate (OFT, HRA), choose entries (SHiRA) or transform (FourierFT),
and neither shapes nor a trace show what their sizes mean. A block is the smallest module with such
a tensor and a frozen matrix: `q_proj` with `q_proj.base_layer` and `q_proj.vera_lambda_d.default`.

A tensor counts if it is held by no module of known layout, belongs to no LoRA and to no mixture of
experts, and has a size that differs between base and target while no size of the frozen matrices
differs in the same way. Buffers count in the same way: random projections are not trained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

from orderone.observe.inventory import modules_by_name
from orderone.planning.roles.adapters import AdapterPart
from orderone.planning.roles.evidence import Evidence, commensurate
from orderone.planning.roles.experts import Size

Shape: TypeAlias = tuple[int, ...]
KNOWN = frozenset({"matrix", "lookup"})  # layouts that a module type declares
TABLES = frozenset({"lookup", "table"})  # layouts of frozen tensors that are no matrices


@dataclass(frozen=True)
class AdapterBlock:
    """Trained tensors of one block, by name.

    Attributes:
        name: Name of the module in the target.
        base_name: Name of the module in the base.
        tensors: Names of its trained tensors in the target, with their names in the base.
        shapes: Shapes of these tensors, in the base and in the target.
        sizes: Sizes that differ and are no sizes of the frozen matrices.
        frozen_differs: Whether a frozen matrix of the block has another shape in the base.
    """

    name: str
    base_name: str
    tensors: Mapping[str, str]
    shapes: tuple[tuple[Shape, Shape], ...]
    sizes: frozenset[Size]
    frozen_differs: bool


def adapter_blocks(
    tensors: Sequence[Evidence],
    lora: Mapping[str, AdapterPart],
    base_names: Mapping[str, str],
    model: nn.Module,
    base: nn.Module,
) -> list[AdapterBlock]:
    """Return the blocks of adapters that are not read."""
    frozen: list[Evidence] = []
    by_block: dict[str, list[Evidence]] = {}
    for evidence in tensors:
        if not evidence.item.tensor.requires_grad and len(evidence.item.shape) > 1:
            frozen.append(evidence)
    holders = _with_ancestors(evidence.item.places[0].module for evidence in frozen)
    for evidence in tensors:
        block = _block(evidence, holders)
        if evidence.item.tensor.requires_grad and block is not None:
            by_block.setdefault(block, []).append(evidence)
    modules = modules_by_name(model)
    base_modules = modules_by_name(base)
    blocks: list[AdapterBlock] = []
    for name, trained in by_block.items():
        beside = [evidence for evidence in frozen if _inside(evidence, name)]
        base_name = _base_block(name, trained[0], base_names)
        is_overridden = any(evidence.override for evidence in trained)
        if is_overridden or base_name not in base_modules:
            continue
        in_buffers = _differing_buffers(modules[name], base_modules[base_name])
        if not _has_matrix(beside, in_buffers):
            continue
        unread = [evidence for evidence in trained if _is_unread(evidence, lora, modules)]
        differing = _differing(unread, trained, beside, lora)
        if len(unread) == len(trained):
            differing |= in_buffers
        if differing:
            blocks.append(_as_block(name, base_name, trained, base_names, beside, differing))
    return blocks


def _has_matrix(frozen: Sequence[Evidence], in_buffers: set[Size]) -> bool:
    """Return whether one of the frozen tensors is a matrix.

    A trace cannot tell a buffer from data. So a frozen matrix to which a product with random
    projections is added, W + diag(b) B diag(d) A, looks like a table that is added to data.
    `in_buffers` are the sizes of buffers that differ: where there are some, it is a matrix.
    """
    for evidence in frozen:
        if TABLES.isdisjoint(evidence.kinds):
            return True
        if in_buffers and set(evidence.kinds) == {"table"} and len(evidence.item.shape) == 2:
            return True
    return False


def _as_block(
    name: str,
    base_name: str,
    trained: Sequence[Evidence],
    base_names: Mapping[str, str],
    frozen: Sequence[Evidence],
    differing: Iterable[Size],
) -> AdapterBlock:
    return AdapterBlock(
        name=name,
        base_name=base_name,
        tensors={evidence.name: base_names[evidence.name] for evidence in trained},
        shapes=tuple((evidence.base_shape, evidence.item.shape) for evidence in trained),
        sizes=frozenset(differing),
        frozen_differs=any(evidence.item.shape != evidence.base_shape for evidence in frozen),
    )


def _with_ancestors(names: Iterable[str]) -> set[str]:
    """Return modules and all modules that hold them; "" is the model."""
    found = {""}
    for name in names:
        while name and name not in found:
            found.add(name)
            name = name.rpartition(".")[0]
    return found


def _block(evidence: Evidence, holders: set[str]) -> str | None:
    """Return the smallest module with the tensor and a frozen one; the model itself only if it
    holds the tensor."""
    name = evidence.item.places[0].module
    if not name:
        return name
    while name and name not in holders:
        name = name.rpartition(".")[0]
    return name or None


def _inside(evidence: Evidence, block: str) -> bool:
    return not block or f"{evidence.item.places[0].module}.".startswith(f"{block}.")


def _base_block(name: str, evidence: Evidence, base_names: Mapping[str, str]) -> str:
    inner = evidence.name.removeprefix(name)
    return base_names[evidence.name].removesuffix(inner)


def _is_unread(
    evidence: Evidence, lora: Mapping[str, AdapterPart], modules: Mapping[str, nn.Module]
) -> bool:
    """Return whether nothing says how a tensor is used: no LoRA, no expert, no known module."""
    if evidence.expert is not None or evidence.name in lora:
        return False
    holder = modules[evidence.item.places[0].module]
    is_torch = type(holder).__module__.startswith("torch.nn.modules")
    if is_torch and not isinstance(holder, (nn.ParameterDict, nn.ParameterList)):
        return False
    return not any(layout.kind in KNOWN for layout in evidence.declared)


def _differing(
    unread: Sequence[Evidence],
    trained: Sequence[Evidence],
    frozen: Sequence[Evidence],
    lora: Mapping[str, AdapterPart],
) -> set[Size]:
    """Return the sizes that differ in the base, and that frozen matrices or LoRA do not explain.

    A product with the input whose size is larger than those of the frozen matrices is a hidden
    layer, not an adapter.
    """
    explained = {lora[evidence.name].rank for evidence in trained if evidence.name in lora}
    smallest = min(min(evidence.item.shape) for evidence in frozen)
    for evidence in frozen:
        explained.update(size for size in evidence.sizes if size[0] != size[1])
    differing: set[Size] = set()
    for evidence in unread:
        for size in evidence.sizes:
            if size[0] == size[1] or any(commensurate(size, other) for other in explained):
                continue
            if max(size) <= smallest or evidence.only_matrix is None:
                differing.add(size)
    return differing


def _differing_buffers(module: nn.Module, base: nn.Module) -> set[Size]:
    """Return the sizes of buffers that differ in the base."""
    base_buffers = dict(base.named_buffers())
    differing: set[Size] = set()
    for name, buffer in module.named_buffers():
        other = base_buffers.get(name)
        if other is None or other.dim() != buffer.dim():
            continue
        sizes = zip(other.shape, buffer.shape, strict=True)
        differing.update(size for size in sizes if size[0] != size[1])
    return differing
