"""Check that a checkpoint holds all state of a training: one step after a save and a load.

A model may keep state anywhere: a counter in an attribute, a tensor in a list, a generator. So
after the first update, the state is loaded into another copy of the training as it was before it,
as a new process would have it. Both make the second update. If they differ by more than rounding,
a checkpoint would not continue this training. If the updates agree, but an attribute or a global
variable that training changes does not, it may act later.

Some kernels of a GPU add in any order, and Adam's first updates turn the rounding of a tiny
gradient into a change of sign: two equal trainings then differ by more than rounding, without any
checkpoint. So a difference is compared with controls, which repeat an update under the same
conditions (`due_to_kernels`). Counters in attributes, and global variables that training changes,
are state whatever the controls say: a global variable would make the controls differ, too.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan, sqrt

import torch
from torch import Tensor, nn

from orderone.seeding import preserved
from orderone.torch_compat import version_counter
from orderone.training import checkpoint as checkpoints
from orderone.training.checkpoint import Content
from orderone.training.code_state import global_texts
from orderone.training.loop import TrainingLoop
from orderone.training.snapshot import MODEL, restore_snapshot, snapshot
from orderone.training.stacked.alike import attribute_texts, description
from orderone.training.step import compiled_module

LARGEST = 1 << 30  # bytes of a model that is copied for this
NEAR = 1e-3  # of the change by the update; kernels of a GPU may add in any order
CONTROLS = 3  # at most; one may by chance deviate little
COMPARABLE = 4.0  # times the deviation of a control
NEAR_LOSS = 1e-5  # relative; such a difference of losses is rounding, whatever the control's is
LARGEST_NOISE = 1e-2  # relative; no order of additions changes a loss by more


@dataclass(frozen=True)
class Deviation:
    """Differences between two trainings after the same updates."""

    losses: tuple[float, float]  # of the member whose losses differ most
    rms: float  # of the differences of all tensors
    name: str  # tensor with the largest difference
    largest: float  # difference in that tensor

    @property
    def loss(self) -> float:
        """Absolute difference of the losses; infinite if only one of them is a number."""
        return _apart(*self.losses)

    @property
    def is_zero(self) -> bool:
        return self.loss == 0.0 and self.rms == 0.0


def deviation(
    losses: Sequence[float],
    other_losses: Sequence[float],
    tensors: Mapping[str, Tensor],
    other_tensors: Mapping[str, Tensor],
) -> Deviation:
    """Compare the losses (of each member) and the tensors of two trainings."""
    pairs = list(zip(losses, other_losses, strict=True))
    total = 0.0
    entries = 0
    largest = 0.0
    largest_name = ""
    for name, x in tensors.items():
        if not x.numel():
            continue
        size, squares = _difference(x.detach(), other_tensors[name].detach())
        total += squares
        entries += x.numel()
        if size > largest or not largest_name:
            largest = size
            largest_name = name
    return Deviation(
        losses=max(pairs, key=lambda pair: _apart(*pair)),
        rms=sqrt(total / max(entries, 1)),
        name=largest_name,
        largest=largest,
    )


def _apart(a: float, b: float) -> float:
    if a == b or (isnan(a) and isnan(b)):
        return 0.0
    difference = abs(a - b)
    return inf if isnan(difference) else difference


def _difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the largest difference of two tensors, and the sum of the squared differences.

    Both are infinite where only one has a number. Entries that are no real or complex numbers have
    no rounding: if they differ, the sum is infinite, too.
    """
    if not (a.is_floating_point() or a.is_complex()):
        if torch.equal(a, b):
            return 0.0, 0.0
        return float((a.double() - b.double()).abs().max()), inf
    equal = (a == b) | (a.isnan() & b.isnan())
    apart = (a - b).abs().masked_fill(equal, 0.0).nan_to_num(nan=inf, posinf=inf)
    squares = torch.linalg.vector_norm(apart, dtype=torch.float64) ** 2
    return float(apart.max()), float(squares)


