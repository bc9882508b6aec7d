"""Losses of all members in one call, for any module that torch.vmap can map."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from orderone.observe.batches import Loss, loss_of
from orderone.observe.recomputed import without_recomputation
from orderone.torch_compat import set_vmap_fallback_warning, tree_map, version_counter
from orderone.training.model_structure import layout_of
from orderone.training.stacked.alike import description
from orderone.training.stacked.constants import Constants
from orderone.training.stacked.custom_functions import functions_one_by_one
from orderone.training.stacked.decisions import Divided
from orderone.training.stacked.draws import MemberDraws
from orderone.training.stacked.errors import NotCapturable, NotStackable, is_out_of_memory
from orderone.training.stacked.groups import (
    Batch,
    Losses,
    in_groups,
    must_be_the_same,
    must_be_unchanged,
)
from orderone.training.stacked.recurrent import member_weights
from orderone.training.stacked.vmap_overrides import FastPaths


class Program:
    """Computes `losses(tensors, batch)` of all members.

    Tensors and the leaves of the batch have a leading axis of members. A batch may also be shared
    by all members.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        precision: torch.dtype | None,
        draws: MemberDraws | None = None,
    ):
        self.model: nn.Module = model
        self.loss = loss
        self.precision = precision
        self.device: str = next(model.parameters()).device.type
        self.buffers: list[str] = [name for name, _ in model.named_buffers()]
        self.tied: dict[str, str] = tied_names(model)
        self.constants: Constants | None = None
        if self.device == "cuda":
            self.constants = Constants()
        self.may_divide: bool = False  # True after members have made different decisions
        self.passes: list[Mapping[str, Tensor]] = []  # tensors of each group of members
        self.draws = draws  # None: members draw other numbers than in stand-alone runs

    def losses(self, tensors: Mapping[str, Tensor], batch: Batch, shared: bool = False) -> Losses:
        """Return the losses (K,), and the buffers that the forward pass has replaced.

        Buffers that the forward pass writes into are changed in place.
        """
        versions = {name: version_counter(tensors[name]) for name in self.buffers}
        if self.draws is not None:
            self.draws.begin()
        try:
            losses = self._together(tensors, batch, shared)
            self.passes.append(tensors)
            return losses
        except Divided as divided:
            must_be_unchanged(tensors, versions)
            groups = divided.groups
        if self.draws is not None:
            self.draws.rewind()

        def run(
            members: Sequence[int], group_tensors: dict[str, Tensor], group_batch: Batch
        ) -> Losses:
            draws = self.draws
            if draws is None:
                return self.losses(group_tensors, group_batch, shared)
            self.draws = draws.part(members)
            try:
                losses = self.losses(group_tensors, group_batch, shared)
                draws.put(members, self.draws)
            finally:
                self.draws = draws
            return losses

        if self.may_divide:
            return in_groups(groups, run, tensors, batch, self.buffers, shared)
        self.may_divide = True
        before = description(self.model)
        losses = in_groups(groups, run, tensors, batch, self.buffers, shared)
        must_be_the_same(before, description(self.model))
        return losses

    def _together(self, tensors: Mapping[str, Tensor], batch: Batch, shared: bool) -> Losses:
        members = len(next(iter(tensors.values())))

        def member_loss(member_tensors: dict[str, Tensor], inputs: Batch) -> Losses:
            return self._member_loss(members, member_tensors, inputs)

        def member_axis(leaf: object) -> int | None:
            if isinstance(leaf, Tensor) and not shared:
                return 0
            return None

        axes = tree_map(member_axis, batch)
        # no cache of cast weights: a captured graph must cast them itself
        autocast = torch.autocast(
            self.device, self.precision, enabled=self.precision is not None, cache_enabled=False
        )
        with (
            self.explained(),
            autocast,
            _no_nested_tensors(),
            _no_fallback_warnings(),
            without_recomputation(),
        ):
            losses = torch.vmap(member_loss, in_dims=(0, axes), randomness="different")
            return losses(dict(tensors), batch)

    def _member_loss(
        self, members: int, member_tensors: dict[str, Tensor], inputs: Batch
    ) -> Losses:
        """Return the loss of one member inside of vmap, and the buffers that its pass replaces."""
        held = dict(member_tensors)
        for name, first in self.tied.items():
            held[name] = member_tensors[first]
        before = dict(held)

        def call(*args: object, **named: object) -> object:
            # writes what the module holds afterwards back into `held`; a pass may end a tie
            return functional_call(self.model, held, args, named, tie_weights=False)

        mode = FastPaths(members, self.constants, self.draws)
        with mode, functions_one_by_one(mode), member_weights(self.model, member_tensors):
            loss = loss_of(call, inputs, self.loss)
        replaced: dict[str, Tensor] = {}
        after: Mapping[str, Tensor | None] = held
        for name, tensor in after.items():
            if tensor is before[name]:
                continue
            if name not in self.buffers or tensor is None:
                raise exchanged(name)
            if layout_of(tensor) != layout_of(before[name]):
                raise _resized(name, before[name], tensor)
            replaced[name] = tensor
        return loss, replaced

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replace torch's errors about vmap by a NotStackable that names the module."""
        try:
            yield
        except NotCapturable:
            raise
        except (RuntimeError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise
            raise NotStackable(
                f"{self._failing_module(error)} cannot be run for many members at once:"
                f" {str(error).splitlines()[0]}; train one after another (stacked=False), or"
                " rewrite it without decisions that depend on values",
                "not-vectorizable",
            ) from error

    def _failing_module(self, error: BaseException) -> str:
        """Return the name of the innermost module that was running."""
        names = {id(module): name or "the model" for name, module in self.model.named_modules()}
        failing = "the model or the loss"
        trace = error.__traceback__
        while trace is not None:
            module = trace.tb_frame.f_locals.get("self")
            if id(module) in names and isinstance(module, nn.Module):
                failing = f"{names[id(module)]} ({type(module).__name__})"
            trace = trace.tb_next
        return failing


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return the further names of tensors that several modules hold, with the first name of each.

    A module that has several names itself holds its tensors once.
    """
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for prefix, module in model.named_modules():
        own = {"recurse": False, "remove_duplicate": False}
        held = [
            *module.named_parameters(prefix, **own),
            *module.named_buffers(prefix, **own),
        ]
        for name, tensor in held:
            known = first.setdefault(id(tensor), name)
            if known != name:
                tied[name] = known
    return tied


def exchanged(name: str) -> NotStackable:
    """Return the error for a tensor that a pass has exchanged; the next pass has the old one."""
    return NotStackable(
        f"training puts another tensor in the place of {name}, or removes it, which has no"
        " effect in a stack; trained one after another",
        "stack-deviates",
    )


def _resized(name: str, before: Tensor, now: Tensor) -> NotStackable:
    return NotStackable(
        f"training replaces {name}, {layout_of(before)}, by {layout_of(now)}, but the buffers of a"
        " stack keep their shape and kind of numbers; trained one after another",
        "stack-deviates",
    )


@contextmanager
def _no_nested_tensors() -> Iterator[None]:
    """Stop nn.TransformerEncoder from packing padded rows in evaluation: it depends on values."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _no_fallback_warnings() -> Iterator[None]:
    """Silence torch's request to report operations that vmap runs in a loop over the members."""
    set_vmap_fallback_warning(False)
    try:
        yield
    finally:
        set_vmap_fallback_warning(True)  # the default; torch has no function to read it
