"""Roles of tensors from the structure of a model of one size.

They count in absolute mode, for settings by role, and for the choice of the tensors that Muon
takes, which must not depend on the base.

A width is the fan-out of one tensor and the fan-in of another. One size alone cannot show whether
an output that is as large as a width is one: four classes of a model with an inner width of four.
The forward pass shows which matrices make the output, and which read the data. Such a matrix that
makes the output has two candidates, readout and hidden, unless its module is called a head.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mode

from orderone.core.roles import Role
from orderone.planning.counterparts import stack_of
from orderone.planning.roles.evidence import Evidence, data_readers
from orderone.planning.roles.vocabulary import GATES

MOST_PACKED = 8  # largest number of widths side by side


Candidates = tuple[Role, ...]  # the roles that a tensor may have, the likeliest first


def structural_candidates(tensors: Sequence[Evidence]) -> dict[str, Candidates]:
    """Return embedding, hidden, readout or vector for every tensor, or two of them if one size
    cannot decide.

    A matrix that reads the data is an embedding; without a trace, this is the first matrix of a
    model without lookups, and a table of positions does not count as a lookup. A matrix that makes
    the output (without a trace: the last one) is the readout. Any other matrix is a readout if its
    fan-out is no fan-in of another, unless it packs a few widths side by side (queries, keys and
    values; gate and up).
    """
    widths = structural_widths(tensors)
    readers = data_readers(tensors)
    inside = structural_widths([each for each in tensors if each.name not in readers])
    candidates: dict[str, Candidates] = {}
    matrices: list[Evidence] = []
    reads_tokens = False
    for evidence in tensors:
        candidates[evidence.name] = (Role.VECTOR,)
        if evidence.only_matrix is not None:
            matrices.append(evidence)
        elif "lookup" in evidence.kinds:
            candidates[evidence.name] = (Role.EMBEDDING,)
            reads_tokens = reads_tokens or not evidence.hints.positional
    for number, evidence in enumerate(matrices):
        first = number == 0 and not reads_tokens and evidence.reads_data is not False
        last = number == len(matrices) - 1
        as_output = _as_output(evidence, widths, inside, last)
        # an output may be as large as an input: what reads data is measured by inner widths
        read_by_it = inside if evidence.reads_data else widths
        inner = _structural_role(evidence, widths, read_by_it, first)
        candidates[evidence.name] = as_output or (inner,)
    return candidates


def structural_roles(tensors: Sequence[Evidence]) -> dict[str, Role]:
    """Return the first candidate for every tensor."""
    return {name: roles[0] for name, roles in structural_candidates(tensors).items()}


def _as_output(
    evidence: Evidence, widths: set[int], inside: set[int], last: bool
) -> Candidates | None:
    """Return the candidates of a matrix that makes the output; None for other matrices."""
    is_head = evidence.hints.head and (last or evidence.makes_output)
    if evidence.is_output or evidence.is_router or is_head:
        return (Role.READOUT,)
    makes_output = evidence.makes_output
    if makes_output is None:
        makes_output = last
    if not makes_output or evidence.item.places[0].owner in GATES:
        return None
    if not _goes_on(evidence, widths, inside):
        return (Role.READOUT,)
    if evidence.makes_output and not evidence.reads_data:
        return (Role.READOUT, Role.HIDDEN)
    return None


def output_in_doubt(tensors: Sequence[Evidence]) -> Evidence | None:
    """Return the last matrix if it counts as hidden because its fan-out is an inner width.

    Without a trace it may as well make the output; not if it is inside a layer of a stack, or if
    another tensor is the readout.
    """
    matrices = [evidence for evidence in tensors if evidence.only_matrix is not None]
    if not matrices:
        return None
    last = matrices[-1]
    is_settled = last.override is not None or last.is_output or last.item.places[0].owner in GATES
    stack = stack_of(last.name)
    in_a_layer = "*" in stack and stack.count(".", stack.find("*")) > 1
    if is_settled or in_a_layer:
        return None
    candidates = structural_candidates(tensors)
    is_tied = any({"lookup", "matrix"} <= set(evidence.kinds) for evidence in tensors)
    if is_tied or (Role.READOUT,) in candidates.values():
        return None
    if candidates[last.name] == (Role.HIDDEN,):
        return last
    return None


def _goes_on(evidence: Evidence, widths: set[int], inside: set[int]) -> bool:
    """Return whether the fan-out is a width that a matrix reads which does not read the data.

    The output of an autoencoder is as large as its input, and no width.
    """
    layout = evidence.only_matrix
    assert layout is not None
    return _structural_size(evidence, layout.fan_out, widths) in inside


def _structural_role(evidence: Evidence, widths: set[int], read: set[int], first: bool) -> Role:
    """Return the role of a matrix; `read` are the widths that it may read."""
    layout = evidence.only_matrix
    assert layout is not None
    fan_in = _structural_size(evidence, layout.fan_in, read)
    fan_out = _structural_size(evidence, layout.fan_out, widths)
    joined = evidence.reads_data is False and any(_several_times(fan_in, n) for n in widths)
    # a convolution in groups: each reads a part of a width
    is_filter = len(evidence.item.shape) > len(layout.fan_in) + len(layout.fan_out) and fan_in > 1
    joined |= evidence.reads_data is False and is_filter and any(n % fan_in == 0 for n in widths)
    if first or evidence.reads_data or (fan_in not in read and not joined):
        if fan_in == 1:
            return Role.VECTOR
        return Role.EMBEDDING
    # with fewer keys than queries, the fan-out of packed matrices is no multiple of a width
    several = evidence.part is not None or evidence.hints.packed > 1
    if several or any(_few_times(fan_out, width) for width in widths):
        return Role.HIDDEN
    return Role.READOUT


def _structural_size(evidence: Evidence, axes: Sequence[int], widths: set[int]) -> int:
    """Return the size of some axes; in parallel modules together, if only that is a width.

    If neither is, and the tensor is a stack of matrices (experts), that of one matrix.
    """
    size = evidence.product(axes)
    together = evidence.with_siblings(axes)[1]
    if size in widths:
        return size
    if together in widths:
        return together
    if len(axes) > 1 and _size_in_stack(evidence, axes) in widths:
        return _size_in_stack(evidence, axes)
    return size


def _size_in_stack(evidence: Evidence, axes: Sequence[int]) -> int:
    """Return the size of some axes of one matrix, if the first of them counts matrices."""
    return evidence.product(axes[1:])


def _few_times(size: int, width: int) -> bool:
    """Return whether a size is a small multiple of a width, or a width a small multiple of it.

    Keys and values that are shared by heads are smaller than a width.
    """
    packed = size % width == 0 and size // width <= MOST_PACKED
    shared = width % size == 0 and width // size <= MOST_PACKED
    return packed or shared


def _several_times(size: int, width: int) -> bool:
    """Return whether a size is that of a few outputs of one width that are joined."""
    return size > width and size % width == 0 and size // width <= MOST_PACKED


def structural_widths(tensors: Sequence[Evidence]) -> set[int]:
    """Return the sizes above 1 that are a fan-out of one tensor and a fan-in of a matrix."""
    consumed: set[int] = set()
    produced: set[int] = set()
    for evidence in tensors:
        matrix = evidence.only_matrix
        lookup = evidence.kinds.get("lookup")
        if matrix is not None:
            consumed.add(evidence.product(matrix.fan_in))
            produced.add(evidence.product(matrix.fan_out))
            if len(matrix.fan_out) > 1:
                produced.add(_size_in_stack(evidence, matrix.fan_out))
        if lookup is not None:
            produced.add(evidence.product(lookup.fan_out))
        if evidence.part:
            produced.add(evidence.part)
    return (consumed & produced) - {1}


def residual_width(tensors: Sequence[Evidence], roles: Mapping[str, Role]) -> int | None:
    """Return the width of the residual stream: the most common size of hidden matrices."""
    sizes = list(_hidden_sizes(tensors, roles))
    if sizes:
        return mode(sizes)
    return None


def _hidden_sizes(tensors: Sequence[Evidence], roles: Mapping[str, Role]) -> Iterator[int]:
    for evidence in tensors:
        if roles[evidence.name] == Role.HIDDEN:
            yield from evidence.fans


def group_of(evidence: Evidence, role: Role, width: int | None) -> str:
    """Return the group of a tensor: patch, WE, PE, QKVU, W, X or head; otherwise its role.

    The groups are those of "Effective Theory of Transformers at Initialization" (S2).
    """
    if role == Role.EMBEDDING:
        if evidence.hints.positional or not evidence.layouts:
            return "PE"
        if "lookup" in evidence.kinds:
            return "WE"
        return "patch"
    if role == Role.HIDDEN:
        fan_in, fan_out = evidence.fans
        if evidence.hints.attention or fan_in == fan_out:
            return "QKVU"
        if fan_in == width or (fan_out > fan_in and fan_out != width):
            return "W"
        return "X"
    if role == Role.READOUT:
        return "head"
    return role.value
