"""The role of every tensor, resolved from its evidence by one ranking.

    override > trace > owning module > shape > name

Relative to a base, a role follows from the dimensions that grow (`resolve_roles`). Where nothing
grows, it follows from the sizes that tensors share (`structural_roles`): in absolute mode, and for
the choice of the tensors that Muon takes, which must not depend on the base.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mode

from orderone.core.errors import InputError
from orderone.core.roles import ROLES, Role
from orderone.observe.inventory import Layout
from orderone.planning.counterparts import stack_of
from orderone.planning.roles.evidence import ENTRYWISE, Evidence, Widths, data_readers
from orderone.rules.axes import Growth

MOST_PACKED = 8  # largest number of widths side by side


class AmbiguousRole(InputError):  # noqa: N818
    """Several roles are possible for a tensor; the user has to choose one with `overrides`."""


@dataclass(frozen=True)
class ResolvedRole:
    """Role of a tensor, ratios by which its dimensions grow, and the reason in words."""

    role: Role
    growth: Growth
    reason: str
    # for an embedding that is also the readout: growth of the readout's fan-in
    tied: float | None = None
    bottleneck: bool = False  # a readout whose output goes on into the network
    writes_matrix: bool = False  # its output is a matrix, which has this role


@dataclass(frozen=True)
class Doubt:
    """A tensor with several possible roles."""

    evidence: Evidence
    candidates: Sequence[str]
    why: str


# --- relative to a base ---------------------------------------------------------------------------


def resolve_roles(
    tensors: Sequence[Evidence], widths: Widths, output_is_known: bool
) -> dict[str, ResolvedRole]:
    """Return the role of every tensor; raise AmbiguousRole if several roles are possible.

    `output_is_known`: the model declares its output layer.
    """
    resolved: dict[str, ResolvedRole] = {}
    doubts: list[Doubt] = []
    for evidence in tensors:
        role = _resolve(evidence, widths)
        if isinstance(role, Doubt):
            doubts.append(role)
        else:
            resolved[evidence.name] = role
    if not output_is_known:
        doubts += _doubt_about_the_output(tensors, widths, resolved)
    if doubts:
        raise AmbiguousRole(_message(doubts), "ambiguous-role", argument="overrides")
    return resolved


def _resolve(evidence: Evidence, widths: Widths) -> ResolvedRole | Doubt:
    for source in RANKING:
        role = source(evidence, widths)
        if role is not None:
            if evidence.override:
                return role
            return _written_matrix(role, evidence, widths)
    return _doubt(evidence, widths)


def _written_matrix(role: ResolvedRole, evidence: Evidence, widths: Widths) -> ResolvedRole | Doubt:
    """Return the role of a tensor whose output is a matrix: that of the matrix.

    The output of a hypernetwork (8 -> n^2) is a matrix, whose fan-in no shape shows. The forward
    pass does; without it, a size that grows like a product of two widths is a doubt.
    """
    if evidence.generated and role.growth.fan_in == 1:
        total = _total_growth(evidence)
        growth = Growth(total**evidence.generated, total ** (1 - evidence.generated))
        if total == 1:
            return role
        reason = "its output is a matrix of weights"
        if growth.fan_out != 1:
            reason = f"{reason} (fan-in and fan-out grow)"
            return ResolvedRole(Role.HIDDEN, growth, reason, writes_matrix=True)
        reason = f"{reason} (fan-in grows, fan-out does not)"
        return ResolvedRole(Role.READOUT, growth, reason, writes_matrix=True)
    if role.role == Role.FIXED and any(widths.is_product(size) for size in evidence.sizes):
        why = "a dimension grows like a product of two widths, like the entries of a matrix"
        return Doubt(evidence, (Role.HIDDEN, Role.EMBEDDING, Role.FIXED), why)
    return role


def _by_override(evidence: Evidence, widths: Widths) -> ResolvedRole | None:
    """Return the role that the user set, with growth along known axes, or along all that grow."""
    role = evidence.override
    if role is None:
        return None
    fan_in = fan_out = widths.ratio(evidence.sizes)
    if role == Role.HIDDEN:
        fan_in = fan_out = fan_in**0.5
    for layout in evidence.layouts:
        if layout.kind not in ENTRYWISE:
            fan_in = widths.ratio(evidence.over(layout.fan_in))
            fan_out = widths.ratio(evidence.over(layout.fan_out))
            break
    if fan_in == fan_out == 1:  # set by the user for sizes that are no widths
        fan_in = fan_out = _total_growth(evidence)
        if role == Role.HIDDEN:
            fan_in = fan_out = fan_in**0.5
    growth = {
        Role.HIDDEN: Growth(fan_in, fan_out),
        Role.READOUT: Growth(fan_in=fan_in),
        Role.EMBEDDING: Growth(fan_out=fan_out),
        Role.VECTOR: Growth(fan_out=fan_out),
        Role.FIXED: Growth(),
    }
    return ResolvedRole(role, growth[role], "set by overrides")


def _total_growth(evidence: Evidence) -> float:
    ratio = 1.0
    for base, target in evidence.sizes:
        ratio *= target / base
    return ratio


def _by_trace(evidence: Evidence, widths: Widths) -> ResolvedRole | None:
    """Return the role if the layouts come from the forward pass."""
    if evidence.trace_decides:
        return _by_layouts(evidence, widths)
    return None


def _by_module(evidence: Evidence, widths: Widths) -> ResolvedRole | None:
    """Return the role if the owning modules declare the layouts."""
    if evidence.layouts:
        return _by_layouts(evidence, widths)
    return None


def _by_shape(evidence: Evidence, widths: Widths) -> ResolvedRole | None:
    """Return the role if shapes allow only one."""
    grown = widths.among(evidence.sizes)
    ratios = {target / base for base, target in grown}
    if not grown:
        return _fixed(evidence, widths)
    if len(grown) == 1 and all(size in grown or size[1] == 1 for size in evidence.sizes):
        growth = Growth(fan_out=ratios.pop())
        return ResolvedRole(Role.VECTOR, growth, "its only dimension grows")
    if len(grown) == 2 and len(ratios) == 1:
        ratio = ratios.pop()
        return ResolvedRole(
            Role.HIDDEN, Growth(ratio, ratio), "two dimensions grow by the same ratio"
        )
    return None


def _by_name(evidence: Evidence, widths: Widths) -> ResolvedRole | None:
    """Return the role of a table of embeddings, recognised by its name."""
    grown = widths.among(evidence.sizes)
    if len(grown) != 1 or not evidence.hints.table:
        return None
    [(base, target)] = grown
    growth = Growth(fan_out=target / base)
    return ResolvedRole(Role.EMBEDDING, growth, "embedding table (by its name)")


Source = Callable[[Evidence, Widths], ResolvedRole | None]
RANKING: tuple[Source, ...] = (_by_override, _by_trace, _by_module, _by_shape, _by_name)


# --- roles by layout ------------------------------------------------------------------------------


def _by_layouts(evidence: Evidence, widths: Widths) -> ResolvedRole:
    lookup = evidence.first("lookup")
    if lookup is not None and "matrix" in evidence.kinds:
        return _tied(evidence, widths, lookup)
    layout = evidence.layouts[0]
    if layout.kind == "vector":
        return _vector(evidence, widths)
    if layout.kind == "table":
        return _table(evidence, widths)
    if layout.kind == "lookup":
        return _lookup(evidence, widths, layout)
    resolved: list[ResolvedRole] = []
    for layout in evidence.layouts:
        if layout.kind == "matrix":
            resolved.append(_matrix(evidence, widths, layout))
    return _both_ways(resolved) or resolved[0]


def _both_ways(resolved: Sequence[ResolvedRole]) -> ResolvedRole | None:
    """Return the role of a matrix that reads the input and, transposed, writes the output."""
    by_role = {resolved_role.role: resolved_role for resolved_role in resolved}
    embedding = by_role.get(Role.EMBEDDING)
    readout = by_role.get(Role.READOUT)
    if embedding is None or readout is None:
        return None
    reason = "embedding and transposed readout share this tensor"
    return ResolvedRole(Role.EMBEDDING, embedding.growth, reason, tied=readout.growth.fan_in)


def _vector(evidence: Evidence, widths: Widths) -> ResolvedRole:
    ratio = widths.growth(evidence, range(len(evidence.sizes)))
    if ratio == 1:
        return _fixed(evidence, widths)
    return ResolvedRole(Role.VECTOR, Growth(fan_out=ratio), "per-channel gain or bias")


def _table(evidence: Evidence, widths: Widths) -> ResolvedRole:
    """Return the role of a tensor that is added, or whose rows are tokens.

    A bias has one entry per channel; a table of positions or tokens has several.
    """
    resolved = _vector(evidence, widths)
    long = [size for size in evidence.sizes if size[1] > 1]
    is_bias = evidence.name.endswith("bias")
    if resolved.role != Role.VECTOR or is_bias or len(widths.among(long)) == len(long):
        return resolved
    reason = "learned table of positions or tokens (no fan-in)"
    return ResolvedRole(Role.EMBEDDING, resolved.growth, reason)


def _lookup(evidence: Evidence, widths: Widths, layout: Layout) -> ResolvedRole:
    ratio = widths.ratio(evidence.over(layout.fan_out))
    if ratio == 1:
        return _fixed(evidence, widths)
    return ResolvedRole(Role.EMBEDDING, Growth(fan_out=ratio), "embedding lookup (no fan-in)")


def _tied(evidence: Evidence, widths: Widths, layout: Layout) -> ResolvedRole:
    lookup = _lookup(evidence, widths, layout)
    if lookup.role == Role.FIXED:
        return lookup
    reason = "embedding and readout share this tensor"
    return ResolvedRole(Role.EMBEDDING, lookup.growth, reason, tied=lookup.growth.fan_out)


def _matrix(evidence: Evidence, widths: Widths, layout: Layout) -> ResolvedRole:
    fan_in = evidence.over(layout.fan_in)
    fan_out = evidence.over(layout.fan_out)
    growth = Growth(
        widths.growth(evidence, layout.fan_in),
        1.0 if evidence.is_output else widths.growth(evidence, layout.fan_out),
    )
    if growth.fan_in != 1 and growth.fan_out != 1:
        return ResolvedRole(Role.HIDDEN, growth, "fan-in and fan-out grow")
    if growth.fan_in != 1:
        reason = "fan-in grows, fan-out does not"
        goes_on = any(size in widths.consumed_inside and size[1] > 1 for size in fan_out)
        if evidence.is_output or not goes_on:
            return ResolvedRole(Role.READOUT, growth, reason)
        outputs = fan_out[0][1]
        reason += f"; a bottleneck: its {outputs} outputs go on into the network"
        return ResolvedRole(Role.READOUT, growth, reason, bottleneck=True)
    if growth.fan_out != 1:
        depthwise = all(target == 1 for _, target in fan_in)
        if depthwise:
            reason = "depthwise filter (no fan-in)"
            return ResolvedRole(Role.VECTOR, growth, reason)
        return ResolvedRole(Role.EMBEDDING, growth, "fan-out grows, fan-in does not (input layer)")
    return _fixed(evidence, widths)


def _fixed(evidence: Evidence, widths: Widths) -> ResolvedRole:
    reason = "no dimension grows"
    if evidence.expert is not None and evidence.expert.growth != 1:
        reason = "no width grows; differs in experts"
    for size in evidence.sizes:
        if size[0] != size[1]:
            reason = f"no width grows; differs in {widths.word_for(size)}"
            break
    return ResolvedRole(Role.FIXED, Growth(), reason)


# --- doubts ---------------------------------------------------------------------------------------


def _doubt(evidence: Evidence, widths: Widths) -> Doubt:
    grown = widths.among(evidence.sizes)
    if len(grown) == 1:
        candidates = (Role.EMBEDDING, Role.READOUT, Role.VECTOR)
        return Doubt(evidence, candidates, "one dimension grows, and it may be fan-in or fan-out")
    why = f"{len(grown)} dimensions grow, and it is unknown which are fan-in"
    return Doubt(evidence, ROLES, why)


def _doubt_about_the_output(
    tensors: Sequence[Evidence], widths: Widths, resolved: Mapping[str, ResolvedRole]
) -> list[Doubt]:
    """Return a doubt about the last matrix if its fan-out may be a width or a vocabulary.

    If it is a vocabulary, the matrix is the readout.
    """
    matrices = [evidence for evidence in tensors if set(evidence.kinds) == {"matrix"}]
    if not matrices:
        return []
    last = matrices[-1]
    role = resolved.get(last.name)
    if last.override is not None or role is None or role.role != Role.HIDDEN:
        return []
    for size in last.over(last.layouts[0].fan_out):
        if size in widths.picked and widths.is_width(size):
            why = "its fan-out grows like a width and like a vocabulary"
            return [Doubt(last, (Role.READOUT, Role.HIDDEN), why)]
    return []


def _message(doubts: Sequence[Doubt]) -> str:
    """Return a message that names every stack of layers once."""
    by_stack = {stack_of(doubt.evidence.name): doubt for doubt in reversed(doubts)}
    lines: list[str] = []
    for stack, doubt in reversed(by_stack.items()):
        item = doubt.evidence.item
        owner = ", ".join(f"{place.owner} {place.module}".strip() for place in item.places)
        shapes = f"{doubt.evidence.base_shape} -> {item.shape}"
        candidates = " or ".join(doubt.candidates)
        lines.append(f"{stack} {shapes} in {owner}: {doubt.why}. It could be {candidates}")
    example = f'overrides={{"{next(reversed(by_stack))}": role}}'
    remedy = (
        f"Choose one with plan(..., {example}), register the module type with orderone.register, or"
        " pass an example batch"
    )
    return ". ".join([*lines, f"{remedy}: plan(..., inputs=...)"])


# --- roles by structure ---------------------------------------------------------------------------


def structural_roles(tensors: Sequence[Evidence]) -> dict[str, Role]:
    """Return embedding, hidden, readout or vector for every tensor, from the model's structure.

    A width is the fan-out of one tensor and the fan-in of another. The first matrix of a model
    without lookups reads the data; a table of positions does not count as a lookup. The last matrix
    is the readout if its module is called a head. A matrix is also a readout if its fan-out is no
    fan-in of another, unless it packs a few widths side by side (queries, keys and values; gate and
    up).
    """
    widths = structural_widths(tensors)
    readers = data_readers(tensors)
    inside = structural_widths([each for each in tensors if each.name not in readers])
    roles: dict[str, Role] = {}
    matrices: list[Evidence] = []
    reads_tokens = False
    for evidence in tensors:
        roles[evidence.name] = Role.VECTOR
        if evidence.only_matrix is not None:
            matrices.append(evidence)
        elif "lookup" in evidence.kinds:
            roles[evidence.name] = Role.EMBEDDING
            reads_tokens = reads_tokens or not evidence.hints.positional
    for number, evidence in enumerate(matrices):
        first = number == 0 and not reads_tokens and evidence.reads_data is not False
        last = number == len(matrices) - 1
        is_output = evidence.is_output or (last and evidence.hints.head)
        if is_output or (last and not _goes_on(evidence, widths, inside)):
            roles[evidence.name] = Role.READOUT
        else:
            # an output may be as large as an input: what reads data is measured by inner widths
            read_by_it = inside if evidence.reads_data else widths
            roles[evidence.name] = _structural_role(evidence, widths, read_by_it, first)
    return roles


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
    if first or (fan_in not in read and not joined):
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
    """Return the sizes that are a fan-out of one tensor and a fan-in of a matrix."""
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
    return consumed & produced


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
