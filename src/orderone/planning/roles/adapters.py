"""Adapters of low rank (LoRA): pairs of trained matrices beside a frozen one.

    y = W x + s B A x,    W: m x n frozen,    A: r x n and B: m x r trained

They are recognised by structure, whatever their names: A reads what the frozen matrix reads, B
writes what it writes, and the fan-out of A is the fan-in of B, smaller than both sizes of W. All
three are in one module, or in the module that holds them (`q_proj.base_layer`,
`q_proj.lora_A.default`, `q_proj.lora_B.default`), and this module trains nothing but adapters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orderone.planning.roles.evidence import Evidence
from orderone.planning.roles.experts import Size


@dataclass(frozen=True)
class AdapterPart:
    """Place of a matrix in an adapter."""

    matrix: str  # "A" or "B"
    partner: str  # name of the other matrix
    rank: Size  # in the base and in the target

    @property
    def growth(self) -> float:
        """Rank, target over base."""
        return self.rank[1] / self.rank[0]


def adapter_parts(tensors: Sequence[Evidence]) -> dict[str, AdapterPart]:
    """Return the place of every matrix that belongs to an adapter."""
    matrices = [evidence for evidence in tensors if evidence.only_matrix is not None]
    trained = [evidence for evidence in matrices if evidence.item.tensor.requires_grad]
    parts: dict[str, AdapterPart] = {}
    for frozen in matrices:
        if frozen.item.tensor.requires_grad:
            continue
        module = frozen.item.places[0].module
        for container in (module, module.rpartition(".")[0]):
            inside = [evidence for evidence in trained if _inside(evidence, container)]
            adapters = _pairs(frozen, inside)
            if adapters and len(adapters) == len(inside):
                parts |= {name: part for name, part in adapters.items() if name not in parts}
                break
    return parts


def _pairs(frozen: Evidence, trained: Sequence[Evidence]) -> dict[str, AdapterPart]:
    """Return the adapters of one frozen matrix."""
    parts: dict[str, AdapterPart] = {}
    smallest = min(_fan_in(frozen)[0], _fan_out(frozen)[0])
    for a in trained:
        if _fan_in(a) != _fan_in(frozen) or _fan_out(a)[0] >= smallest:
            continue
        candidates: list[Evidence] = []
        for b in trained:
            if b is not a and _fan_in(b) == _fan_out(a) and _fan_out(b) == _fan_out(frozen):
                candidates.append(b)
        # several adapters of one matrix have names: lora_A.first, lora_B.first
        same_name = [b for b in candidates if _last_name(b) == _last_name(a)]
        for b in (same_name or candidates)[:1]:
            if a.name in parts or b.name in parts:
                continue
            parts[a.name] = AdapterPart("A", b.name, _fan_out(a))
            parts[b.name] = AdapterPart("B", a.name, _fan_out(a))
    return parts


def _fan_in(evidence: Evidence) -> Size:
    layout = evidence.only_matrix
    assert layout is not None
    return evidence.together(layout.fan_in)


def _fan_out(evidence: Evidence) -> Size:
    layout = evidence.only_matrix
    assert layout is not None
    return evidence.together(layout.fan_out)


def _last_name(evidence: Evidence) -> str:
    return evidence.item.places[0].module.rpartition(".")[2]


def _inside(evidence: Evidence, container: str) -> bool:
    return f"{evidence.item.places[0].module}.".startswith(f"{container}." if container else "")
