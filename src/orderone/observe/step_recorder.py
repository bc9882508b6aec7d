"""What one step shows: tensors under the names of modules and quantities, sized as they come by.

A tensor that several modules give is sized once. Gradients of outputs come by hooks on the tensors
themselves. Slots of a ledger stand for sizes until `end` sends for the numbers.
"""

import weakref
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from orderone.observe.history import Key, Step
from orderone.observe.hooks import Identities
from orderone.observe.moments import FEW, Ledger, is_here, is_measurable


class Shown:
    """`quantities` are those that are asked for. `written_over` is what earlier steps have taught:
    whether somebody writes into a tensor after it was seen."""

    def __init__(self, quantities: frozenset[str], written_over: dict[Key, bool]):
        self.quantities = quantities
        self.written_over = written_over
        self.ledger = Ledger()
        self._identities = Identities()
        self._entries: list[tuple[Key, int]] = []  # several with one key are counted together
        self._notes: dict[Key, int] = {}  # the last one counts
        self._noted: dict[Key, Tensor] = {}  # on other devices, to be sized together
        self._lost: set[Key] = set()
        self._gradients: dict[int, list[int]] = {}
        self._hooks: list[RemovableHandle] = []

    def see(self, module: str, kind: str, x: Tensor) -> int:
        """An input, output or scores of a pass."""
        slot = self._size_of(x, (module, kind))
        self.put((module, kind), slot)
        if kind == "output" and "output gradient" in self.quantities and x.requires_grad:
            self._await_gradient(x, slot, (module, "output gradient"))
        return slot

    def put(self, key: Key, slot: int) -> None:
        self._entries.append((key, slot))

    def lose(self, key: Key) -> None:
        """What belongs to it cannot be sized any more."""
        self._lost.add(key)

    def _size_of(self, x: Tensor, key: Key) -> int:
        """Gradients, too, pass through several modules: what a sum is told, its terms are told."""
        slot = self._identities.get(x)
        if slot is None:
            slot = self.ledger.add(x, copy=self.written_over.get(key, True))
            self._identities.put(x, slot)
        return slot

    def _await_gradient(self, x: Tensor, slot: int, key: Key) -> None:
        if slot not in self._gradients:
            self._gradients[slot] = []
            self._hooks.append(x.register_hook(self._gradient_of(slot, key)))

    def _gradient_of(self, slot: int, key: Key) -> Callable[[Tensor], None]:
        """A hook for the tensor in `slot`. Weak, so that a graph the user keeps does not keep what
        it has shown."""
        shown = weakref.ref(self)

        def hook(gradient: Tensor) -> None:
            owner = shown()
            if owner is not None and gradient.layout == torch.strided:
                owner._gradients[slot].append(owner._size_of(gradient, key))

        return hook

    # --- tensors that belong to the model ---------------------------------------------------------

    def note(self, name: str, quantity: str, x: Tensor, count: int | None = None) -> None:
        """A weight, a gradient or an update, which nobody changes before `settle`."""
        if quantity not in self.quantities or not is_measurable(x):
            return
        if count is None and not is_here(x):
            self._noted[name, quantity] = x
        else:
            size = self.ledger.keep if x.numel() <= FEW else self.ledger.add
            self._notes[name, quantity] = size(x, count)

    def note_gradient(self, name: str, p: Tensor) -> None:
        gradient = p.grad
        if gradient is not None and gradient.is_sparse:
            self.note(name, "gradient", gradient.coalesce().values(), p.numel())
        elif gradient is not None:
            self.note(name, "gradient", gradient)

    def settle(self) -> None:
        noted = self._noted
        self._noted = {}
        self._notes.update(zip(noted, self.ledger.add_all(noted.values()), strict=True))
        self.ledger.settle()

    # --- the end of the step ----------------------------------------------------------------------

    def end(self, number: int) -> Step:
        """Everything that was asked for."""
        sent = self.ledger.send()
        elsewhere = self.ledger.elsewhere
        passed = [*self._entries, *self._gradient_entries()]
        for key, slot in passed:
            if key not in self.written_over or slot in elsewhere.overwritten:
                self.written_over[key] = slot in elsewhere.overwritten
            if slot in elsewhere.lost:
                self.lose(key)
        wanted = [entry for entry in passed if entry[0][1] in self.quantities]
        keys = [key for key, _ in wanted]
        slots = [slot for _, slot in wanted]
        return Step(
            number,
            [*keys, *self._notes],
            [*slots, *self._notes.values()],
            frozenset(self._lost),
            sent,
        )

    def _gradient_entries(self) -> Iterator[tuple[Key, int]]:
        for (module, kind), slot in self._entries:
            if kind == "output":
                for gradient in self._gradients.get(slot, ()):
                    yield (module, "output gradient"), gradient

    def forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
