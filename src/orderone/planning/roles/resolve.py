"""The role of every tensor, resolved from its evidence by one ranking.

    override > trace > owning module > shape > name

Relative to a base, a role follows from the dimensions that grow (`resolve_roles`). Where nothing
grows, it follows from the sizes that tensors share (`roles.structure`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orderone.core.errors import InputError
from orderone.core.roles import ROLES, Role
from orderone.observe.inventory import Layout
from orderone.planning.counterparts import stack_of
from orderone.planning.roles.evidence import ENTRYWISE, Evidence, Widths
from orderone.rules.axes import Growth


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


def unambiguous_roles(tensors: Sequence[Evidence], widths: Widths) -> dict[str, Role]:
    """Return the roles of the tensors with a dimension that grows, without those in doubt."""
    roles: dict[str, Role] = {}
    for evidence in tensors:
        resolved = _resolve(evidence, widths)
        if isinstance(resolved, ResolvedRole) and resolved.role != Role.FIXED:
            roles[evidence.name] = resolved.role
    return roles


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
