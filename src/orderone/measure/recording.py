"""What a probe does: it listens to passes and steps, and turns what each step shows into lines of a
table."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from orderone.measure import records
from orderone.observe.attention_scores import watching_scores
from orderone.observe.device_queue import memory
from orderone.observe.history import History, Key, Row
from orderone.observe.hooks import Identities, is_own, watching
from orderone.observe.inventory import inventory, unwrap
from orderone.observe.moments import is_here, is_measurable, is_plain
from orderone.observe.reference_outputs import Reference, repeatable
from orderone.observe.step_recorder import Shown
from orderone.observe.trace import call_with
from orderone.observe.updates import Updates
from orderone.torch_compat import current_graph_task

if TYPE_CHECKING:
    import pandas as pd

DEFAULT = ("input", "output", "output gradient", "change", "weight", "gradient", "update")
QUANTITIES = (*DEFAULT, "scores", "score change")
CHANGES = {"output": "change", "scores": "score change"}
COLUMNS = ["step", "module", "quantity", *records.SIZES]
OF_PASSES = {"input", "output", "output gradient", "change", "scores", "score change"}
TRAINING = (
    object()
)  # in the place of a fixed batch: every training pass is on the same one, and needs no repetition


class Probe:
    """Made by `probe`. `frame` has all steps that are over, at any time, also within the
    context."""

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
        self.model = model
        self.optimizer = optimizer
        self.batch = batch
        self.quantities = frozenset(quantities)
        self.wanted = wanted
        self.every = every
        self._compared = {kind for kind, change in CHANGES.items() if change in self.quantities}
        self._of_training = self._kinds_of_training()
        self.provenance = dict(provenance or {})
        self.step = 0
        self._due = True  # whether this step is recorded
        self._history = History()
        self._parameters = {
            name: item.tensor for name, item in inventory(model).items() if wanted(name)
        }
        self._updates = Updates()
        self._written_over: dict[
            Key, bool
        ] = {}  # whether somebody writes into it after it was seen
        self._reference = Reference()
        self._only_changes = self._gradients_later = self._began = False
        self._shown = Shown(self.quantities, self._written_over)

    # --- reading ----------------------------------------------------------------------------------

    @property
    def frame(self) -> "pd.DataFrame":
        """One line for each step, module (or tensor) and quantity: rms, mean, largest absolute
        value, finite fraction."""
        rows = [(step, module, quantity, *m.row()) for step, module, quantity, m in self.rows]
        return records.table(rows, COLUMNS, self.provenance | records.versions())

    @property
    def rows(self) -> list[Row]:
        return [row for step in self._history.steps for row in step.rows()]

    @property
    def same_output(self) -> dict[str, str]:
        """In the first step, modules that give a tensor another module has given."""
        if self._history.steps:
            return self._history.steps[0].same_outputs()
        return {}

    # --- watching ---------------------------------------------------------------------------------

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
        begin = root.register_forward_pre_hook(
            lambda called, _: self._begin() if own(called) else None
        )
        stack.callback(begin.remove)
        kinds = (self._of_training | self._compared) & {"input", "output"}
        stack.enter_context(watching(self.model, self._saw, self.wanted, kinds, self._listens))
        if self.quantities & {"scores", "score change"}:
            stack.enter_context(watching_scores(self.model, self._saw_scores))

    def _kinds_of_training(self) -> set[str]:
        """What is looked at in training passes. Outputs, too, if only their gradients are asked
        for."""
        kinds = {"input", "output", "scores"} & self.quantities
        if "output gradient" in self.quantities:
            kinds.add("output")
        if self.batch is TRAINING:
            return kinds | self._compared
        return kinds

    def _step_hooks(self) -> Iterator[RemovableHandle]:
        if self.optimizer is not None:
            yield self.optimizer.register_step_pre_hook(self._remember)
            yield self.optimizer.register_step_post_hook(lambda *_: self._stepped())
        elif "gradient" in self.quantities:
            for name, p in self._parameters.items():
                if p.requires_grad:
                    yield p.register_post_accumulate_grad_hook(
                        lambda p, name=name: self._accumulated(name, p)
                    )

    def _advance(self) -> None:
        self.flush()
        self.step += 1
        self._due = self.step % self.every == 0

    def _listens(self, kind: str) -> bool:
        if self._only_changes:
            return kind in self._compared
        return (
            kind in self._of_training
            and self._due
            and torch.is_grad_enabled()
            and not torch.is_inference_mode_enabled()
        )

    def _saw(self, module: str, kind: str, x: Tensor) -> None:
        if self._only_changes:
            self._compare_one((module, kind), x, self._in_pass.number(x))
            return
        slot = self._shown.see(module, kind, x)
        if self.batch is TRAINING and kind in self._compared:
            self._compare_one((module, kind), x, slot)

    def _saw_scores(self, module: str, scores: Callable[[], Tensor]) -> None:
        if self._listens("scores") and self.wanted(module) and is_measurable(found := scores()):
            self._saw(module, "scores", found)

    def _compare_one(self, key: Key, x: Tensor, number: int) -> None:
        ledger = self._shown.ledger
        if (
            self._only_changes
            and is_plain(x)
            and not is_here(x)
            and not self._written_over.get(key, True)
        ):
            self._reference.await_change(key, x, number)
            if self._reference.waiting > memory(x.device):
                self._put_changes()
            return
        change = self._reference.change(
            key, x, number, ledger.keep if self._only_changes else ledger.add
        )
        if change is not None:
            self._shown.put((key[0], CHANGES[key[1]]), change)

    # --- steps ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A pass begins. Without an optimizer it is a new step, unless it only repeats one
        (checkpointed activations)."""
        self._reference.rewind()
        repeats = self._only_changes or current_graph_task() != -1
        if self.optimizer is not None or repeats or not torch.is_grad_enabled():
            return
        if self._began:
            self._advance()
        if self._due:
            if self._began:
                self._compare()
            for name, p in self._parameters.items():
                self._shown.note(name, "weight", p)
            self._shown.settle()
        self._began = True

    @torch.no_grad()
    def _remember(self, optimizer: Optimizer, args: tuple, kwargs: Mapping[str, Any]) -> None:
        """Before a step: some optimizers write into gradients. With a closure there are none yet,
        and those a GradScaler leaves to the optimizer to unscale are not themselves yet."""
        if not self._due:
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._gradients_later = (
            closure is not None or getattr(optimizer, "grad_scale", None) is not None
        )
        updates = "update" in self.quantities
        for name, p in self._parameters.items():  # all of one tensor, while the cache has it
            self._shown.note(name, "weight", p)
            if updates and p.requires_grad:
                self._updates.remember(name, p)
            if not self._gradients_later:
                self._shown.note_gradient(name, p)
        self._updates.copy()
        self._shown.settle()

    @torch.no_grad()
    def _stepped(self) -> None:
        if self._due:
            for name, p in self._parameters.items() if self._gradients_later else ():
                self._shown.note_gradient(name, p)
            for name, change in self._updates.changes():
                self._shown.note(name, "update", change)
            self._shown.settle()
        self._advance()
        if self._due:
            self._compare()

    def _accumulated(self, name: str, p: Tensor) -> None:
        if self._due:
            self._shown.note_gradient(name, p)
            self._shown.settle()

    def _compare(self) -> None:
        """A pass on the fixed batch, if there is one. Of the model itself: wrappers talk to other
        processes."""
        if self.batch is None or self.batch is TRAINING or not self._compared:
            return
        args, kwargs = call_with(self.batch)
        self._only_changes = True
        self._in_pass = Identities()
        try:
            with repeatable(self.model), torch.no_grad():
                unwrap(self.model)(*args, **kwargs)
            self._put_changes()
            self._shown.ledger.settle()
        finally:
            self._only_changes = False

    def _put_changes(self) -> None:
        for (module, kind), slot in self._reference.changes(self._shown.ledger.add_all):
            if slot is None:
                self._written_over[module, kind] = True
                self._shown.lose((module, CHANGES[kind]))
            else:
                self._shown.put((module, CHANGES[kind]), slot)

    def last_pass(self, action: Callable[[], Any]) -> None:
        """A pass after the last step, of which only sizes and changes are wanted."""
        with torch.enable_grad():
            action()
        self.flush()

    def flush(self) -> None:
        """What was computed belongs to the current step."""
        self._history.add(self._shown.end(self.step))
        self._clear()

    def _clear(self) -> None:
        self._shown.forget()
        self._shown = Shown(self.quantities, self._written_over)

    def _forget(self) -> None:
        self._clear()
        self._updates = Updates()
        self._reference = Reference()
