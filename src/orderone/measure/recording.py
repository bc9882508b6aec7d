"""The probe itself: it hooks into passes and optimizer steps, and records rows of sizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from orderone.core.errors import InputError
from orderone.measure import records
from orderone.measure.inputs import CallInput
from orderone.measure.noise_scale import NoiseMeter, NoiseScale
from orderone.measure.processes import of_all_processes
from orderone.measure.spectral_norms import SpectralMeter
from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import repeatable
from orderone.observe.derivatives import without_gradients
from orderone.observe.device_queue import memory
from orderone.observe.hooks import (
    Identities,
    ModuleHooks,
    watching,
    watching_scores,
)
from orderone.observe.inventory import modules_by_name, tensors_of, unwrap
from orderone.observe.precision import SINGLE, Precision
from orderone.observe.quantities import Quantity
from orderone.observe.step_recorder import (
    History,
    Key,
    ReferenceOutputs,
    Row,
    StepRecorder,
    Updates,
)
from orderone.observe.tensor_facts import is_here, is_measurable, is_plain
from orderone.observe.trace import call_with
from orderone.torch_compat import (
    current_graph_task,
    is_dynamo_imported,
    is_inside_compiled_call,
)

if TYPE_CHECKING:
    import pandas as pd

    from orderone.observe.compiled_regions import PassKind
    from orderone.observe.pass_program import CollectedPass

DEFAULT = (
    Quantity.INPUT,
    Quantity.OUTPUT,
    Quantity.OUTPUT_GRADIENT,
    Quantity.CHANGE,
    Quantity.WEIGHT,
    Quantity.GRADIENT,
    Quantity.UPDATE,
)
QUANTITIES = (*DEFAULT, Quantity.SCORES, Quantity.SCORE_CHANGE)
CHANGES = {Quantity.OUTPUT: Quantity.CHANGE, Quantity.SCORES: Quantity.SCORE_CHANGE}
OF_PASSES = frozenset(
    {
        Quantity.INPUT,
        Quantity.OUTPUT,
        Quantity.OUTPUT_GRADIENT,
        Quantity.CHANGE,
        Quantity.SCORES,
        Quantity.SCORE_CHANGE,
    }
)
COLUMNS = ["step", "module", "quantity", *records.SIZES]


class TrainingBatch:
    """Marker, instead of a fixed batch: every training pass uses the same batch.

    Changes are then measured in the training passes, and no pass is repeated.
    """


TRAINING: Final = TrainingBatch()


class Probe:
    """Recorder that `probe` returns.

    `frame` has all finished steps at any time, also inside the context.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        batch: CallInput | TrainingBatch | None,
        quantities: tuple[Quantity, ...],
        wanted: Callable[[str], bool] = lambda name: True,
        is_due: Callable[[Quantity, int], bool] = lambda quantity, step: True,
        provenance: Mapping[str, object] | None = None,
        noise: NoiseMeter | None = None,
        precision: Precision = SINGLE,
        spectral: SpectralMeter | None = None,
    ):
        self.model: nn.Module = model
        self.precision: Precision = precision  # of the passes on the fixed batch
        self.optimizer: Optimizer | None = optimizer
        self.batch: CallInput | TrainingBatch | None = batch
        self.quantities: frozenset[Quantity] = frozenset(quantities)
        self.wanted: Callable[[str], bool] = wanted
        self.is_due: Callable[[Quantity, int], bool] = is_due  # what to record at which step
        self.provenance: dict[str, object] = dict(provenance or {})
        self.step: int = 0
        self._noise = noise
        self._spectral = spectral
        self._compared = {
            quantity for quantity, change in CHANGES.items() if change in self.quantities
        }
        self._of_training_passes = self._recorded_in_training(self.quantities)
        self._now = self._due_now()  # the quantities that this step records
        self._heard = self._recorded_in_training(self._now)  # in training passes of this step
        self._has_begun = False
        self._has_begun_pass = False  # True during a pass of a compiled module
        self._comparing = False  # True during a pass on the fixed batch
        self._passes: ExitStack | None = None  # hooks and modes, while passes are watched
        self._may_rest = False  # True if passes need not be watched in steps that record none
        self._gradients_later = False  # True if gradients are ready only at the optimizer's step
        self._history = History()
        self._parameters: dict[str, Tensor] = {}
        for name, tensor in tensors_of(model).items():
            if wanted(name):
                self._parameters[name] = tensor
        self._updates = Updates()
        self._overwritten: dict[Key, bool] = {}  # whether code writes into it after it was recorded
        self._reference = ReferenceOutputs()
        self._identities = Identities()  # numbers of the tensors in a pass on the fixed batch
        self._recorder = StepRecorder(self._now, self._overwritten)

    # --- reading ----------------------------------------------------------------------------------

    @property
    def frame(self) -> "pd.DataFrame":
        """One row for each step, module (or tensor) and quantity.

        Columns: rms, mean, largest absolute value (max), fraction of finite entries (finite).
        In several processes it has the part of this one: its rows of the batch, its shards of the
        tensors. `gather` returns the whole.
        """
        return self._table(self.rows)

    def gather(self) -> "pd.DataFrame":
        """Return `frame` for all processes together (DDP, FSDP2, tensor parallel).

        All processes must call this, and all get the same table. Sizes of sharded tensors are those
        of whole tensors. Gradients of outputs are those of the loss of each process.
        """
        return self._table(of_all_processes(self.rows))

    def _table(self, rows: Sequence[Row]) -> "pd.DataFrame":
        lines = []
        for step, module, quantity, moments in rows:
            lines.append((step, module, quantity.value, *moments.row()))
        return records.table(lines, COLUMNS, self.provenance | records.VERSIONS)

    @property
    def rows(self) -> list[Row]:
        """Step, module (or tensor), quantity and moments."""
        rows: list[Row] = []
        for step in self._history.steps:
            rows += step.rows()
        return rows

    def take(self) -> list[Row]:
        """Return the rows of all finished steps, and forget them: a long training has many."""
        rows = self.rows
        self._history = History()
        return rows

    @property
    def noise_scale(self) -> NoiseScale:
        """Gradient noise scale of all steps so far with two backward passes or more."""
        if self._noise is None:
            raise InputError(
                "noise: it was not measured; pass probe(..., noise=samples in a backward pass)",
                "noise-needs-passes",
                argument="noise",
            )
        return self._noise.result()

    @property
    def spectral_norms(self) -> "pd.DataFrame":
        """Largest singular values of all matrices and of their updates, one row for each.

        Columns: step, module (the tensor), matrix (the number of an expert or group), quantity
        ("weight" or "update"), norm, relative (norm / (fan_out / fan_in)^{1/2}; NaN if the axes are
        not known), method ("exact" or "lanczos").
        """
        if self._spectral is None:
            raise InputError(
                "spectral: spectral norms were not recorded; pass probe(..., spectral=True)",
                argument="spectral",
            )
        return self._spectral.frame(self.provenance | records.VERSIONS)

    @property
    def same_output(self) -> dict[str, str]:
        """Modules whose output is that of another module, in the first step."""
        if self._history.steps:
            return self._history.steps[0].same_outputs()
        return {}

    # --- watching ---------------------------------------------------------------------------------

    @contextmanager
    def watch(self) -> Iterator["Probe"]:
        """Record everything that happens inside the context."""
        with ExitStack() as stack:
            stack.callback(self._forget)
            stack.callback(self._stop_watching)
            self._watch_passes()
            if self._noise is not None:
                stack.enter_context(self._noise.watch())
            for handle in self._step_hooks():
                stack.callback(handle.remove)
            self._compare()
            yield self
            self.flush()

    def _watch_passes(self) -> None:
        """Watch passes if a quantity needs it; otherwise compiled code may stay compiled."""
        if self.optimizer is not None and not self.quantities & OF_PASSES:
            return
        if self._passes is not None:
            return
        stack = ExitStack()
        self._passes = stack
        kinds = (self._of_training_passes | self._compared) & {Quantity.INPUT, Quantity.OUTPUT}
        hooks = stack.enter_context(
            watching(
                self.model, self._record, self.wanted, kinds, self._listens, self._begin_if_new
            )
        )
        if is_dynamo_imported():
            self._watch_regions(stack, hooks)
        if self.quantities & {Quantity.SCORES, Quantity.SCORE_CHANGE}:
            stack.enter_context(watching_scores(self.model, self._record_scores))

    def _watch_regions(self, stack: ExitStack, hooks: ModuleHooks) -> None:
        """Let compiled modules run compiled programs that record their passes."""
        from orderone.observe.compiled_regions import redirected, regions_of
        from orderone.observe.pass_survey import Choice

        regions = regions_of(self.model)
        names = frozenset(name for name in modules_by_name(self.model) if self.wanted(name))
        choice = Choice(
            names,
            Quantity.INPUT in self._of_training_passes,
            Quantity.OUTPUT_GRADIENT in self.quantities,
        )
        stack.enter_context(redirected(self.model, regions, self, hooks, choice))

    def _begin_if_new(self) -> None:
        if not self._has_begun_pass:
            self._begin()

    def begin_pass(self, is_root: bool) -> "PassKind":
        """Choose how a pass of a compiled module runs; `is_root` if it is the whole model."""
        from orderone.observe.compiled_regions import PassKind

        if is_root:
            self._begin()
            self._has_begun_pass = True
        if self._comparing:
            return PassKind.EAGER
        is_training = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if not self._heard or not is_training:
            return PassKind.UNRECORDED
        if self.batch is TRAINING or Quantity.SCORES in self._heard:
            return PassKind.EAGER
        return PassKind.RECORDED

    def end_pass(self) -> None:
        """End a pass of a compiled module."""
        self._has_begun_pass = False

    def collect(self, collected: "CollectedPass") -> None:
        """Take the records of a pass of a compiled module."""
        self._recorder.collect(collected)

    def _stop_watching(self) -> None:
        if self._passes is not None:
            self._passes.close()
            self._passes = None

    def _watch_passes_if_due(self) -> None:
        """Remove the hooks in steps that record no passes: compiled models then run compiled."""
        if self._heard or not self._may_rest:
            self._watch_passes()
        else:
            self._stop_watching()

    def _recorded_in_training(self, quantities: frozenset[Quantity]) -> set[Quantity]:
        """Return what training passes record; output gradients need the outputs, too."""
        recorded = {Quantity.INPUT, Quantity.OUTPUT, Quantity.SCORES} & quantities
        if Quantity.OUTPUT_GRADIENT in quantities:
            recorded.add(Quantity.OUTPUT)
        if self.batch is TRAINING:
            recorded |= {compared for compared in self._compared if CHANGES[compared] in quantities}
        return recorded

    def _due_now(self) -> frozenset[Quantity]:
        return frozenset(q for q in self.quantities if self.is_due(q, self.step))

    def _step_hooks(self) -> Iterator[RemovableHandle]:
        if self.optimizer is not None:
            yield self.optimizer.register_step_pre_hook(self._before_step)
            yield self.optimizer.register_step_post_hook(lambda *_: self._after_step())
        elif Quantity.GRADIENT in self.quantities:
            for name, parameter in self._parameters.items():
                if parameter.requires_grad:
                    yield parameter.register_post_accumulate_grad_hook(
                        lambda parameter, name=name: self._record_accumulated(name, parameter)
                    )

    def _advance(self) -> None:
        self.flush()
        self.step += 1
        self._now = self._due_now()
        self._heard = self._recorded_in_training(self._now)
        self._recorder.quantities = self._now

    def _listens(self, quantity: Quantity) -> bool:
        """Return whether a quantity of a pass is recorded now."""
        if self._comparing:
            return quantity in self._compared and CHANGES[quantity] in self._now
        if quantity not in self._heard:
            return False
        return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()

    def _record(self, module: str, quantity: Quantity, x: Tensor) -> None:
        if self._comparing:
            self._record_change((module, quantity), x, self._identities.number(x))
            return
        slot = self._recorder.record(module, quantity, x)
        is_compared = quantity in self._compared and CHANGES[quantity] in self._now
        if self.batch is TRAINING and is_compared:
            self._record_change((module, quantity), x, slot)

    def _record_scores(self, module: str, form_scores: Callable[[], Tensor]) -> None:
        if self._listens(Quantity.SCORES) and self.wanted(module):
            scores = form_scores()
            if is_measurable(scores):
                self._record(module, Quantity.SCORES, scores)

    def _record_change(self, key: Key, x: Tensor, number: int) -> None:
        """Compare an output or scores with those of the first pass."""
        may_wait = self._comparing and is_plain(x) and not is_here(x)
        if may_wait and not self._overwritten.get(key, True):
            self._reference.await_change(key, x, number)
            if self._reference.waiting > memory(x.device):
                self._put_changes()
            return
        ledger = self._recorder.ledger
        if self._comparing:
            slot = ledger.keep
        else:
            slot = ledger.add
        change = self._reference.change(key, x, number, slot)
        if change is not None:
            module, quantity = key
            self._recorder.put((module, CHANGES[quantity]), change)

    # --- steps ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin a pass.

        Without an optimizer it is a new step, unless it only repeats one (checkpointed
        activations).
        """
        self._reference.rewind()
        repeats = self._comparing or current_graph_task() != -1
        if self.optimizer is not None or repeats or not torch.is_grad_enabled():
            return
        if self._has_begun:
            self._advance()
        if self._now:
            if self._has_begun:
                self._compare()
            for name, parameter in self._parameters.items():
                self._recorder.record_tensor(name, Quantity.WEIGHT, parameter)
            self._recorder.settle()
        self._has_begun = True

    @torch.no_grad()
    def _before_step(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        """Record weights and gradients before a step: some optimizers write into gradients.

        Gradients are recorded later in two cases: a closure has not computed them yet, or a
        GradScaler has left it to the optimizer to unscale them.
        """
        if self._noise is not None:
            self._noise.end_step()
        if self._spectral is not None:
            self._spectral.before_step(self.step)
        if self.step == 0:
            # compiled code that includes the step of the optimizer would not call its hooks
            self._may_rest = not is_inside_compiled_call()
        if not self._now:
            return
        if len(args) > 1:
            closure = args[1]
        else:
            closure = kwargs.get("closure")
        unscales = getattr(optimizer, "grad_scale", None) is not None
        self._gradients_later = closure is not None or unscales
        wants_updates = Quantity.UPDATE in self._now
        # all quantities of one tensor together, while it is in the cache
        for name, parameter in self._parameters.items():
            self._recorder.record_tensor(name, Quantity.WEIGHT, parameter)
            if wants_updates and parameter.requires_grad:
                self._updates.remember(name, parameter)
            if not self._gradients_later:
                self._recorder.record_gradient(name, parameter)
        self._updates.copy()
        self._recorder.settle()

    @torch.no_grad()
    def _after_step(self) -> None:
        if self._spectral is not None:
            self._spectral.after_step(self.step)
        if self._now:
            if self._gradients_later:
                for name, parameter in self._parameters.items():
                    self._recorder.record_gradient(name, parameter)
            for name, change in self._updates.changes():
                self._recorder.record_tensor(name, Quantity.UPDATE, change)
            self._recorder.settle()
        self._advance()
        self._compare()
        self._watch_passes_if_due()

    def _record_accumulated(self, name: str, parameter: Tensor) -> None:
        if self._now:
            self._recorder.record_gradient(name, parameter)
            self._recorder.settle()

    def _compare(self) -> None:
        """Run a pass on the fixed batch, if there is one.

        It calls the unwrapped model: wrappers communicate with other processes.
        """
        if self.batch is None or isinstance(self.batch, TrainingBatch):
            return
        if not any(CHANGES[quantity] in self._now for quantity in self._compared):
            return
        args, kwargs = call_with(self.batch)
        self._watch_passes()
        self._comparing = True
        self._identities = Identities()
        try:
            with (
                repeatable(self.model),
                without_gradients(unwrap(self.model)),
                self.precision.passes(self.model),
                naming_batch("batch", self.batch, self.model),
            ):
                unwrap(self.model)(*args, **kwargs)
            self._put_changes()
            self._recorder.ledger.settle()
        finally:
            self._comparing = False

    def _put_changes(self) -> None:
        for (module, quantity), slot in self._reference.changes(self._recorder.ledger.add_all):
            if slot is None:
                self._overwritten[module, quantity] = True
                self._recorder.drop((module, CHANGES[quantity]))
            else:
                self._recorder.put((module, CHANGES[quantity]), slot)

    def last_pass(self, action: Callable[[], object]) -> None:
        """Run `action`, a pass after the last step, and record its sizes and changes."""
        with torch.enable_grad():
            action()
        self.flush()

    def flush(self) -> None:
        """Add all recorded sizes to the current step."""
        self._history.add(self._recorder.end(self.step))
        self._clear()

    def _clear(self) -> None:
        self._recorder.close()
        self._recorder = StepRecorder(self._now, self._overwritten)

    def _forget(self) -> None:
        self._clear()
        self._updates = Updates()
        self._reference = ReferenceOutputs()
