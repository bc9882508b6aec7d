"""Lists of parallel modules, such as attention heads as separate modules.

A wider model may have more of them: none of their tensors grows, but their outputs together do. A
forward pass shows which lists are parallel. Without one, shapes tell: no member reads what another
one writes, and the next matrix reads the outputs of all.
"""

from collections.abc import Iterable, Mapping, Sequence

from orderone.planning.counterparts import is_number, stack_of
from orderone.planning.roles.evidence import Evidence, commensurate
from orderone.planning.roles.experts import Size


def parallel_by_shape(tensors: Sequence[Evidence], base_names: Iterable[str]) -> frozenset[str]:
    """Return the names of the lists that are parallel and have another length in the base."""
    lengths = _lengths(evidence.name for evidence in tensors)
    base_lengths = _lengths(base_names)
    parallel: set[str] = set()
    for list_name, length in lengths.items():
        count = (base_lengths.get(list_name, length), length)
        if count[0] != count[1] and _is_parallel(list_name, count, tensors):
            parallel.add(list_name)
    return frozenset(parallel)


def _lengths(names: Iterable[str]) -> Mapping[str, int]:
    """Return the length of every list, by the name that its counterparts share."""
    members: dict[str, set[str]] = {}
    for name in names:
        parts = name.split(".")
        for position, part in enumerate(parts):
            if is_number(part):
                members.setdefault(stack_of(".".join(parts[:position])), set()).add(part)
    return {name: len(numbers) for name, numbers in members.items()}


def _is_parallel(list_name: str, count: Size, tensors: Sequence[Evidence]) -> bool:
    produced: set[Size] = set()
    consumed: set[Size] = set()
    consumed_outside: set[Size] = set()
    for evidence in tensors:
        layout = evidence.only_matrix
        if layout is None:
            continue
        is_member = stack_of(evidence.name).startswith(f"{list_name}.*.")
        if is_member:
            produced.add(evidence.together(layout.fan_out))
            consumed.add(evidence.together(layout.fan_in))
        else:
            consumed_outside.add(evidence.together(layout.fan_in))
    if not produced or produced & consumed:
        return False
    grown = [size for size in consumed_outside if size[0] != size[1]]
    for base, target in produced:
        together = (base * count[0], target * count[1])
        if not any(commensurate(together, size) for size in grown):
            return False
    return True