def due_to_kernels(found: Deviation, control: Callable[[], Deviation | None]) -> bool:
    """Return whether a training repeated without a checkpoint deviates by a comparable amount.

    `found` is the deviation after a save and a load. `control()` repeats updates under the same
    conditions and returns their deviation; None if it cannot. If kernels are deterministic, that is
    exactly zero, and every difference in `found` is due to state that was lost.
    """
    size = max(abs(loss) for loss in found.losses)
    if not found.loss <= LARGEST_NOISE * size:
        return False
    for _ in range(CONTROLS):
        usual = control()
        if usual is None or usual.is_zero:
            return False
        loss = max(COMPARABLE * usual.loss, NEAR_LOSS * size)
        if found.loss <= loss and found.rms <= COMPARABLE * usual.rms:
            return True
    return False


def lost_text(names: Sequence[str], found: Deviation) -> str:
    """Say that a checkpoint does not hold all state, where it is, and what differs."""
    where = " and ".join(names[:3]) or "something outside the parameters and buffers"
    loss, other_loss = found.losses
    digits = 6
    while found.loss and digits < 17 and f"{loss:.{digits}g}" == f"{other_loss:.{digits}g}":
        digits += 1
    if found.loss:
        what = (
            f"the loss of the second update is {loss:.{digits}g}, and {other_loss:.{digits}g} after"
            " a save and a load"
        )
    else:
        what = (
            f"the loss of the second update is {loss:.6g} with and without a save and a load before"
            " it"
        )
    if digits > 6 or not found.loss:
        what += f", and this update makes {found.name} differ by up to {found.largest:.3g}"
    return (
        f"the model keeps state in {where}, which is not in a checkpoint: {what}; register a buffer"
        " for it, or implement get_extra_state and set_extra_state"
    )


class ResumeCheck:
    """Check of one training; `other` is the same training before its first update."""

    def __init__(self, other: TrainingLoop):
        self.other = other
        self.fresh: TrainingLoop | None = None  # the same once more, for controls
        self.saved: Content | None = None  # state after the first update
        self.at_start: Mapping[str, str] = description(other.step.module)
        self.shared: list[str] = []  # attributes that both copies have in common, and change
        self.globals: Mapping[str, str] = {}  # before the second update
        self.entangled: bool = False  # whether the copy uses tensors of the original
        self.later: str | None = None  # state that is not in a checkpoint, and has not acted yet

    def after_first_update(self, loop: TrainingLoop) -> None:
        """Load the state into the other copy, and let that make the second update."""
        loop.read_losses()  # they say how many updates were made
        tensors, record = snapshot(loop)
        copies = {name: x.detach().clone() for name, x in tensors.items()}
        self.saved = (copies, record)
        self.fresh = _copy(self.other)
        here = description(loop.step.module)
        gradients = _gradients(loop.step.module)
        with preserved():
            restore_snapshot(self.other, (copies, record))
            self.other.update()
            self.other.read_losses()
        self.shared = _changed(here, description(loop.step.module))
        self.globals = global_texts(loop.step.module)
        self.entangled = _gradients(loop.step.module) != gradients

    def after_second_update(self, loop: TrainingLoop) -> str | None:
        """Return the state that a checkpoint would lose; None if both updates agree."""
        loop.read_losses()
        loss = loop.losses[-1]
        other_loss = self.other.losses[-1]
        if not self.shared and _same_number(loss, other_loss) and self._same_tensors(loop):
            self.later = self._acting_later(loop)
            return None
        if self.entangled and not self.shared:
            self.later = (
                "a copy of the model runs functions that use the tensors of the original, such as a"
                " replaced forward, so that it could not be checked whether a checkpoint holds all"
                " state"
            )
            return None
        found = deviation(
            [loss],
            [other_loss],
            checkpoints.model_tensors(loop.step.module),
            checkpoints.model_tensors(self.other.step.module),
        )
        certain = [
            *self.shared,
            *different_attributes(loop.step.module, self.other.step.module, exact=False),
            *_changed(self.globals, global_texts(loop.step.module)),
        ]
        if not certain and due_to_kernels(found, self._control):
            return None
        return lost_text(certain or _changed(self.at_start, description(loop.step.module)), found)

    def _control(self) -> Deviation | None:
        """Load the state into a third copy; return by how much its second update deviates.

        It is compared with that of the other copy, which had the same state. None if there is no
        third copy, or no memory for it.
        """
        if self.fresh is None or self.saved is None:
            return None
        self.other.step.optimizer.zero_grad(set_to_none=True)
        self.other.step.optimizer.state.clear()  # only its tensors and attributes are compared
        control = _copy(self.fresh)
        if control is None:
            return None
        try:
            with preserved():
                restore_snapshot(control, self.saved)
                control.update()
                control.read_losses()
        except torch.OutOfMemoryError:
            return None
        return deviation(
            self.other.losses[-1:],
            control.losses[-1:],
            checkpoints.model_tensors(self.other.step.module),
            checkpoints.model_tensors(control.step.module),
        )

    def _acting_later(self, loop: TrainingLoop) -> str | None:
        """Return the state that the other copy has otherwise, or that both share and change."""
        names = _changed(self.globals, global_texts(loop.step.module))
        names += different_attributes(loop.step.module, self.other.step.module)
        return later_text(names)

    def _same_tensors(self, loop: TrainingLoop) -> bool:
        here = checkpoints.model_tensors(loop.step.module)
        there = checkpoints.model_tensors(self.other.step.module)
        assert self.saved is not None  # `after_first_update` was called
        before = self.saved[0]
        for name, x in here.items():
            if not (x.is_floating_point() or x.is_complex()):
                if not torch.equal(x, there[name]):
                    return False
                continue
            size = torch.linalg.vector_norm(x.detach())
            change = torch.linalg.vector_norm(x.detach() - before[f"{MODEL}{name}"])
            apart = torch.linalg.vector_norm(x.detach() - there[name].detach())
            if not float(apart) <= NEAR * float(change) + torch.finfo(x.dtype).eps * float(size):
                return not bool(x.isfinite().all())  # a training that diverged has no more state
        return True


