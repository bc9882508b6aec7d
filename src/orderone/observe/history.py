"""What steps have shown, kept small, and turned into lines of a table when somebody asks for
them."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from orderone.observe.moments import Moments, Sent

Key = tuple[str, str]  # module or tensor, quantity
Row = tuple[int, str, str, Moments]  # step, module or tensor, quantity


class Step(NamedTuple):
    """Several entries with one key are counted together."""

    number: int
    keys: list[Key]
    slots: list[int]
    lost: frozenset[
        Key
    ]  # of which something was written over before it could be sized: a part is not the whole
    sent: Sent

    def entries(self) -> Iterator[tuple[Key, Moments]]:
        moments = self.sent.moments()
        return (
            (key, moments[slot])
            for key, slot in zip(self.keys, self.slots, strict=True)
            if key not in self.lost
        )

    def rows(self) -> Iterator[Row]:
        found: dict[Key, Moments] = {}
        for key, size in self.entries():
            found[key] = found[key] + size if key in found else size
        return ((self.number, *key, size) for key, size in found.items())

    def same_outputs(self) -> dict[str, str]:
        """Modules that give what another module has given: what passes a module unchanged, in this
        shape or another, has the same moments to the last bit."""
        first: dict[Moments, str] = {}
        outputs = [(module, size) for (module, kind), size in self.entries() if kind == "output"]
        calls = Counter(module for module, _ in outputs)
        alone = [
            (module, size) for module, size in outputs if calls[module] == 1 and size.squares > 0
        ]
        return {
            module: first[size]
            for module, size in alone
            if first.setdefault(size, module) != module
        }


class History:
    """Steps that have shown something, in order. What is alike in all of them is kept once."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._awaited: deque[Sent] = deque()

    def add(self, step: Step) -> None:
        if not step.keys:
            return
        if self.steps and self.steps[-1].keys == step.keys:
            step = step._replace(keys=self.steps[-1].keys)
        if self.steps and self.steps[-1].slots == step.slots:
            step = step._replace(slots=self.steps[-1].slots)
        self.steps.append(step)
        self._awaited.append(step.sent)
        while self._awaited and self._awaited[0].arriving.is_here():
            self._awaited.popleft().arriving.land()
