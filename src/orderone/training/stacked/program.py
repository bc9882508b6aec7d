"""The losses of all members in one call, for any module that torch.vmap can map."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from orderone.observe.batches import Loss, loss_of
from orderone.torch_compat import set_vmap_fallback_warning, tree_map, version_counter
from orderone.training.stacked.alike import description
from orderone.training.stacked.constants import Constants
from orderone.training.stacked.decisions import Divided
from orderone.training.stacked.errors import NotCapturable, NotStackable
from orderone.training.stacked.groups import Losses, in_groups, must_be_the_same, must_be_unchanged
from orderone.training.stacked.recomputed import kept_activations
from orderone.training.stacked.recurrent import own_weights
from orderone.training.stacked.vmap_overrides import FastPaths


class Program:
    """`losses(tensors, batch)`, where tensors and the leaves of the batch have a leading axis of
    members. A batch may also be shared by all."""

    def __init__(self, model: nn.Module, loss: Loss | None, precision: torch.dtype | None):
        self.model = model
        self.loss = loss
        self.precision = precision
        self.device = next(model.parameters()).device.type
        self.buffers = [name for name, _ in model.named_buffers()]
        self.constants = Constants() if self.device == "cuda" else None
        self.may_divide = False  # known once members have differed in a decision

    def losses(self, tensors: Mapping[str, Tensor], batch: Any, shared: bool = False) -> Losses:
        """(K,), and the buffers that the forward pass has replaced. Those that it changes in place
        are changed."""
        versions = {name: version_counter(tensors[name]) for name in self.buffers}
        try:
            return self._together(tensors, batch, shared)
        except Divided as divided:
            must_be_unchanged(tensors, versions)
            groups = divided.groups
        run = lambda own, given: self.losses(own, given, shared)  # noqa: E731
        before = None if self.may_divide else description(self.model)
        self.may_divide = True
        found = in_groups(groups, run, tensors, batch, self.buffers, shared)
        if before is not None:
            must_be_the_same(before, description(self.model))
        return found

    def _together(self, tensors: Mapping[str, Tensor], batch: Any, shared: bool) -> Losses:
        members = len(next(iter(tensors.values())))

        def one(own: dict[str, Tensor], inputs: Any) -> Losses:
            given = dict(own)
            with FastPaths(members, self.constants), own_weights(self.model, own):
                # functional_call writes what the module holds afterwards back into `own`
                loss = loss_of(
                    lambda *args, **named: functional_call(self.model, own, args, named),
                    inputs,
                    self.loss,
                )
            return loss, {name: own[name] for name in self.buffers if own[name] is not given[name]}

        axes = tree_map(lambda x: 0 if isinstance(x, Tensor) and not shared else None, batch)
        # no cache of rounded weights: a graph that is captured must round them itself
        autocast = torch.autocast(
            self.device, self.precision, enabled=self.precision is not None, cache_enabled=False
        )
        with (
            self.explained(),
            autocast,
            _no_nested_tensors(),
            _no_fallback_warnings(),
            kept_activations(),
        ):
            return torch.vmap(one, in_dims=(0, axes), randomness="different")(dict(tensors), batch)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What torch cannot do for many members at once, with the name of the module."""
        try:
            yield
        except (torch.OutOfMemoryError, NotCapturable):
            raise
        except (RuntimeError, NotImplementedError) as error:
            raise NotStackable(
                f"{self._offender(error)} cannot be run for many members at once:"
                f" {str(error).splitlines()[0]}; train one after another (stacked=False), or write"
                " it without decisions that depend on values"
            ) from error

    def _offender(self, error: BaseException) -> str:
        """The innermost module that was running."""
        names = {id(module): name or "the model" for name, module in self.model.named_modules()}
        found = "the model or the loss"
        trace = error.__traceback__
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


@contextmanager
def _no_fallback_warnings() -> Iterator[None]:
    """Do not let torch ask the user to report operations that vmap runs in a loop over the
    members."""
    set_vmap_fallback_warning(False)
    try:
        yield
    finally:
        set_vmap_fallback_warning(True)  # torch cannot say what it was; this is its default
