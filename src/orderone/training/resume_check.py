"""Check that a checkpoint holds all state of a training: one step after a save and a load.

A model may keep state anywhere: a counter in an attribute, a tensor in a list, a generator. So
after the first update, the state is loaded into another copy of the training as it was before it,
as a new process would have it. Both make the second update. If they differ by more than rounding,
a checkpoint would not continue this training. If the updates agree, but an attribute or a global
variable that training changes does not, it may act later. So may a file that the update writes.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from orderone.core.errors import brief, with_code
from orderone.seeding import preserved
from orderone.torch_compat import (
    share_gradient_hooks,
    share_step_hooks,
    step_hooks,
    version_counter,
)
from orderone.training.checkpoint import Content, changed_tensor, model_tensors
from orderone.training.code_state import fresh_caches, global_texts
from orderone.training.fresh_loss import fresh_loss
from orderone.training.loop import TrainingLoop
from orderone.training.same_update import Difference, Update, difference
from orderone.training.snapshot import MODEL, restore_snapshot, snapshot
from orderone.training.stacked.alike import (
    attribute_texts,
    description,
    hook_texts,
    names_of_modules,
)
from orderone.training.stacked.value_text import text_of
from orderone.training.step import compiled_module
from orderone.training.written_files import written_files

LARGEST = 1 << 30  # bytes of a model that is copied for this
DEEP = 8  # levels of nested attributes that are compared, once in a study


class ResumeCheck:
    """Check of one training; `other` is the same training before its first update."""

    def __init__(self, other: TrainingLoop):
        self.other = other
        self.saved: Content | None = None  # state after the first update
        self.at_start: Mapping[str, str] = description(other.step.module)
        self.shared: list[str] = []  # attributes that both copies have in common, and change
        self.globals: Mapping[str, str] = {}  # before the second update
        self.files: list[str] = []  # that the second update writes
        self.entangled: bool = False  # whether the copy uses tensors of the original
        self.later: str | None = None  # state that is not in a checkpoint, and has not acted yet
        self.doubt: str | None = None  # a difference that may be rounding
        self.reshaped: str | None = None  # a tensor that training has added, removed or resized
        self.failed: str | None = None  # why the copy could not make the second update

    def after_first_update(self, loop: TrainingLoop) -> None:
        """Load the state into the other copy, and let that make the second update."""
        loop.read_losses()  # they say how many updates were made
        tensors, record = snapshot(loop)
        copies = {name: x.detach().clone() for name, x in tensors.items()}
        self.reshaped = changed_tensor(self.other.step.module, copies, MODEL)
        if self.reshaped is not None:
            return  # such a file cannot be loaded
        self.saved = (copies, record)
        here = description(loop.step.module) | hook_texts(loop.step.module)
        gradients = _gradients(loop.step.module)
        with preserved(), fresh_caches(loop.step.module, loop.step.loss_function):
            restore_snapshot(self.other, (copies, record))
            with written_files() as files:
                self.failed = _failed_update(self.other)
        self.files = named_files(files)
        now = description(loop.step.module) | hook_texts(loop.step.module)
        self.shared = changed(here, now)
        self.globals = _globals_of(loop)
        written = restored_tensors(loop.step.module, copies)
        self.entangled = bool(written) or _gradients(loop.step.module) != gradients

    def after_second_update(self, loop: TrainingLoop) -> str | None:
        """Return the state that a checkpoint would lose; None if both updates agree."""
        loop.read_losses()
        if self.reshaped is None and self.saved is not None:
            self.reshaped = changed_tensor(loop.step.module, self.saved[0], MODEL)
        if self.reshaped is not None:
            return reshaped_text(self.reshaped)
        if self.failed is not None:
            self.later = (
                f"a copy of the model cannot be trained ({self.failed}), so orderone could not"
                " check that a checkpoint holds all state"
            )
            return None
        different = self._difference(loop)
        if different is None and not self.shared:
            self.later = self._acting_later(loop)
            return None
        if self.entangled and not self.shared:
            self.later = (
                "a copy of the model calls functions that use the tensors of the original, such as"
                " a replaced forward or a hook, so orderone could not check that a checkpoint holds"
                " all state"
            )
            return None
        names = [
            *self.shared,
            *different_attributes(loop.step.module, self.other.step.module, exact=False),
            *changed(self.globals, _globals_of(loop)),
            *self._different_losses(loop),
            *self.files,
        ]
        if not names and different is not None and different.unclear:
            self.doubt = (
                f"{different.text}; kernels that add in any order may explain it; a resume repeats"
                " updates, and warns if their losses differ"
            )
            return None
        if not names:
            names = changed(self.at_start, description(loop.step.module))
        return lost_text(names, None if different is None else different.text)

    def _difference(self, loop: TrainingLoop) -> Difference | None:
        """Return what differs between the second updates; None if they agree to rounding."""
        assert self.saved is not None  # `after_first_update` was called
        before = self.saved[0]
        tensors = {name: before[f"{MODEL}{name}"] for name in model_tensors(loop.step.module)}
        return difference(_latest(loop), _latest(self.other), tensors, loop.settings.half)

    def _acting_later(self, loop: TrainingLoop) -> str | None:
        """Return the state that the other copy has otherwise, or that both share and change."""
        names = changed(self.globals, _globals_of(loop))
        names += different_attributes(loop.step.module, self.other.step.module)
        names += self._different_losses(loop) + self.files
        return later_text(names)

    def _different_losses(self, loop: TrainingLoop) -> list[str]:
        """Return a name for the loss function if both copies of it differ."""
        here = loop.step.loss_function
        there = self.other.step.loss_function
        if here is there or text_of(here) == text_of(there):
            return []
        return ["the loss function"]


def _failed_update(loop: TrainingLoop) -> str | None:
    """Make an update of a copy; return its error, None if there is none.

    The training itself may be able to make this update: a copy lacks what Python cannot copy.
    """
    try:
        loop.update()
        loop.read_losses()
    except Exception as error:  # the user's code may raise anything
        return brief(error)
    return None


def _globals_of(loop: TrainingLoop) -> dict[str, str]:
    """Return the state that code of the model, the loss and the optimizer can change."""
    optimizer = loop.step.optimizer
    code = [loop.step.loss_function, type(optimizer), *step_hooks(optimizer)]
    return global_texts(loop.step.module, *code)


def _latest(loop: TrainingLoop) -> Update:
    """Return the latest update of a training."""
    gradients: dict[str, Tensor] = {}
    for name, p in loop.step.module.named_parameters():
        if p.grad is not None:
            gradients[name] = p.grad.to_dense()  # that of an embedding may be sparse
    return Update(loop.losses[-1:], gradients, model_tensors(loop.step.module))


def _gradients(module: nn.Module) -> list[tuple[int, int] | None]:
    """Return what tells whether gradients have been replaced or written to."""
    marks: list[tuple[int, int] | None] = []
    for p in module.parameters():
        marks.append(None if p.grad is None else (id(p.grad), version_counter(p.grad)))
    return marks


@torch.no_grad()
def restored_tensors(module: nn.Module, saved: Mapping[str, Tensor]) -> list[str]:
    """Give the tensors of a model their saved values; return the names of those that had others.

    A hook of a copy may write to the tensors of the original model.
    """
    names: list[str] = []
    for name, x in model_tensors(module).items():
        value = saved.get(f"{MODEL}{name}")
        if value is None or value.shape != x.shape:
            continue
        if torch.equal(_bits(x), _bits(value)):
            continue
        x.copy_(value)
        names.append(name)
    return names


def _bits(x: Tensor) -> Tensor:
    """Return the bytes of a tensor: no type is left out, and NaN equals NaN."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def different_attributes(a: nn.Module, b: nn.Module, exact: bool | None = None) -> list[str]:
    """Return the attributes in which two copies of a model differ after the same updates.

    If kernels are not `exact` (by default on a GPU), numbers that a pass has computed may differ by
    rounding, and are left out.
    """
    if exact is None:
        exact = all(p.device.type == "cpu" for p in a.parameters())
    # a deep copy has the functions of the original, which may hold modules of it
    both = names_of_modules(a) | names_of_modules(b)
    others = attribute_texts(b, DEEP, both)
    modules = dict(a.named_modules())
    names: list[str] = []
    for (name, key), text in attribute_texts(a, DEEP, both).items():
        if others.get((name, key)) == text:
            continue
        if exact or isinstance(vars(modules[name]).get(key), (bool, int, str)):
            names.append(f"{name}.{key}".lstrip("."))
    if exact:
        names += changed(hook_texts(b, DEEP, both), hook_texts(a, DEEP, both))
    return names