def _gradients(module: nn.Module) -> list[tuple[int, int] | None]:
    """Return what tells whether gradients have been replaced or written to."""
    marks: list[tuple[int, int] | None] = []
    for p in module.parameters():
        marks.append(None if p.grad is None else (id(p.grad), version_counter(p.grad)))
    return marks


def different_attributes(a: nn.Module, b: nn.Module, exact: bool | None = None) -> list[str]:
    """Return the attributes in which two copies of a model differ after the same updates.

    Functions are left out: a deep copy has those of the original. If kernels are not `exact` (by
    default on a GPU), numbers that a pass has computed may differ by rounding, and are left out.
    """
    if exact is None:
        exact = all(p.device.type == "cpu" for p in a.parameters())
    others = attribute_texts(b)
    modules = dict(a.named_modules())
    names: list[str] = []
    for (name, key), text in attribute_texts(a).items():
        if others.get((name, key)) == text or callable(vars(modules[name]).get(key)):
            continue
        if exact or isinstance(vars(modules[name]).get(key), (bool, int, str)):
            names.append(f"{name}.{key}".lstrip("."))
    return names


def later_text(names: Sequence[str]) -> str | None:
    """Say that this state is not in a checkpoint; None if there is none."""
    if not names:
        return None
    return (
        f"the model keeps state in {' and '.join(names[:3])}, which is not in a checkpoint; it did"
        " not act in the second update, and may act later; register a buffer for it, or implement"
        " get_extra_state and set_extra_state"
    )


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name, text in now.items() if before.get(name) != text]


def _same_number(a: float, b: float) -> bool:
    if a != a or b != b:
        return (a != a) == (b != b)
    return abs(a - b) <= NEAR * max(abs(a), abs(b)) * 1e-2


def copy_of(loop: TrainingLoop) -> TrainingLoop | None:
    """Return a copy of a training before its first update; None if the model is too large for it.

    Also None if it consists of several processes, or of objects that cannot be copied.
    """
    if loop.world.size > 1:
        return None
    tensors = checkpoints.model_tensors(loop.step.module)
    if sum(x.numel() * x.element_size() for x in tensors.values()) > LARGEST:
        return None
    return _copy(loop)


def _copy(loop: TrainingLoop) -> TrainingLoop | None:
    """Return a copy of a training before its first update; None if an object cannot be copied."""
    try:
        parts = (loop.step.module, loop.step.optimizer, loop.step.scale)
        module, optimizer, scale = copy.deepcopy(parts)
    except Exception:  # objects of the user may raise anything
        return None
    forward = module
    if loop.step.forward is not loop.step.module:  # compiled; eager code would round differently
        forward = compiled_module(module)
    step = replace(loop.step, module=module, forward=forward, optimizer=optimizer, scale=scale)
    return TrainingLoop(step, check_each_loss=loop.check_each_loss)
