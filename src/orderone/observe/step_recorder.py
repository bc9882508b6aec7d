"""Record the steps of a training: sizes of tensors under the names of modules and quantities.

A tensor that several modules return is sized once. Hooks on the outputs record their gradients.
Sizes stay in the slots of a ledger until `end` reads the numbers. Updates and changes of outputs
are differences to copies from before a step or from a first pass.
"""

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from orderone.observe.hooks import Identities
from orderone.observe.moments import FEW, Ledger, Moments, SentMoments
from orderone.observe.quantities import Quantity
from orderone.observe.tensor_facts import is_here, is_measurable, local, version
from orderone.torch_compat import (
    flatten_dense_tensors,
    foreach_add_,
    foreach_sub,
    unflatten_dense_tensors,
)

if TYPE_CHECKING:
    from orderone.observe.pass_program import CollectedPass

Key = tuple[str, Quantity]  # module or tensor, quantity
Row = tuple[int, str, Quantity, Moments]  # step, module or tensor, quantity
Pair = tuple[int, int]  # number of a tensor, id of the tensor that it is compared with


# --- recorded steps -------------------------------------------------------------------------------


class Step(NamedTuple):
    """The records of one step; several entries with one key are counted together."""

    number: int
    keys: Sequence[Key]
    slots: Sequence[int]
    incomplete: frozenset[Key]  # keys with a part that was overwritten before it was sized
    sent: SentMoments

    def entries(self) -> Iterator[tuple[Key, Moments]]:
        """Yield the entries, without those that have overwritten parts."""
        moments = self.sent.moments()
        for key, slot in zip(self.keys, self.slots, strict=True):
            if key not in self.incomplete and moments[slot].entries:
                yield key, moments[slot]

    def rows(self) -> Iterator[Row]:
        """Yield one row for each key."""
        totals: dict[Key, Moments] = {}
        for key, size in self.entries():
            if key in totals:
                size = totals[key] + size
            totals[key] = size
        for (name, quantity), size in totals.items():
            yield self.number, name, quantity, size

    def same_outputs(self) -> dict[str, str]:
        """Return the modules whose output is that of another module, with that module.

        A tensor that passes through a module unchanged, perhaps reshaped, has exactly the same
        moments.
        """
        outputs = []
        for (module, quantity), size in self.entries():
            if quantity == Quantity.OUTPUT:
                outputs.append((module, size))
        calls = Counter(module for module, _ in outputs)
        makers: dict[Moments, str] = {}
        same: dict[str, str] = {}
        for module, size in outputs:
            if calls[module] > 1 or not size.squares > 0:
                continue
            maker = makers.setdefault(size, module)
            if maker != module:
                same[module] = maker
        return same


