"""Learning rates that differ between the rows of one tensor, for any torch optimizer.

A packed projection has queries, keys and values in one tensor, and a parameter group has one
learning rate. A group may therefore have an entry `rows`, plain data that a state dictionary can
contain:

    {"axis": 0, "size": 384, "decoupled": True, "blocks": [
        {"ranges": [[0, 128]], "lr": 0.5, "weight_decay": 2.0, "gradient": 1.0}]}

Every tensor of such a group has `size` entries along `axis`. For the entries in `ranges`:

    lr              factor of the learning rate
    weight_decay    factor of the weight decay
    gradient        factor of the gradient that the optimizer sees. For optimizers that normalize,
                    this is the inverse of a factor of eps

With old values p, gradient g, and the step p' of the optimizer for the whole tensor, the rows get

    p + lr (p' - p)                                            without weight decay
    p + lr (p' - p + rate decay (1 - weight_decay) p)          decoupled weight decay
    p + lr (p' - p), where the optimizer sees
        gradient (g + decay weight_decay p) - decay p          decay as a penalty in the gradient

For an optimizer that moves each entry by itself, this is exactly the step of a separate tensor with
these settings. Muon and Adafactor use sums over the whole tensor; these stay sums over the whole
tensor, and the result is scaled by rows.

A hook on all optimizers of torch applies this to those with such a group. So it makes no difference
who constructed the optimizer, or whether it was copied.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from orderone.core.errors import InputError
from orderone.torch_compat import (
    first_local_row,
    local_tensor,
    step_is_hooked,
    step_post_hook_registry,
    step_pre_hook_registry,
    version_counter,
)

KEY = "rows"  # the entry of a parameter group

Number: TypeAlias = float | Tensor
RowSettings: TypeAlias = dict[str, Any]  # the entry, as in the head of this file
Ranges: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Block:
    """Rows of a tensor with their factors; in a stack, a factor has one entry per member."""

    axis: int
    index: Tensor
    lr: Number
    weight_decay: Number
    gradient: Number

    def rows(self, x: Tensor) -> Tensor:
        """Return a copy of these rows."""
        return x.index_select(self.axis, self.index)

    def scale_gradient(self, p: Tensor, g: Tensor, penalty: Number) -> None:
        """Change the rows of `g` in place; `penalty` is the weight decay inside the gradient."""
        values = self.rows(p)
        wanted = self.gradient * (self.rows(g) + penalty * self.weight_decay * values)
        g.index_copy_(self.axis, self.index, (wanted - penalty * values).to(g.dtype))

    def scale_step(self, p: Tensor, before: Tensor, shrinkage: Number) -> None:
        """Scale the step that the rows of `p` have made; `shrinkage` is the decoupled decay."""
        exact = torch.promote_types(p.dtype, torch.float32)
        old = before.to(exact)
        step = self.rows(p).to(exact) - old + shrinkage * (1 - self.weight_decay) * old
        p.index_copy_(self.axis, self.index, (old + self.lr * step).to(p.dtype))


def row_index(ranges: Ranges, device: torch.device, start: int, stop: int) -> Tensor:
    """Return the rows of `ranges` between `start` and `stop`, counted from `start`."""
    rows: list[int] = []
    for first, last in ranges:
        rows += range(max(first, start) - start, min(last, stop) - start)
    return torch.tensor(rows, dtype=torch.int64, device=device)


# --- hooks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pending:
    """State of a tensor before a step."""

    blocks: tuple[Block, ...]
    before: tuple[Tensor, ...]  # old rows of every block
    gradient: Tensor  # the true gradient
    changed: Tensor | None  # the gradient that the optimizer sees, if it differs
    version: int  # of `changed`: a backward pass raises it


_PENDING: dict[Tensor, _Pending] = {}
_BLOCKS: WeakKeyDictionary[Optimizer, dict[tuple[int, int, torch.device], tuple[Block, ...]]] = (
    WeakKeyDictionary()
)
_HOOKS: WeakKeyDictionary[Optimizer, tuple[RemovableHandle, RemovableHandle]] = WeakKeyDictionary()
_GLOBAL: list[RemovableHandle] = []


def activate() -> None:
    """Let every torch optimizer of this process obey the entry `rows` of its groups."""
    if not _GLOBAL:
        _GLOBAL.append(register_optimizer_step_pre_hook(_install))


def obeys(optimizer: Optimizer) -> bool:
    """Return whether the steps of an optimizer call hooks, so that rows get their rates."""
    return bool(_GLOBAL) and step_is_hooked(optimizer)


def _install(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Put our hooks next to the step, so that other hooks see true gradients and final values."""
    if not any(group.get(KEY) for group in optimizer.param_groups):
        return
    if optimizer not in _HOOKS:
        _HOOKS[optimizer] = (
            optimizer.register_step_pre_hook(_before_step),
            optimizer.register_step_post_hook(_after_step),
        )
    before, after = _HOOKS[optimizer]
    step_pre_hook_registry(optimizer).move_to_end(before.id, last=True)
    step_post_hook_registry(optimizer).move_to_end(after.id, last=False)


