"""A second compiled program of a module, which records the sizes of its passes.

Compiled code calls no hooks that were registered after its compilation. So the passes of recorded
steps run in a program of their own, which is compiled with hooks on all inner modules: hooks size
inputs and outputs, and let a `Tap` size the gradients of outputs. All other passes run the
program of the user, which pays nothing.

The first recorded pass runs uncompiled; its survey lists the events that the program records. Like
the records of an uncompiled pass, the program sizes a tensor of several modules once. A later pass
with other events is not recorded, and the module then runs uncompiled in recorded steps.

The gradient of an output is that of the value that a module returns. If the module itself uses the
tensor elsewhere before it returns it, that part is not included.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, no_type_check

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orderone.core.errors import with_code
from orderone.observe.pass_survey import Choice, Event, Survey, replaced
from orderone.observe.quantities import Quantity
from orderone.observe.traced_sizes import Tap, sizes
from orderone.torch_compat import (
    COMPILED_FORWARD,
    recording_compiler,
    tree_leaves,
)

Key = tuple[str, Quantity]
MOST_GRAPHS = 8  # of one program: torch.compile, too, gives a function up after 8 programs


@dataclass
class CollectedPass:
    """Records of one pass of a program. `rows` has a gradient after the backward pass."""

    program: "PassProgram"
    counts: list[int]
    sizes: Tensor  # (4, sizes)
    rows: Tensor | None  # (gradients, 4)
    is_reached: bool = False  # whether a backward pass has reached the outputs
    has_arrived: bool = False  # whether it has brought sizes of gradients

    def watch(self, output: object) -> None:
        """Notice the backward pass."""

        def reached(gradient: Tensor | None) -> None:
            self.is_reached |= gradient is not None

        if self.rows is None:
            return
        for x in tree_leaves(output):
            if isinstance(x, Tensor) and x.requires_grad:
                x.register_hook(reached)

    def end(self) -> None:
        """Give the program up if a backward pass brought no sizes of gradients.

        `torch.autograd.grad` computes the gradients of parameters only.
        """
        if self.is_reached and not self.has_arrived:
            self.program.reason = "the backward pass computes the gradients of parameters only"
            warn_uncompiled("", self.program.reason + " (this step has no output gradients)")

    def entries(self) -> Iterator[tuple[Key, int]]:
        """Yield the keys of inputs and outputs with the numbers of their sizes."""
        for event in self.program.events:
            if event.size is not None:
                yield (event.module, event.quantity), event.size

    def gradients(self) -> Iterator[tuple[Key, int, int]]:
        """Yield the keys of output gradients with the numbers of their rows and entries."""
        for event in self.program.events:
            if event.row is not None and event.size is not None:
                key = (event.module, Quantity.OUTPUT_GRADIENT)
                yield key, event.row, self.counts[event.size]


def warn_uncompiled(name: str, reason: str) -> None:
    """Say why recorded steps run uncompiled."""
    text = (
        f"{name or 'model'}: recorded steps run uncompiled, since {reason}; steps that record"
        " nothing run compiled, so a larger every= costs less"
    )
    warnings.warn(with_code(text, "probe-uncompiled"), stacklevel=2)


@contextmanager
def without_torch_warning() -> Iterator[None]:
    """Ignore a warning of torch about its own way to trace autograd functions.

    Without filters that raise errors, torch's warning is not shown, and filters stay as they are.
    """
    if not any(action == "error" for action, *_ in warnings.filters):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
        yield


def class_forward(module: nn.Module) -> FunctionType | None:
    """Return the forward function of a module's class; None if the module has another one."""
    forward = getattr(type(module), COMPILED_FORWARD, None)
    if COMPILED_FORWARD in vars(module) or not isinstance(forward, FunctionType):
        return None
    return forward


def copy_of(function: FunctionType) -> FunctionType:
    """Return a function with a copy of the code."""
    code = function.__code__.replace()
    copied = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


# --- the program ----------------------------------------------------------------------------------