class History:
    """Recorded steps in order. Keys and slots that are the same in all of them are stored once."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._in_transfer: deque[SentMoments] = deque()

    def add(self, step: Step) -> None:
        """Add a step, unless it is empty."""
        if not step.keys:
            return
        if self.steps and self.steps[-1].keys == step.keys:
            step = step._replace(keys=self.steps[-1].keys)
        if self.steps and self.steps[-1].slots == step.slots:
            step = step._replace(slots=self.steps[-1].slots)
        self.steps.append(step)
        self._in_transfer.append(step.sent)
        while self._in_transfer and self._in_transfer[0].transfer.has_arrived():
            self._in_transfer.popleft().transfer.wait()


class StepRecorder:
    """Collect the records of one step.

    `quantities` are those to record. All steps share `overwritten`: whether code wrote into a
    tensor after it was recorded.
    """

    def __init__(self, quantities: frozenset[Quantity], overwritten: dict[Key, bool]):
        self.quantities: frozenset[Quantity] = quantities
        self.overwritten: dict[Key, bool] = overwritten
        self.ledger: Ledger = Ledger()
        self._identities = Identities()
        self._entries: list[tuple[Key, int]] = []  # several with one key are counted together
        self._tensors: dict[Key, int] = {}  # the last entry with a key counts
        self._to_size: dict[Key, Tensor] = {}  # on other devices, to be sized together
        self._incomplete: set[Key] = set()
        self._gradients: dict[int, list[int]] = {}  # slots of gradients by the slot of the output
        self._passes: list[CollectedPass] = []  # of compiled programs
        self._collected: list[tuple[Key, int]] = []
        self._hooks: list[RemovableHandle] = []

    # --- tensors of a pass ------------------------------------------------------------------------

    def record(self, module: str, quantity: Quantity, x: Tensor) -> int:
        """Record an input, an output or scores of a pass; return the slot."""
        slot = self._slot_of(x, (module, quantity))
        self.put((module, quantity), slot)
        wants_gradient = quantity == Quantity.OUTPUT and Quantity.OUTPUT_GRADIENT in self.quantities
        if wants_gradient and x.requires_grad and slot not in self._gradients:
            self._gradients[slot] = []
            hook = self._gradient_hook(slot, (module, Quantity.OUTPUT_GRADIENT))
            self._hooks.append(x.register_hook(hook))
        return slot

    def put(self, key: Key, slot: int) -> None:
        """Record a slot of the ledger under a key."""
        self._entries.append((key, slot))

    def drop(self, key: Key) -> None:
        """Drop a key, since a part of it can no longer be sized."""
        self._incomplete.add(key)

    def _slot_of(self, x: Tensor, key: Key) -> int:
        """Return the slot of a tensor; size the tensor if it is new.

        Gradients, too, may be the same tensor for several modules: the gradient of a sum equals
        that of its terms.
        """
        slot = self._identities.get(x)
        if slot is None:
            slot = self.ledger.add(x, copy=self.overwritten.get(key, True))
            self._identities.put(x, slot)
        return slot

    def _gradient_hook(self, slot: int, key: Key) -> Callable[[Tensor], None]:
        """Return a hook for the tensor in `slot`.

        The hook has a weak reference, so that a graph that lives on does not keep the records
        alive.
        """
        recorder = weakref.ref(self)

        def hook(gradient: Tensor | None) -> None:
            # None: a function has other outputs, and only those are used
            owner = recorder()
            if owner is None or gradient is None:
                return
            if gradient.layout == torch.strided:
                owner._gradients[slot].append(owner._slot_of(gradient, key))

        return hook

    # --- passes of compiled programs --------------------------------------------------------------

    def collect(self, collected: "CollectedPass") -> None:
        """Record what a compiled program has recorded of its pass; its gradients come later."""
        slots = self.ledger.add_sizes(collected.counts, collected.sizes)
        for key, number in collected.entries():
            self._collected.append((key, slots[number]))
        if collected.rows is None:
            return
        self._passes.append(collected)
        recorder = weakref.ref(self)

        def hook(gradient: Tensor) -> None:
            collected.has_arrived = True
            owner = recorder()
            if owner is not None:
                owner._collect_gradients(collected, gradient)

        self._hooks.append(collected.rows.register_hook(hook))

    def _collect_gradients(self, collected: "CollectedPass", sizes: Tensor) -> None:
        keys: list[Key] = []
        rows: list[int] = []
        counts: list[int] = []
        for key, row, count in collected.gradients():
            keys.append(key)
            rows.append(row)
            counts.append(count)
        chosen = sizes.detach().T[:, rows]
        slots = self.ledger.add_sizes(counts, chosen, marked=True)
        self._collected += zip(keys, slots, strict=True)

    # --- tensors of the model ---------------------------------------------------------------------

    def record_tensor(
        self, name: str, quantity: Quantity, x: Tensor, count: int | None = None
    ) -> None:
        """Record a weight, a gradient or an update, which must not change before `settle`."""
        if quantity not in self.quantities or not is_measurable(x):
            return
        if count is None and not is_here(x):
            self._to_size[name, quantity] = x
        elif x.numel() <= FEW:
            self._tensors[name, quantity] = self.ledger.keep(x, count)
        else:
            self._tensors[name, quantity] = self.ledger.add(x, count)

    def record_gradient(self, name: str, parameter: Tensor) -> None:
        """Record the gradient of a parameter, if it has one."""
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.is_sparse:
            values = gradient.coalesce().values()
            self.record_tensor(name, Quantity.GRADIENT, values, parameter.numel())
        else:
            self.record_tensor(name, Quantity.GRADIENT, gradient)

    def settle(self) -> None:
        """Size the recorded tensors of the model now."""
        if self._to_size:
            to_size = self._to_size
            self._to_size = {}
            slots = self.ledger.add_all(to_size.values())
            self._tensors.update(zip(to_size, slots, strict=True))
        self.ledger.settle()

    # --- the end of the step ----------------------------------------------------------------------

    def end(self, number: int) -> Step:
        """Return the records of the step; the numbers may still be in transfer."""
        for collected in self._passes:
            collected.end()
        sent = self.ledger.send()
        queue = self.ledger.queue
        entries = [*self._entries, *self._gradient_entries()]
        for key, slot in entries:
            if key not in self.overwritten or slot in queue.overwritten:
                self.overwritten[key] = slot in queue.overwritten
            if slot in queue.lost:
                self.drop(key)
        keys: list[Key] = []
        slots: list[int] = []
        for key, slot in [*entries, *self._collected]:
            if key[1] in self.quantities:
                keys.append(key)
                slots.append(slot)
        keys += self._tensors
        slots += self._tensors.values()
        return Step(number, keys, slots, frozenset(self._incomplete), sent)

    def _gradient_entries(self) -> Iterator[tuple[Key, int]]:
        for (module, quantity), slot in self._entries:
            if quantity == Quantity.OUTPUT:
                for gradient in self._gradients.get(slot, ()):
                    yield (module, Quantity.OUTPUT_GRADIENT), gradient

    def close(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()


# --- updates --------------------------------------------------------------------------------------


class Updates:
    """Copies of tensors from before a step, and differences after it.

    On the host each tensor is copied and compared while it is in the cache. On other devices all
    tensors are copied together, since the overhead of a call exceeds its work. Use it where
    autograd is off.
    """

    def __init__(self) -> None:
        self._here: dict[str, tuple[Tensor, Tensor]] = {}  # tensors and their copies
        # on other devices, by device and precision; then their negative copies, end to end
        self._to_copy: dict[tuple[int, torch.dtype], dict[str, Tensor]] = {}
        self._negative: list[tuple[dict[str, Tensor], Tensor]] = []

    def remember(self, name: str, parameter: Tensor) -> None:
        """Copy a tensor of the host; `copy` copies those of other devices."""
        x = local(parameter)
        if is_here(x):
            self._here[name] = (parameter, x.clone())
        elif x.numel():
            self._to_copy.setdefault((x.get_device(), x.dtype), {})[name] = x

    def copy(self) -> None:
        """Copy all remembered tensors of other devices."""
        for named in self._to_copy.values():
            self._negative.append((named, flatten_dense_tensors([*named.values()]).neg_()))
        self._to_copy = {}

    def changes(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the change of every tensor, and forget the copies."""
        here = self._here
        negative = self._negative
        self._here = {}
        self._negative = []
        for named, copies in negative:
            changes = unflatten_dense_tensors(copies, [*named.values()])
            foreach_add_(changes, [*named.values()])
            yield from zip(named, changes, strict=True)
        for name, (parameter, before) in here.items():
            yield name, torch.sub(local(parameter), before, out=before)


