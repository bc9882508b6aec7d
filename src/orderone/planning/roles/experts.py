"""Mixtures of experts in a model: the tensors of experts, and those of their router.

    y = sum over the k chosen experts e of g_e(x) E_e(x),    g = a function of the router's logits

Experts are stored in two forms:

    fused    one tensor for all experts, whose first axis counts them: `experts.down_proj` (E, out,
             in), with biases (E, out). The word `expert` in its name tells, or a router next to it
             with as many outputs, if no module declares the axes (those of a convolution do not
             count experts). Any matrix next to it may be that router, unless the first axis is a
             width: the forward pass sums over it, or over both others (splines of a KAN, `(out,
             in, points)`), or over an axis that has grown as much, while the third has not
             (weights of a Fourier layer, `(out, in, modes)`), or, without a forward pass, another
             axis of the tensor is as long, or it is the only axis of the tensor that has grown, as
             has a matrix with such an axis (poles of a state-space model, `(n, state, 2)`). Next
             to a width, only a router that is called so counts. Two kinds of tensors are no experts
             unless they are called so: gains of channels, `(n, 1, 1)`, and projections by head,
             `(heads, n, head)` or `(n, heads, head)`, where heads times head is the width, or where
             the forward pass makes attention scores of a tensor of the same module and length
    list     one module per expert: `experts.7.up.weight`, `experts.expert_7.up.weight`, or any list
             next to a router with as many outputs, whose members are known to be parallel; unless
             they are known, both must have grown, and the router be called so

The router has an axis as long as the number of experts, in the base and in the target, and is a
neighbour of the experts. Experts that process every token ("shared") have no router, and are dense
layers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orderone.core.errors import InputError
from orderone.planning.counterparts import is_number, stack_of
from orderone.planning.roles.vocabulary import EXPERT, ROUTERS, SHARED

Shape = tuple[int, ...]
Size = tuple[int, int]  # base, target

ROUTER = "router"
EXPERT_PART = "expert"


@dataclass(frozen=True)
class ExpertPart:
    """Place of a tensor in a mixture of experts."""

    kind: str  # "router" or "expert"
    block: str  # name of the module that contains router and experts
    count: Size  # number of experts in the base and in the target
    axis: int | None  # axis that counts experts; None for a tensor of a single expert

    @property
    def growth(self) -> float:
        """Number of experts, target over base."""
        return self.count[1] / self.count[0]


def expert_parts(
    shapes: Mapping[str, Shape],
    base_shapes: Mapping[str, Shape],
    base_names: Mapping[str, str],
    declared: Collection[str] = (),
    parallel: Collection[str] = (),
    summed: Mapping[str, Collection[int]] | None = None,
    in_scores: Collection[str] = (),
) -> dict[str, ExpertPart]:
    """Return the place of every tensor that belongs to a mixture of experts.

    `base_names` has the counterpart of every tensor, `declared` the tensors of several axes whose
    modules declare their layout, `parallel` the lists whose members are not layers, `summed` the
    axes over which products with a tensor sum, where a forward pass showed them, `in_scores` the
    tensors that make queries or keys of attention.
    """
    sizes: dict[str, tuple[Size, ...]] = {}
    for name, shape in shapes.items():
        sizes[name] = tuple(zip(base_shapes[base_names[name]], shape, strict=True))
    heads = {(_parent(name), sizes[name][0]) for name in in_scores if len(sizes[name]) == 3}
    parts = _fused(sizes, declared, summed or {}, heads)
    parts |= _listed(sizes, _lengths(base_shapes), base_names, parallel)
    routers: dict[str, ExpertPart] = {}
    for block, count in {part.block: part.count for part in parts.values()}.items():
        for name, axis in _routers(block, count, sizes, parts):
            routers[name] = ExpertPart(ROUTER, block, count, axis)
    return _biases(sizes, parts) | parts | routers


def same_names(shapes: Iterable[str]) -> dict[str, str]:
    """Return every name as its own counterpart: a model compared with itself."""
    return {name: name for name in shapes}


# --- fused ----------------------------------------------------------------------------------------


def _fused(
    sizes: Mapping[str, tuple[Size, ...]],
    declared: Collection[str],
    summed: Mapping[str, Collection[int]],
    heads: Collection[tuple[str, Size]],
) -> dict[str, ExpertPart]:
    """Return the tensors of three axes that hold all experts of a block.

    `heads` has modules with attention, and the first axis of their queries and keys.
    """
    parts: dict[str, ExpertPart] = {}
    widths = _widths(sizes.values())
    for name, axes in sizes.items():
        if len(axes) != 3 or name in declared or SHARED in name.lower():
            continue
        by_head = _are_heads(axes) or (_parent(name), axes[0]) in heads
        if EXPERT not in name.lower() and (_are_gains(axes) or by_head):
            continue
        if name in summed:
            # a sum over both other axes leaves the first as the only axis of the outputs
            is_width = 0 in summed[name] or set(summed[name]) >= {1, 2}
            is_width |= _is_square(axes, summed[name])
        else:
            is_width = axes[0] in axes[1:]
        if axes[0] in widths and not any(map(_grows, axes[1:])):
            is_width = True
        block = _block_of(name, axes[0], is_width, sizes)
        if block is not None:
            parts[name] = ExpertPart(EXPERT_PART, block, axes[0], 0)
    return parts


def _is_square(axes: Sequence[Size], summed: Collection[int]) -> bool:
    """Return whether the first axis is as wide as a summed one, and the third does not grow."""
    for axis in summed:
        others = [size for other, size in enumerate(axes) if other not in (0, axis)]
        if axes[axis] == axes[0] and _grows(axes[0]) and not any(map(_grows, others)):
            return True
    return False


def _widths(tensors: Iterable[tuple[Size, ...]]) -> set[Size]:
    """Return the grown axes of matrices both of whose axes have grown.

    Where the number of experts grows and the width does not, there are no such matrices.
    """
    widths: set[Size] = set()
    for axes in tensors:
        if len(axes) == 2 and all(map(_grows, axes)):
            widths.update(axes)
    return widths


def _grows(axis: Size) -> bool:
    return axis[0] != axis[1]


def _are_gains(axes: tuple[Size, ...]) -> bool:
    """Return whether a tensor has one number for each channel, with axes of length one behind."""
    return axes[1:] == ((1, 1), (1, 1))


def _are_heads(axes: tuple[Size, ...]) -> bool:
    """Return whether the tensor is a projection by head: one axis is the product of the others.

    A first axis that is the product is a width in any case. One that is a factor counts heads only
    if it grows: experts, whose number stays the same, may well be narrower by that number.
    """
    first, second, third = axes
    if _is_product(first, second, third):
        return True
    if first[0] == first[1]:
        return False
    return _is_product(third, first, second) or _is_product(second, first, third)


def _is_product(product: Size, first: Size, second: Size) -> bool:
    return all(first[i] * second[i] == product[i] for i in (0, 1))


def _biases(
    sizes: Mapping[str, tuple[Size, ...]], experts: Mapping[str, ExpertPart]
) -> dict[str, ExpertPart]:
    """Return the biases of fused experts: one row for each expert, in the same module."""
    modules = {_parent(name): part for name, part in experts.items() if part.axis is not None}
    parts: dict[str, ExpertPart] = {}
    for name, axes in sizes.items():
        beside = modules.get(_parent(name))
        if beside is not None and len(axes) == 2 and axes[0] == beside.count:
            parts[name] = ExpertPart(EXPERT_PART, beside.block, beside.count, 0)
    return parts


def _block_of(
    name: str, count: Size, is_width: bool, sizes: Mapping[str, tuple[Size, ...]]
) -> str | None:
    """Return the module that contains these experts and their router; None for other tensors."""
    module = _parent(name)
    if EXPERT in module.rpartition(".")[2].lower():
        for other, axes in sizes.items():
            if _is_named_router(other) and _is_router(other, module, count, axes):
                return module
        return _parent(module)
    for block in (module, _parent(module)):
        for other, axes in sizes.items():
            beside = _parent(other) == module  # perhaps a bias
            if (beside or is_width) and not _is_named_router(other):
                continue
            if _is_router(other, block, count, axes):
                return block
    if EXPERT in name.lower():
        return module
    return None


# --- lists ----------------------------------------------------------------------------------------


def _listed(
    sizes: Mapping[str, tuple[Size, ...]],
    base_lengths: Mapping[str, int],
    base_names: Mapping[str, str],
    parallel: Collection[str],
) -> dict[str, ExpertPart]:
    """Return the tensors of single experts in lists."""
    lengths = _lengths(sizes)
    routed: dict[tuple[str, Size, bool], bool] = {}  # all tensors of a list have the same answer
    parts: dict[str, ExpertPart] = {}
    for name in sizes:
        names = name.split(".")
        base_parts = base_names[name].split(".")
        for position in range(1, len(names)):
            list_name = ".".join(names[:position])
            if not is_number(names[position]) or SHARED in list_name.lower():
                continue
            block = ".".join(names[: position - 1])
            base_list = ".".join(base_parts[:position])
            count = (base_lengths.get(base_list, 0), lengths[list_name])
            named = EXPERT in names[position - 1].lower() or EXPERT in names[position].lower()
            known = stack_of(list_name) in parallel
            key = (block, count, known)
            if not named and count[0] and key not in routed:
                routed[key] = _is_routed(block, count, known, sizes)
            if named or routed.get(key, False):
                parts[name] = ExpertPart(EXPERT_PART, block, count, None)
                break
    return parts


def _is_routed(
    block: str, count: Size, is_parallel: bool, sizes: Mapping[str, tuple[Size, ...]]
) -> bool:
    """Return whether a list in this block has a router."""
    if not block or (not is_parallel and count[0] == count[1]):
        return False
    for name, axes in sizes.items():
        if _is_router(name, block, count, axes) and (is_parallel or _is_named_router(name)):
            return True
    return False


def lists_of_experts(parts: Mapping[str, ExpertPart]) -> frozenset[str]:
    """Return the names that lists of experts share: `layers.*.experts`."""
    lists: set[str] = set()
    for name, part in parts.items():
        if part.kind == EXPERT_PART and part.axis is None:
            if part.block:
                inner = name.removeprefix(f"{part.block}.")
            else:
                inner = name
            lists.add(stack_of(f"{part.block}.{inner.split('.')[0]}".lstrip(".")))
    return frozenset(lists)


def _lengths(names: Iterable[str]) -> dict[str, int]:
    """Return the number of members of every list, by its name."""
    members: dict[str, set[str]] = {}
    for name in names:
        parts = name.split(".")
        for position, part in enumerate(parts):
            if is_number(part):
                members.setdefault(".".join(parts[:position]), set()).add(part)
    return {name: len(numbers) for name, numbers in members.items()}


# --- routers --------------------------------------------------------------------------------------


def _routers(
    block: str,
    count: Size,
    sizes: Mapping[str, tuple[Size, ...]],
    experts: Collection[str],
) -> list[tuple[str, int]]:
    """Return the tensors of a block's router, with the axis that counts experts."""
    matrices: list[str] = []
    vectors: list[tuple[str, int]] = []
    for name, axes in sizes.items():
        if name in experts or not _is_router(name, block, count, axes):
            if name not in experts and _inside(name, block) and axes == (count,):
                vectors.append((name, 0))
            continue
        matrices.append(name)
    if len(matrices) > 1:
        named = [name for name in matrices if _is_named_router(name)]
        if len(named) != 1 and count[0] != count[1]:
            message = (
                f"model: {', '.join(matrices)} may each be the router of the {count[1]} experts in"
                f" {block}; call the router's module {' or '.join(ROUTERS)}"
            )
            raise InputError(message, "ambiguous-role", argument="model")
        matrices = named
    return [(name, sizes[name].index(count)) for name in matrices] + vectors


def _is_router(name: str, block: str, count: Size, axes: tuple[Size, ...]) -> bool:
    """Return whether a tensor can be the matrix of a router: one output for every expert."""
    if len(axes) != 2 or count not in axes or not _inside(name, block):
        return False
    inner = name.removeprefix(f"{block}.").lower()
    return SHARED not in inner and EXPERT not in inner


def _is_named_router(name: str) -> bool:
    parts = name.lower().split(".")
    return any(part in ROUTERS for part in parts)


def _inside(name: str, block: str) -> bool:
    return not block or name.startswith(f"{block}.")


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
