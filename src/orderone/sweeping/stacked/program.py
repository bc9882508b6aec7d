"""The losses of all members in one call, for any module that torch.vmap can map."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from orderone.measure.batches import Loss, loss_of
from orderone.sweeping.stacked.errors import NotStackable
from orderone.sweeping.stacked.paths import FastPaths


class Program:
    """`losses(tensors, batch)`, where tensors and the leaves of the batch have a leading axis of members. A batch may also
    be shared by all."""

    def __init__(self, model: nn.Module, loss: Loss | None, precision: torch.dtype | None):
        self.model, self.loss, self.precision = model, loss, precision
        self.device = next(model.parameters()).device.type
        self.buffers = [name for name, _ in model.named_buffers()]

    def losses(
        self, tensors: Mapping[str, Tensor], batch: Any, shared: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(K,), and the buffers that the forward pass has replaced. Those that it changes in place are changed."""
        members = len(next(iter(tensors.values())))

        def one(own: dict[str, Tensor], inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
            given = dict(own)
            with FastPaths(members):
                # functional_call writes what the module holds afterwards back into `own`
                loss = loss_of(lambda *args, **named: functional_call(self.model, own, args, named), inputs, self.loss)
            return loss, {name: own[name] for name in self.buffers if own[name] is not given[name]}

        axes = tree_map(lambda x: 0 if isinstance(x, Tensor) and not shared else None, batch)
        # no cache of rounded weights: a graph that is captured must round them itself
        autocast = torch.autocast(self.device, self.precision, enabled=self.precision is not None, cache_enabled=False)
        with self.explained(), autocast, _no_nested_tensors():
            return torch.vmap(one, in_dims=(0, axes), randomness="different")(dict(tensors), batch)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What torch cannot do for many members at once, with the name of the module."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            raise NotStackable(
                f"{self._offender(error)} cannot be run for many members at once: {str(error).splitlines()[0]}; train one "
                "after another (stacked=False), or write it without decisions that depend on values"
            ) from error

    def _offender(self, error: BaseException) -> str:
        """The innermost module that was running."""
        names = {id(module): name or "the model" for name, module in self.model.named_modules()}
        found, trace = "the model or the loss", error.__traceback__
        while trace is not None:
            module = trace.tb_frame.f_locals.get("self")
            if id(module) in names and isinstance(module, nn.Module):
                found = f"{names[id(module)]} ({type(module).__name__})"
            trace = trace.tb_next
        return found


@contextmanager
def _no_nested_tensors() -> Iterator[None]:
    """In evaluation nn.TransformerEncoder would pack padded rows, which depends on values."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