def _before_step(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    closure = kwargs.get("closure")
    if len(args) > 1:
        closure = args[1]
    if closure is None:
        _prepare(optimizer)
        return None

    def closure_then_prepare() -> object:  # the closure computes the gradients
        loss = closure()
        with torch.no_grad():
            _prepare(optimizer)
        return loss

    if len(args) > 1:
        return (args[0], closure_then_prepare, *args[2:]), kwargs
    return args, {**kwargs, "closure": closure_then_prepare}


@torch.no_grad()
def _prepare(optimizer: Optimizer) -> None:
    for p, group in _tensors_with_rows(optimizer):
        if p.grad is None:
            continue
        blocks = _blocks(optimizer, p, group[KEY])
        if _is_decoupled(group):
            penalty = 0.0
        else:
            penalty = group.get("weight_decay", 0.0)
        gradient, changed = _gradient_for(p, p.grad, blocks, penalty)
        p.grad = gradient if changed is None else changed
        _PENDING[p] = _Pending(
            blocks,
            tuple(block.rows(local_tensor(p)) for block in blocks),
            gradient,
            changed,
            0 if changed is None else version_counter(changed),
        )


def _gradient_for(
    p: Tensor, gradient: Tensor, blocks: Sequence[Block], penalty: Number
) -> tuple[Tensor, Tensor | None]:
    """Return the true gradient, and the one for the optimizer if it differs.

    The step of a subclass may call that of its base class, which calls the hooks again: then the
    gradient has been changed already.
    """
    pending = _PENDING.get(p)
    was_changed = pending is not None and pending.changed is gradient
    if pending is not None and was_changed and pending.version == version_counter(gradient):
        return pending.gradient, gradient
    has_penalty = isinstance(penalty, Tensor) or penalty != 0
    if not has_penalty and all(_is_one(block.gradient) for block in blocks):
        return gradient, None
    changed = gradient.clone()
    for block in blocks:
        block.scale_gradient(local_tensor(p), local_tensor(changed), penalty)
    return gradient, changed


def _is_one(factor: Number) -> bool:
    return not isinstance(factor, Tensor) and factor == 1


@torch.no_grad()
def _after_step(optimizer: Optimizer, *_: object) -> None:
    for p, group in _tensors_with_rows(optimizer):
        pending = _PENDING.pop(p, None)
        if pending is None:
            continue
        shrinkage = 0.0
        if _is_decoupled(group):
            shrinkage = group["lr"] * group.get("weight_decay", 0.0)
        for block, before in zip(pending.blocks, pending.before, strict=True):
            block.scale_step(local_tensor(p), before, shrinkage)
        if pending.changed is not None and p.grad is pending.changed:
            p.grad = pending.gradient


def _tensors_with_rows(optimizer: Optimizer) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    for group in optimizer.param_groups:
        if group.get(KEY):
            for p in group["params"]:
                yield p, group


def _is_decoupled(group: Mapping[str, Any]) -> bool:
    return bool(group.get("decoupled_weight_decay", group[KEY]["decoupled"]))


def _blocks(optimizer: Optimizer, p: Tensor, rows: RowSettings) -> tuple[Block, ...]:
    """Return the blocks of a tensor, or of the part of it that this process has."""
    made = _BLOCKS.setdefault(optimizer, {})
    key = (id(p), id(rows), p.device)
    if key not in made:
        made[key] = tuple(_made_blocks(p, rows))
    return made[key]


def _made_blocks(p: Tensor, rows: RowSettings) -> Iterator[Block]:
    axis = rows["axis"]
    if p.dim() <= axis or p.shape[axis] != rows["size"]:
        message = (
            f"optimizer: a group has learning rates for {rows['size']} rows, and its tensor has the"
            f" shape {tuple(p.shape)}. Trainers that flatten or split parameters cannot use them:"
            " grow the number of heads instead of their size, or use separate projections for"
            " queries, keys and values"
        )
        raise InputError(message, "rows-of-other-shape", argument="optimizer")
    local = local_tensor(p)
    start = first_local_row(p, axis)
    for block in rows["blocks"]:
        index = row_index(block["ranges"], local.device, start, start + local.shape[axis])
        yield Block(axis, index, block["lr"], block["weight_decay"], block["gradient"])


# --- stacked members ------------------------------------------------------------------------------


class StackedRows:
    """The same for a stacked tensor of shape (K, ...), with factors for each member."""

    def __init__(self, p: Tensor, rows: Sequence[RowSettings | None], decoupled: Sequence[bool]):
        first = next(settings for settings in rows if settings)
        self.blocks: list[Block] = []
        self.decoupled: Tensor = _per_member(p, [float(flag) for flag in decoupled])
        for place, block in enumerate(first["blocks"]):
            factors: dict[str, Tensor] = {}
            for name in ("lr", "weight_decay", "gradient"):
                values = [s["blocks"][place][name] if s else 1.0 for s in rows]
                factors[name] = _per_member(p, values)
            index = row_index(block["ranges"], p.device, 0, first["size"])
            self.blocks.append(Block(first["axis"] + 1, index, **factors))

    def keep(self, members: Tensor) -> "StackedRows":
        """Return the same for these members only."""
        kept = copy(self)
        kept.decoupled = self.decoupled[members]
        kept.blocks = []
        for block in self.blocks:
            kept.blocks.append(
                replace(
                    block,
                    lr=_chosen(block.lr, members),
                    weight_decay=_chosen(block.weight_decay, members),
                    gradient=_chosen(block.gradient, members),
                )
            )
        return kept

    def gradient(self, p: Tensor, g: Tensor, weight_decay: Tensor) -> Tensor:
        """Return the gradient that the update sees."""
        penalty = _like(weight_decay, p) * (1 - self.decoupled)
        changed = g.clone()
        for block in self.blocks:
            block.scale_gradient(p, changed, penalty)
        return changed

    def before(self, p: Tensor) -> list[Tensor]:
        """Return the rows before a step."""
        return [block.rows(p) for block in self.blocks]

    def scale_step(
        self, p: Tensor, before: Sequence[Tensor], lr: Tensor, weight_decay: Tensor
    ) -> None:
        """Scale the step that the rows of `p` have made."""
        shrinkage = _like(lr * weight_decay, p) * self.decoupled
        for block, old in zip(self.blocks, before, strict=True):
            block.scale_step(p, old, shrinkage)


def same_rows(first: RowSettings, other: RowSettings) -> bool:
    """Return whether two entries are about the same rows, whatever their factors."""
    return _without_factors(first) == _without_factors(other)


def _without_factors(rows: RowSettings) -> list[object]:
    return [rows["axis"], rows["size"], [block["ranges"] for block in rows["blocks"]]]


def _chosen(factor: Number, members: Tensor) -> Number:
    if isinstance(factor, Tensor):
        return factor[members]
    return factor


def _per_member(p: Tensor, values: Sequence[float]) -> Tensor:
    return _like(torch.tensor(values, dtype=torch.float64, device=p.device), p)


def _like(x: Tensor, p: Tensor) -> Tensor:
    """Return (K,) numbers in the shape (K, 1, ..., 1)."""
    return x.to(torch.promote_types(p.dtype, torch.float32)).view(-1, *[1] * (p.dim() - 1))
