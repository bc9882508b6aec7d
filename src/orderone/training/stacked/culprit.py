"""Name of the first module whose output differs between two ways to train the same members."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from orderone.torch_compat import (
    get_unwrapped,
    is_batchedtensor,
    maybe_get_bdim,
    outside_vmap,
    tree_leaves,
)
from orderone.training.stacked.ways import OneByOne, Together


@dataclass(frozen=True)
class Call:
    """One call of a module: its floating point inputs and outputs."""

    module: str
    kind: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def first_deviating_module(alone: OneByOne, together: Together) -> str | None:
    """Run the first forward pass both ways, and say where they part; None if they do not.

    Modules are listed in the order in which their calls end, so that a module comes before the one
    that contains it.
    """
    stacked: list[Call] = []
    model = together.stack.program.model
    with _recorded(model, stacked, partial(_of_all_members, members=len(alone))):
        together.gradients(0)
    for k in reversed(range(len(alone))):
        one = alone.step_of(k)
        calls: list[Call] = []
        with _recorded(one.module, calls, _detached):
            OneByOne([lambda one=one: one], [alone.seeds[k]]).gradients(0)
        found = _first(calls, stacked, k)
        if found is not None:
            return found
    return None


def _first(calls: Sequence[Call], stacked: Sequence[Call], member: int) -> str | None:
    for call, other in zip(calls, stacked, strict=False):
        if call.module != other.module:
            return f"{_named(call)} is called where the stack calls {_named(other)}"
        if _equal(call.outputs, other.outputs, member):
            continue
        if _equal(call.inputs, other.inputs, member):
            return f"the output of {_named(call)} is the first that differs"
        parent = call.module.rpartition(".")[0]
        place = parent or "the model"
        return (
            f"the output of {_named(call)} is the first that differs, and so do its inputs: look"
            f" at the code of {place} that makes them"
        )
    if len(calls) != len(stacked):
        return f"the stack calls {len(stacked)} modules instead of {len(calls)}"
    return None


def _named(call: Call) -> str:
    return f"{call.module or 'the model'} ({call.kind})"


def _equal(a: Sequence[Tensor], b: Sequence[Tensor], member: int) -> bool:
    if len(a) != len(b):
        return False
    for x, stacked in zip(a, b, strict=True):
        if len(stacked) <= member:
            return True  # members that decide differently are run in groups
        y = stacked[member]
        if x.shape != y.shape:
            return False
        if not x.numel():
            continue
        tolerance = torch.finfo(x.dtype).eps ** 0.5 * float(x.abs().nan_to_num(0.0).max())
        if not torch.allclose(x, y.to(x.dtype), rtol=0.0, atol=tolerance, equal_nan=True):
            return False
    return True


@contextmanager
def _recorded(
    model: nn.Module, calls: list[Call], read: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Add the calls of all modules to `calls`."""
    handles = []
    for name, module in model.named_modules():

        def record(
            module: nn.Module,
            args: tuple[object, ...],
            named: dict[str, object],
            output: object,
            name: str = name,
        ) -> None:
            inputs = [read(x) for x in tree_leaves((args, named)) if _is_read(x)]
            outputs = [read(x) for x in tree_leaves(output) if _is_read(x)]
            calls.append(Call(name, type(module).__name__, inputs, outputs))

        handles.append(module.register_forward_hook(record, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_read(x: object) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def _detached(x: Tensor) -> Tensor:
    return x.detach().clone()


def _of_all_members(x: Tensor, members: int) -> Tensor:
    """Return the tensors of all members inside vmap, (K, ...)."""
    with outside_vmap():
        if is_batchedtensor(x):
            return get_unwrapped(x).movedim(maybe_get_bdim(x), 0).detach().clone()
        return x.detach().clone().expand(members, *x.shape)