class PassProgram:
    """A compiled program of a module that records its passes; it has no reference to the module."""

    def __init__(self, choice: Choice, context: Any):
        self.choice: Choice = choice
        self.events: list[Event] = []
        self.is_surveyed: bool = False
        self.has_run: bool = False
        self.reason: str | None = None  # why the module runs uncompiled in recorded steps
        self._device = torch.device("cpu")
        self._row_count = 0
        self._compile = recording_compiler(context, MOST_GRAPHS)
        self._forward: Callable[..., Any] | None = None
        self._hooks = {name: self._hooks_of(name) for name in choice.modules}
        # of the pass that is running
        self._position = 0
        self._differs = False
        self._counts: list[int] = []
        self._sizes: list[Tensor] = []
        self._rows: Sequence[Tensor] = ()

    def survey(
        self, module: nn.Module, modules: Mapping[str, nn.Module], action: Callable[[], Any]
    ) -> Any:
        """Run `action`, an uncompiled pass of the module, and list its events."""
        survey = Survey(self.choice)
        handles: list[RemovableHandle] = []
        for name in self.choice.modules:
            before, after = survey.hooks(name)
            handles.append(modules[name].register_forward_pre_hook(before, with_kwargs=True))
            handles.append(modules[name].register_forward_hook(after))
        try:
            result = action()
        finally:
            for handle in handles:
                handle.remove()
        survey.end(result)
        if class_forward(module) is None:
            survey.reason = "its forward is not a method of its class"
        self.events = survey.events
        self.reason = survey.reason
        self._row_count = survey.rows
        if survey.device is not None:
            self._device = survey.device
        self.is_surveyed = True
        return result

    def run(
        self,
        module: nn.Module,
        modules: Mapping[str, nn.Module],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, CollectedPass | None]:
        """Return the output of a pass and what it recorded; None if its events differ."""
        rows = self._begin()
        handles = self._register(modules)
        try:
            with (
                torch.compiler.set_stance("default"),
                self._compiled_forward(module),
                without_torch_warning(),
            ):
                output = module(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
            counts = self._counts
            sizes = self._sizes
            self._counts = []
            self._sizes = []
            self._rows = ()
        self.has_run = True
        if self._differs or self._position != len(self.events):
            return output, None
        stacked = torch.zeros(4, 0, dtype=torch.float64, device=self._device)
        if sizes:
            stacked = torch.stack(sizes, 1)
        collected = CollectedPass(self, counts, stacked, rows)
        collected.watch(output)
        return output, collected

    def _begin(self) -> Tensor | None:
        """Forget the last pass; return rows for the sizes of gradients, if there are any."""
        self._position = 0
        self._differs = False
        self._counts = []
        self._sizes = []
        self._rows = ()
        if not self._row_count:
            return None
        rows = torch.zeros(self._row_count, 4, dtype=torch.float64, device=self._device)
        rows.requires_grad_()
        self._rows = list(rows.unbind(0))
        return rows

    @contextmanager
    def _compiled_forward(self, module: nn.Module) -> Iterator[None]:
        """Let a module run a compiled copy of its forward function; its hooks run outside.

        torch.compile keeps programs with the code of a function, and limits their number; those of
        the user should not count ours.
        """
        if self._forward is None:
            forward = class_forward(module)
            assert forward is not None  # the survey gave a reason
            self._forward = self._compile(copy_of(forward))
        module.forward = MethodType(self._forward, module)
        try:
            yield
        finally:
            del module.forward

    def _register(self, modules: Mapping[str, nn.Module]) -> list[RemovableHandle]:
        handles: list[RemovableHandle] = []
        for name, (before, after) in self._hooks.items():
            if self.choice.inputs:
                handles.append(modules[name].register_forward_pre_hook(before, with_kwargs=True))
            handles.append(modules[name].register_forward_hook(after))
        return handles

    # --- what the compiler traces, without checks of types ----------------------------------------

    def _hooks_of(self, name: str) -> tuple[Callable[..., None], Callable[..., Any]]:
        @no_type_check
        def before(called: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            event = self._next(name, Quantity.INPUT)
            if event is not None and event.is_new:
                self._size(tree_leaves((args, kwargs))[event.leaves[0]])

        @no_type_check
        def after(called: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            event = self._next(name, Quantity.OUTPUT)
            if event is None or not event.leaves:
                return None
            x = tree_leaves(output)[event.leaves[0]]
            if event.is_new:
                self._size(x)
            if not event.taps or event.row is None:
                return None
            return replaced(output, event.leaves, Tap.apply(x, self._rows[event.row]))

        return before, after

    @no_type_check
    def _size(self, x: Tensor) -> None:
        self._counts.append(x.numel())
        self._sizes.append(sizes(x.detach(), 0.0))

    @no_type_check
    def _next(self, name: str, quantity: Quantity) -> Event | None:
        """Return the next event of the survey; None if this call is another one."""
        position = self._position
        self._position = position + 1
        if self._differs or position >= len(self.events):
            self._differs = True
            return None
        event = self.events[position]
        if event.module != name or event.quantity != quantity:
            self._differs = True
            return None
        return event