def named_files(paths: Sequence[str]) -> list[str]:
    return [f"the file {path}" for path in paths]


def lost_text(names: Sequence[str], different: str | None) -> str:
    """Say that a checkpoint does not hold all state, where it is, and what differs."""
    where = "the model, its loss or its optimizer keeps state outside parameters and buffers"
    if names:
        where = f"the model keeps state in {' and '.join(names[:3])}"
    shown = "" if different is None else f": {different}"
    return (
        f"{where}, which is not in a checkpoint{shown}; register a buffer for it, or implement"
        " get_extra_state and set_extra_state"
    )


def reshaped_text(different: str) -> str:
    """Say that no checkpoint can hold the tensors of a model, because training resizes them."""
    return (
        f"training adds, removes or resizes tensors of the model ({different}), so that a"
        " checkpoint does not fit a model that is built again; register tensors of their final"
        " shape and type when the model is built"
    )


def later_text(names: Sequence[str]) -> str | None:
    """Say that this state is not in a checkpoint; None if there is none."""
    if not names:
        return None
    return (
        f"the model keeps state in {' and '.join(names[:3])}, which is not in a checkpoint; it had"
        " no effect on the second update, but may have one later; register a buffer for it, or"
        " implement get_extra_state and set_extra_state"
    )


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose texts are new or have changed."""
    return [name for name, text in now.items() if before.get(name) != text]


def unchecked_note(loop: TrainingLoop) -> str | None:
    """Return a note on a training that is not checked at its start; None if it is."""
    reason = _not_copied(loop)
    if reason is None:
        return None
    text = (
        f"checkpoint: it was not tested at the start whether a checkpoint holds all state, because"
        f" {reason}; a resume repeats updates between the last two checkpoints, and warns if their"
        " losses differ"
    )
    return with_code(text, "state-not-checked")


def _not_copied(loop: TrainingLoop) -> str | None:
    """Return why there is no copy of a training to check it with."""
    if loop.world.size > 1:
        return f"the training consists of {loop.world.size} processes"
    size = model_bytes(loop.step.module)
    if size > LARGEST:
        return f"a copy of the model needs {size / 2**30:.1f} GiB, more than {LARGEST >> 30}"
    return None


def model_bytes(module: nn.Module) -> int:
    """Return the size of parameters and buffers."""
    return sum(x.numel() * x.element_size() for x in model_tensors(module).values())


def _not_copied_text(error: Exception) -> str:
    text = (
        f"checkpoint: the model cannot be copied ({brief(error)}), so"
        " orderone could not check that a checkpoint holds all state; if the model keeps state"
        " outside parameters and buffers, implement get_extra_state and set_extra_state"
    )
    return with_code(text, "state-may-be-lost")


def copy_of(loop: TrainingLoop) -> TrainingLoop | None:
    """Return a copy of a training before its first update; None if there is an `unchecked_note`.

    Warn if it has objects that cannot be copied.
    """
    if _not_copied(loop) is not None:
        return None
    step = loop.step
    try:
        loss = fresh_loss(step.loss_function)
        with warnings.catch_warnings():
            # From Python 3.14 on, iterators of itertools cannot be copied; 3.12 announces it.
            warnings.simplefilter("ignore", DeprecationWarning)
            memo: dict[int, object] = {}
            parts = (step.module, step.optimizer, step.scale)
            module, optimizer, scale = copy.deepcopy(parts, memo)
            for p, copied in zip(step.module.parameters(), module.parameters(), strict=True):
                # torch leaves them out of copies
                vars(copied).update(copy.deepcopy(vars(p), memo))
    except Exception as error:  # objects of the user may raise anything
        warnings.warn(_not_copied_text(error), stacklevel=3)
        return None
    for p, copied in zip(step.module.parameters(), module.parameters(), strict=True):
        share_gradient_hooks(p, copied)
    share_step_hooks(step.optimizer, optimizer)
    forward = module
    if step.forward is not step.module:  # compiled; eager code would round differently
        forward = compiled_module(module)
    other = replace(
        step,
        module=module,
        forward=forward,
        optimizer=optimizer,
        scale=scale,
        loss_function=loss,
    )
    return TrainingLoop(other, check_each_loss=loop.check_each_loss)