# --- changes of outputs ---------------------------------------------------------------------------


class ReferenceOutputs:
    """The outputs of a first pass, by module and call, with which later passes are compared.

    A shared module is called several times in one pass.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[Key, int], Tensor] = {}
        self._complete = False
        self.rewind()

    def rewind(self) -> None:
        """Begin a new pass; the outputs of the first pass are the reference."""
        self._complete = bool(self._first)
        self._calls: dict[Key, int] = {}
        self._copies: dict[int, Tensor] = {}
        self._compared: dict[Pair, int] = {}
        # tensor, reference, and version of the tensor
        self._waiting: dict[Pair, tuple[Tensor, Tensor, int]] = {}
        self._wanted: list[tuple[Key, Pair]] = []
        self.waiting: int = 0  # bytes

    def change(self, key: Key, x: Tensor, number: int, slot: Callable[[Tensor], int]) -> int | None:
        """Return the `slot` of the change of `x` since the first pass.

        `number` identifies tensors, so that one that several modules return is copied and compared
        once.
        """
        first = self._counterpart(key, x, number)
        if first is None:
            return None
        pair = (number, id(first))
        if pair not in self._compared:
            self._compared[pair] = slot(x.detach() - first)
        return self._compared[pair]

    def await_change(self, key: Key, x: Tensor, number: int) -> None:
        """Let `changes` compute the change later, in passes without gradients only."""
        first = self._counterpart(key, x, number)
        if first is None:
            return
        pair = (number, id(first))
        self._wanted.append((key, pair))
        if pair not in self._waiting:
            self._waiting[pair] = (x, first, version(x))
            self.waiting += x.nbytes

    @torch.no_grad()
    def changes(
        self, slots: Callable[[Iterable[Tensor]], Iterable[int]]
    ) -> Iterator[tuple[Key, int | None]]:
        """Return the slots of all awaited changes; None for tensors that were overwritten."""
        waiting = self._waiting
        wanted = self._wanted
        self._waiting = {}
        self._wanted = []
        self.waiting = 0
        pairs: list[Pair] = []
        now: list[Tensor] = []
        before: list[Tensor] = []
        for pair, (x, first, recorded_version) in waiting.items():
            if version(x) == recorded_version:
                pairs.append(pair)
                now.append(x)
                before.append(first)
        differences: Sequence[Tensor] = ()
        if pairs:
            differences = foreach_sub(now, before)
        slot_of: Mapping[Pair, int] = dict(zip(pairs, slots(differences), strict=True))
        return ((key, slot_of.get(pair)) for key, pair in wanted)

    def _counterpart(self, key: Key, x: Tensor, number: int) -> Tensor | None:
        """Return the same output of the first pass; in the first pass itself, store `x`."""
        call = self._calls.get(key, -1) + 1
        self._calls[key] = call
        if not self._complete:
            if number not in self._copies:
                self._copies[number] = x.detach().clone()
            self._first[key, call] = self._copies[number]
            return None
        first = self._first.get((key, call))
        if first is None or first.shape != x.shape:  # experts get different tokens
            return None
        return first
