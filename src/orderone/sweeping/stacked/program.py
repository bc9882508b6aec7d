"""The losses of all members in one call, for any module that torch.vmap can map."""

from collections.abc import Mapping
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

    def losses(self, tensors: Mapping[str, Tensor], batch: Any, shared: bool = False) -> Tensor:
        members = len(next(iter(tensors.values())))

        def one(own: dict[str, Tensor], inputs: Any) -> Tensor:
            with FastPaths(members):
                return loss_of(lambda *args, **named: functional_call(self.model, own, args, named), inputs, self.loss)

        axes = tree_map(lambda x: 0 if isinstance(x, Tensor) and not shared else None, batch)
        # no cache of rounded weights: a graph that is captured must round them itself
        autocast = torch.autocast(self.device, self.precision, enabled=self.precision is not None, cache_enabled=False)
        try:
            with autocast:
                return torch.vmap(one, in_dims=(0, axes), randomness="different")(dict(tensors), batch)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
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
