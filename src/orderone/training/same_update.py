"""Compare two updates that should be the same: one after a save and a load, the other without.

Both start from the same tensors, so that their losses and gradients agree to rounding: some kernels
of a GPU add in any order. The tensors after the update may differ by more, because Adam turns the
rounding of a tiny gradient into a change of sign. So they are compared where gradients agree.

No update is repeated to learn how large rounding is. A repetition would also run the code of the
model once more, and state that this code keeps outside the model would look like rounding.

Kernels of a GPU add in any order, which changes sums by a few units of float32. If products round
their inputs with a larger unit u (TensorFloat32, half precision), a change by d lets a part d / u
of these roundings fall on the other side, each by u: the change becomes sqrt(d u), and after a few
layers u. A part u of the ReLUs then falls on the other side of its kink, which changes a gradient
by sqrt(u) of its size. So two healthy updates may be sqrt(u) apart, times a number that grows
slowly with depth. Simulated networks (MLP of 10 layers, Transformer of 12, ResNet of 20; noise of
1e-6 in every product) had up to 8 sqrt(u) in the gradient of a tensor, 80 u relative to all
gradients, and u / 4 in the loss. `largest_rounding` has these with a margin. Between that and the
usual limits, one update cannot tell whether the difference is rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import torch
from torch import Tensor

TF32 = 2.0**-11  # unit of rounding of the inputs of products
MOST = 0.5  # part of the entries: an update may mix the entries of a tensor, as Shampoo does


@dataclass(frozen=True)
class Rounding:
    """Largest differences that are rounding."""

    loss: float  # relative
    change: float  # relative to the gradient of a tensor, or to its change by the update
    # Gradients that are zero in theory, such as those of the biases of keys, are pure rounding.
    floor: float  # relative to the gradients of all tensors


ANY_ORDER = Rounding(loss=1e-5, change=1e-3, floor=1e-5)  # kernels of a GPU
IN_HALF_PRECISION = Rounding(loss=1e-4, change=1e-3, floor=1e-3)


def largest_rounding(unit: float) -> Rounding:
    """Return the largest differences of kernels that add in any order, for a unit of products."""
    return Rounding(loss=4 * unit, change=16 * sqrt(unit), floor=128 * unit)


@dataclass(frozen=True)
class Update:
    """Losses of all members, gradients by name of the parameter, and the tensors afterwards."""

    losses: Sequence[float]
    gradients: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Difference:
    """Difference of two updates; `unclear` if a GPU that adds in any order could explain it."""

    text: str
    unclear: bool


def difference(
    update: Update, other: Update, before: Mapping[str, Tensor], half: torch.dtype | None = None
) -> Difference | None:
    """Return what differs by more than rounding in `other`, the update after a save and a load.

    `before` are the tensors before the update; `half` is the half precision of passes.
    A training that diverged has no more state: None, as for updates that agree.
    """
    text = _beyond(update, other, before, _rounding(update, half))
    if text is None:
        return None
    unclear = False
    if not on_cpu(update):
        largest = largest_rounding(max(TF32, _unit_of_halves(update, half)))
        unclear = _beyond(update, other, before, largest) is None
    return Difference(text, unclear)


def on_cpu(update: Update) -> bool:
    return all(x.device.type == "cpu" for x in update.tensors.values())


def _unit_of_halves(update: Update, half: torch.dtype | None) -> float:
    """Return the largest unit of rounding among half precisions; 0 if there are none."""
    dtypes = {x.dtype for x in update.tensors.values()} & {torch.float16, torch.bfloat16}
    if half is not None:
        dtypes.add(half)
    return max((torch.finfo(dtype).eps / 2 for dtype in dtypes), default=0.0)


def _beyond(
    update: Update, other: Update, before: Mapping[str, Tensor], rounding: Rounding
) -> str | None:
    for loss, other_loss in zip(update.losses, other.losses, strict=True):
        if not _same_number(loss, other_loss, rounding.loss):
            return _two_losses(loss, other_loss)
    if not all(isfinite(loss) for loss in update.losses):
        return None
    different = _different_gradient(update.gradients, other.gradients, rounding)
    if different is None:
        different = _different_tensor(update, other, before, rounding.change)
    return different


def _rounding(update: Update, half: torch.dtype | None) -> Rounding:
    """Return what kernels may change: those of a CPU give nearly the same bits every time."""
    dtypes: set[torch.dtype] = set()
    for x in update.tensors.values():
        if x.is_floating_point() or x.is_complex():
            dtypes.add(x.dtype)
    if half is not None or torch.float16 in dtypes or torch.bfloat16 in dtypes:
        return IN_HALF_PRECISION
    if not on_cpu(update) or not dtypes:
        return ANY_ORDER
    unit = max(torch.finfo(dtype).eps for dtype in dtypes)
    return Rounding(loss=16 * unit, change=100 * unit, floor=100 * unit)


# --- losses ---------------------------------------------------------------------------------------


def _same_number(a: float, b: float, near: float) -> bool:
    if not isfinite(a) or not isfinite(b):
        return isfinite(a) == isfinite(b)
    return abs(a - b) <= near * max(abs(a), abs(b))


def _two_losses(loss: float, other_loss: float) -> str:
    digits = 6
    while digits < 17 and f"{loss:.{digits}g}" == f"{other_loss:.{digits}g}":
        digits += 1
    return (
        f"the loss of the second update is {loss:.{digits}g}, and {other_loss:.{digits}g} after a"
        " save and a load"
    )


# --- gradients ------------------------------------------------------------------------------------


def _different_gradient(
    gradients: Mapping[str, Tensor], others: Mapping[str, Tensor], rounding: Rounding
) -> str | None:
    norms = {name: _norm(g) for name, g in gradients.items()}
    total = sqrt(sum(norm**2 for norm in norms.values()))
    if not isfinite(total):
        return None
    for name, g in gradients.items():
        if name not in others:
            return f"the second update has a gradient of {name}, and none after a save and a load"
        apart = _norm(g - others[name])
        if not apart <= rounding.change * norms[name] + rounding.floor * total:
            return (
                f"the gradient of {name} in the second update has the norm {norms[name]:.3g}, and"
                f" differs by {apart:.3g} after a save and a load"
            )
    for name in others:
        if name not in gradients:
            return f"the second update has no gradient of {name}, and one after a save and a load"
    return None


def _norm(x: Tensor) -> float:
    if x.is_complex():
        dtype = torch.complex128
    else:
        dtype = torch.float64
    return float(torch.linalg.vector_norm(x.detach(), dtype=dtype))


# --- tensors after the update ---------------------------------------------------------------------


def _different_tensor(
    update: Update, other: Update, before: Mapping[str, Tensor], near: float
) -> str | None:
    for name, x in update.tensors.items():
        y = other.tensors[name].detach()
        if torch.equal(x.detach(), y):
            continue
        pair = (update.gradients.get(name), other.gradients.get(name))
        if not _is_rounding(x.detach(), y, before[name], pair, near):
            if x.is_complex():
                wide = torch.complex128
            else:
                wide = torch.float64
            largest = float((x.detach().to(wide) - y.to(wide)).abs().max())
            return (
                f"{name} differs by up to {largest:.3g} after the second update if there was a save"
                " and a load before it"
            )
    return None


def _is_rounding(
    x: Tensor,
    y: Tensor,
    before: Tensor,
    gradients: tuple[Tensor | None, Tensor | None],
    near: float,
) -> bool:
    """Return whether two versions of a tensor differ no more than rounding explains."""
    if not (x.is_floating_point() or x.is_complex()):
        return False
    if not bool(x.isfinite().all()):
        return not bool(y.isfinite().all())
    change = x - before
    apart = (x - y).abs()
    unit = torch.finfo(x.dtype).eps
    if _norm(apart) <= near * _norm(change) + unit * _norm(x):
        return True
    g, h = gradients
    if g is None or h is None or torch.equal(g, h):
        return False
    clear = (g - h).abs() <= near * g.abs()
    agree = apart <= near * change.abs() + unit * x.abs()
    return int((agree & clear).sum()) >= MOST * int(clear.sum())
