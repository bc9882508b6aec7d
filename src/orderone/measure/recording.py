"""What a probe does: it listens to passes and steps, and turns what it hears into lines of a table.

Sizes are computed where tensors are, and slots of a ledger stand for them until `flush` brings the numbers over. A tensor
that several modules give is sized once. Gradients of outputs come by hooks on the tensors themselves.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from orderone.measure import records
from orderone.measure.moments import FEW, Ledger, Moments, is_here, is_measurable
from orderone.measure.reference import Reference, repeatable
from orderone.measure.scores import watching_scores
from orderone.measure.updates import Updates
from orderone.measure.watch import Identities, is_own, watching
from orderone.planning.inventory import inventory, unwrap
from orderone.planning.trace import call_with

if TYPE_CHECKING:
    import pandas as pd

DEFAULT = ("input", "output", "output gradient", "change", "weight", "gradient", "update")
QUANTITIES = (*DEFAULT, "scores", "score change")
CHANGES = {"output": "change", "scores": "score change"}
COLUMNS = ["step", "module", "quantity", *records.SIZES]
OF_PASSES = {"input", "output", "output gradient", "change", "scores", "score change"}
TRAINING = object()  # in the place of a fixed batch: every training pass is on the same one, and needs no repetition
Key = tuple[str, str]  # module or tensor, quantity


class Probe:
    """Made by `probe`. `frame` has all steps that are over, at any time, also within the context."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        batch: Any,
        quantities: tuple[str, ...],
        wanted: Callable[[str], bool] = lambda name: True,
        every: int = 1,
        provenance: Mapping[str, Any] | None = None,
    ):
        self.model, self.optimizer, self.batch = model, optimizer, batch
        self.quantities, self.wanted, self.every = frozenset(quantities), wanted, every
        self.provenance = dict(provenance or {})
        self.step = 0
        self.rows: list[tuple[int, str, str, Moments]] = []
        self._parameters = {name: item.tensor for name, item in inventory(model).items() if wanted(name)}
        self.same_output: dict[str, str] = {}  # in the first step, modules that give a tensor another module has given
        self._updates = Updates()
        self._written_over: dict[Key, bool] = {}  # whether somebody writes into it after it was seen
        self._reference = Reference()
        self._only_changes = self._gradients_later = self._began = False
        self._hooks: list[RemovableHandle] = []
        self._clear()

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def frame(self) -> "pd.DataFrame":
        """One line for each step, module (or tensor) and quantity: rms, mean, largest absolute value, finite fraction."""
        rows = [(step, module, quantity, *m.row()) for step, module, quantity, m in self.rows]
        return records.table(rows, COLUMNS, self.provenance | records.versions())

    # --- watching ----------------------------------------------------------------------------------------------------

    @contextmanager
    def watch(self) -> Iterator["Probe"]:
        with ExitStack() as stack:
            stack.callback(self._forget)
            self._watch_passes(stack)
            for handle in self._step_hooks():
                stack.callback(handle.remove)
            self._compare()
            yield self
            self.flush()

    def _watch_passes(self, stack: ExitStack) -> None:
        """Nothing, if nothing that is asked for happens in a pass: compiled code may then go on."""
        if self.optimizer is not None and not self.quantities & OF_PASSES:
            return
        root = unwrap(self.model)
        own = is_own(root)
        begin = root.register_forward_pre_hook(lambda called, _: self._begin() if own(called) else None)
        stack.callback(begin.remove)
        stack.enter_context(watching(self.model, self._saw, self.wanted, self._kinds(), self._listens))
        if self.quantities & {"scores", "score change"}:
            stack.enter_context(watching_scores(self.model, self._saw_scores))

    def _kinds(self) -> set[str]:
        return {kind for kind in ("input", "output") if kind in self.quantities} | (
            {"output"} if self.quantities & {"output gradient", "change"} else set()
        )

    def _step_hooks(self) -> Iterator[RemovableHandle]:
        if self.optimizer is not None:
            yield self.optimizer.register_step_pre_hook(self._remember)
            yield self.optimizer.register_step_post_hook(lambda *_: self._stepped())
        elif "gradient" in self.quantities:
            for name, p in self._parameters.items():
                if p.requires_grad:
                    yield p.register_post_accumulate_grad_hook(lambda p, name=name: self._accumulated(name, p))

    @property
    def _due(self) -> bool:
        return self.step % self.every == 0

    def _listens(self, kind: str) -> bool:
        if self._only_changes:
            return CHANGES.get(kind) in self.quantities
        return torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and self._due

    def _saw(self, module: str, kind: str, x: Tensor) -> None:
        if self._only_changes:
            self._compare_one((module, kind), x, self._in_pass.number(x))
            return
        slot = self._size_of(x, (module, kind))
        self._entries.append(((module, kind), slot))
        if kind == "output":
            self._await_gradient(x, slot, (module, "output gradient"))
        if self.batch is TRAINING and CHANGES.get(kind) in self.quantities:
            self._compare_one((module, kind), x, slot)

    def _size_of(self, x: Tensor, key: Key) -> int:
        """Gradients, too, pass through several modules: what a sum is told, its terms are told."""
        slot = self._identities.get(x)
        if slot is None:
            slot = self._ledger.add(x, copy=self._written_over.get(key, True))
            self._identities.put(x, slot)
        return slot

    def _saw_scores(self, module: str, scores: Callable[[], Tensor]) -> None:
        if self._listens("scores") and self.wanted(module) and is_measurable(found := scores()):
            self._saw(module, "scores", found)

    def _compare_one(self, key: Key, x: Tensor, number: int) -> None:
        slot = self._ledger.keep if self._only_changes else self._ledger.add
        change = self._reference.change(key, x, number, slot)
        if change is not None:
            self._entries.append(((key[0], CHANGES[key[1]]), change))

    def _await_gradient(self, x: Tensor, slot: int, key: Key) -> None:
        if x.requires_grad and "output gradient" in self.quantities and slot not in self._gradients:
            self._gradients[slot] = []
            self._hooks.append(x.register_hook(self._gradient_of(slot, key)))

    def _gradient_of(self, slot: int, key: Key) -> Callable[[Tensor], None]:
        """A hook for the tensor in `slot`. Weak, so that a graph the user keeps does not keep the probe."""
        probe, ledger = weakref.ref(self), self._ledger

        def hook(gradient: Tensor) -> None:
            owner = probe()
            if owner is not None and owner._ledger is ledger and gradient.layout == torch.strided:
                owner._gradients[slot].append(owner._size_of(gradient, key))

        return hook

    # --- steps -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A pass begins. Without an optimizer it is a new step, unless it only repeats one (checkpointed activations)."""
        self._reference.rewind()
        repeats = self._only_changes or torch._C._current_graph_task_id() != -1
        if self.optimizer is not None or repeats or not torch.is_grad_enabled():
            return
        if self._began:
            self.flush()
            self.step += 1
        if self._due:
            if self._began:
                self._compare()
            for name, p in self._parameters.items():
                self._note(name, "weight", p)
            self._settle()
        self._began = True

    @torch.no_grad()
    def _remember(self, optimizer: Optimizer, args: tuple, kwargs: Mapping[str, Any]) -> None:
        """Before a step: some optimizers write into gradients. With a closure there are none yet, and those a GradScaler
        leaves to the optimizer to unscale are not themselves yet."""
        if not self._due:
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._gradients_later = closure is not None or getattr(optimizer, "grad_scale", None) is not None
        updates = "update" in self.quantities
        for name, p in self._parameters.items():  # all of one tensor, while the cache has it
            self._note(name, "weight", p)
            if updates and p.requires_grad:
                self._updates.remember(name, p)
            if not self._gradients_later:
                self._note_gradient(name, p)
        self._updates.copy()
        self._settle()

    @torch.no_grad()
    def _stepped(self) -> None:
        if self._due:
            for name, p in self._parameters.items() if self._gradients_later else ():
                self._note_gradient(name, p)
            for name, change in self._updates.changes():
                self._note(name, "update", change)
            self._settle()
        self.flush()
        self.step += 1
        if self._due:
            self._compare()

    def _accumulated(self, name: str, p: Tensor) -> None:
        if self._due:
            self._note_gradient(name, p)
            self._settle()

    def _note_gradient(self, name: str, p: Tensor) -> None:
        if p.grad is not None and p.grad.is_sparse:
            self._note(name, "gradient", p.grad.coalesce().values(), p.numel())
        elif p.grad is not None:
            self._note(name, "gradient", p.grad)

    def _note(self, name: str, quantity: str, x: Tensor, count: int | None = None) -> None:
        if quantity not in self.quantities or not is_measurable(x):
            return
        if count is None and not is_here(x):
            self._noted[name, quantity] = x
        else:
            size = self._ledger.keep if x.numel() <= FEW else self._ledger.add
            self._notes[name, quantity] = size(x, count)

    def _settle(self) -> None:
        """Size what was noted, before anybody changes it."""
        noted, self._noted = self._noted, {}
        self._notes.update(zip(noted, self._ledger.add_all(noted.values()), strict=True))
        self._ledger.settle()

    def _compare(self) -> None:
        """A pass on the fixed batch, if there is one. Of the model itself: wrappers talk to other processes."""
        if self.batch is None or self.batch is TRAINING or not self.quantities & set(CHANGES.values()):
            return
        args, kwargs = call_with(self.batch)
        self._only_changes, self._in_pass = True, Identities()
        try:
            with repeatable(self.model), torch.no_grad():
                unwrap(self.model)(*args, **kwargs)
            self._ledger.settle()
        finally:
            self._only_changes = False

    def last_pass(self, action: Callable[[], Any]) -> None:
        """A pass after the last step, of which only sizes and changes are wanted."""
        with torch.enable_grad():
            action()
        self.flush()

    def flush(self) -> None:
        """Bring what was computed over, as lines of the current step."""
        moments = self._ledger.fetch()
        if self.step == 0:
            self._find_same_outputs(moments)
        found: dict[Key, Moments] = {}
        entries = [*self._entries, *self._gradient_entries(), *self._notes.items()]
        self._learn(entries)
        for key, slot in entries:
            if key[1] in self.quantities and slot not in self._ledger.elsewhere.lost:
                found[key] = found[key] + moments[slot] if key in found else moments[slot]
        self.rows += [(self.step, *key, value) for key, value in found.items()]
        self._clear()

    def _learn(self, entries: list[tuple[Key, int]]) -> None:
        """Which tensors need no copy the next time."""
        overwritten = self._ledger.elsewhere.overwritten
        for key, slot in entries if overwritten or not self._written_over else ():
            self._written_over[key] = self._written_over.get(key, False) or slot in overwritten

    def _find_same_outputs(self, moments: list[Moments]) -> None:
        """What passes a module unchanged, in this shape or another, has the same moments to the last bit."""
        first: dict[Moments, str] = {}
        outputs = [(module, moments[slot]) for (module, kind), slot in self._entries if kind == "output"]
        calls = Counter(module for module, _ in outputs)
        for module, size in outputs:
            if calls[module] == 1 and size.squares > 0 and first.setdefault(size, module) != module:
                self.same_output[module] = first[size]

    def _gradient_entries(self) -> Iterator[tuple[Key, int]]:
        for (module, kind), slot in self._entries:
            if kind == "output":
                for gradient in self._gradients.get(slot, ()):
                    yield (module, "output gradient"), gradient

    def _clear(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._ledger, self._identities = Ledger(), Identities()
        self._entries: list[tuple[Key, int]] = []  # several with one key are counted together
        self._notes: dict[Key, int] = {}  # the last one counts
        self._noted: dict[Key, Tensor] = {}  # on other devices, to be sized together
        self._gradients: dict[int, list[int]] = {}
        self._hooks = []

    def _forget(self) -> None:
        self._clear()
        self._updates, self._reference = Updates(), Reference()
