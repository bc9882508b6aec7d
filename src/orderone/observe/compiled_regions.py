"""Passes of compiled modules while a probe watches: which program runs them.

A region is a module that the user compiled, by `torch.compile(module)` or `module.compile()`. While
a probe watches, all other compiled code runs uncompiled, so that hooks are called. A region runs

    UNRECORDED  the program of the user, without hooks
    EAGER       the code as written, with hooks
    RECORDED    a program of its own (`PassProgram`), after one uncompiled pass as a survey

A region whose recorded passes cannot be compiled runs them uncompiled, and a warning says why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from orderone.observe.inventory import clean, modules_by_name, unwrap, wrappers
from orderone.observe.pass_program import CollectedPass, PassProgram, warn_uncompiled
from orderone.observe.pass_survey import Choice
from orderone.torch_compat import (
    COMPILED_CALL,
    COMPILED_FORWARD,
    compilation_errors,
    compilation_reason,
    compiled_wrapper,
    compiler_context,
    has_backend,
)

# programs of each compiled module, by what they record: later probes use them again
_PROGRAMS: WeakKeyDictionary[nn.Module, dict[Choice, PassProgram]] = WeakKeyDictionary()


class PassKind(Enum):
    """How a pass of a region runs."""

    UNRECORDED = "the compiled program of the user"
    EAGER = "as written, with hooks"
    RECORDED = "a compiled program that records"


class Region(NamedTuple):
    """A compiled module."""

    name: str
    owner: nn.Module  # has the compiled function: a wrapper, or the module itself
    module: nn.Module
    attribute: str  # of the owner: the compiled function

    @property
    def is_root(self) -> bool:
        """Whether the region is the whole model."""
        return not self.name


@runtime_checkable
class PassWatcher(Protocol):
    """Interface of a probe that follows the passes of regions."""

    def begin_pass(self, is_root: bool) -> PassKind:
        """Choose how a pass of a region runs; `is_root` if the region is the whole model."""
        ...

    def end_pass(self) -> None:
        """End the pass of a region."""
        ...

    def collect(self, collected: CollectedPass) -> None:
        """Take the records of a pass."""
        ...


@runtime_checkable
class Hooks(Protocol):
    """Hooks of a probe on the modules of a model."""

    def paused(self, keep: str | None = None) -> AbstractContextManager[None]:
        """Remove all hooks inside the context, except those on one module."""
        ...


def regions_of(model: nn.Module) -> list[Region]:
    """Return the outermost compiled modules of a model."""
    named = [("", wrapper) for wrapper in wrappers(model)]
    for path, module in unwrap(model).named_modules():
        named.append((clean(f"{path}.").removesuffix("."), module))
    regions: list[Region] = []
    for name, owner in named:
        region = _region(name, owner)
        if region is not None and not any(_is_inside(name, other.name) for other in regions):
            regions.append(region)
    return regions


def _region(name: str, owner: nn.Module) -> Region | None:
    if not has_backend(compiler_context(owner)):
        return None
    if not compiled_wrapper(owner):
        return Region(name, owner, owner, COMPILED_CALL)
    _, *inner = wrappers(owner)
    if len(inner) > 1:  # compiled around another wrapper (DistributedDataParallel)
        return None
    return Region(name, owner, inner[0], COMPILED_FORWARD)


def _is_inside(name: str, region: str) -> bool:
    return not region or name == region or name.startswith(f"{region}.")


@contextmanager
def redirected(
    model: nn.Module,
    regions: Sequence[Region],
    watcher: PassWatcher,
    hooks: Hooks,
    choice: Choice,
) -> Iterator[None]:
    """Let a watcher choose how the passes of compiled modules run, inside the context.

    `choice` is what programs record: those of its modules that are inside of a region.
    """
    modules = modules_by_name(model)
    with ExitStack() as stack:
        for region in regions:
            inside = {
                name: module
                for name, module in modules.items()
                if name in choice.modules and name != region.name and _is_inside(name, region.name)
            }
            program = getattr(region.owner, region.attribute)
            call = _Call(region, program, inside, watcher, hooks, choice)
            setattr(region.owner, region.attribute, call)
            stack.callback(setattr, region.owner, region.attribute, program)
        yield


class _Call:
    """Callable that a region runs instead of its compiled program."""

    def __init__(
        self,
        region: Region,
        program: Callable[..., Any],
        modules: Mapping[str, nn.Module],
        watcher: PassWatcher,
        hooks: Hooks,
        choice: Choice,
    ):
        self._region = region
        self._program = program
        self._modules = modules
        self._watcher = watcher
        self._hooks = hooks
        self._recording = _recording(region, choice._replace(modules=frozenset(modules)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind = self._watcher.begin_pass(self._region.is_root)
        try:
            if kind == PassKind.UNRECORDED:
                with self._hooks.paused(), torch.compiler.set_stance("default"):
                    return self._program(*args, **kwargs)
            if kind == PassKind.EAGER or self._recording.reason is not None:
                return self._as_written(args, kwargs)
            return self._recorded(args, kwargs)
        finally:
            self._watcher.end_pass()

    def _as_written(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self._without_program():
            return self._region.module(*args, **kwargs)

    def _recorded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        recording = self._recording
        if not recording.is_surveyed:
            output = recording.survey(
                self._region.module, self._modules, lambda: self._as_written(args, kwargs)
            )
            self._warn()
            return output
        buffers: list[tuple[Tensor, Tensor]] = []
        if not recording.has_run:
            buffers = [(buffer, buffer.clone()) for buffer in self._region.module.buffers()]
        try:
            with self._hooks.paused(self._region.name), self._without_program():
                output, collected = recording.run(self._region.module, self._modules, args, kwargs)
        except compilation_errors() as error:
            recording.reason = f"torch.compile failed: {compilation_reason(error)}"
            self._warn()
            for buffer, content in buffers:  # parts of the program may have run
                buffer.data.copy_(content)
            return self._as_written(args, kwargs)
        if collected is None:
            recording.reason = "its calls of modules differ from pass to pass"
            self._warn()
        else:
            self._watcher.collect(collected)
        return output

    @contextmanager
    def _without_program(self) -> Iterator[None]:
        """Let a module that is compiled in place run as written."""
        owner, attribute = self._region.owner, self._region.attribute
        if attribute != COMPILED_CALL:
            yield
            return
        setattr(owner, attribute, None)
        try:
            yield
        finally:
            setattr(owner, attribute, self)

    def _warn(self) -> None:
        if self._recording.reason is not None:
            warn_uncompiled(self._region.name, self._recording.reason)


def _recording(region: Region, choice: Choice) -> PassProgram:
    """Return the program that records this choice, the same one as in earlier probes."""
    programs = _PROGRAMS.setdefault(region.module, {})
    if choice not in programs:
        programs[choice] = PassProgram(choice, compiler_context(region.owner))
    return programs[choice]
