"""What every module reads and gives, as it happens: hooks that are gone when the context closes,
however it closes."""

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orderone.observe.device_queue import version
from orderone.observe.inventory import modules_by_name
from orderone.observe.moments import is_measurable
from orderone.torch_compat import DisableTorchFunction, tree_leaves

Sink = Callable[[str, str, Tensor], None]  # module, "input" or "output", tensor


@contextmanager
def watching(
    model: nn.Module,
    sink: Sink,
    wanted: Callable[[str], bool] = lambda name: True,
    kinds: Collection[str] = ("input", "output"),
    listens: Callable[[str], bool] = lambda kind: True,
) -> Iterator[None]:
    """Every call of every module with a `wanted` name goes to `sink`, while it `listens`. Compiled
    code has no hooks to call, so that inside the context the model runs as it is written."""
    handles = []
    try:
        for name, module in modules_by_name(model).items():
            if wanted(name):
                handles += _hooks(name, module, sink, kinds, listens)
        with as_written():
            yield
    finally:
        for handle in handles:
            handle.remove()


def as_written() -> Any:
    """Models that were compiled run as they are written; afterwards their compiled code is used
    again."""
    return torch.compiler.set_stance("force_eager")


def _hooks(
    name: str, module: nn.Module, sink: Sink, kinds: Collection[str], listens: Callable[[str], bool]
) -> Iterator[RemovableHandle]:
    """An input is seen before the call: the module may write into it. Looking is no concern of
    modes that watch what torch is asked for, and each of them would take longer than the look."""
    own = weakref.ref(module)

    def before(called: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        if called is own() and listens("input"):
            with DisableTorchFunction():
                first = main_tensor(args[0]) if args else None  # mostly there, and found fast
                first = main_tensor((args, kwargs)) if first is None else first
                if first is not None:
                    sink(name, "input", first)

    def after(called: nn.Module, args: tuple, output: Any) -> None:
        if called is own() and listens("output"):
            with DisableTorchFunction():
                signal = main_tensor(output)
                if signal is not None:
                    sink(name, "output", signal)

    if "input" in kinds:
        yield module.register_forward_pre_hook(before, with_kwargs=True)
    if "output" in kinds:
        yield module.register_forward_hook(after)


def is_own(module: nn.Module) -> Callable[[nn.Module], bool]:
    """Whether a called module is this one. Copies made inside the context carry the hooks on, and
    are nobody's concern."""
    known = weakref.ref(module)
    return lambda called: known() is called


def main_tensor(value: Any) -> Tensor | None:
    """The tensor that carries the signal: logits by name, otherwise the first real or complex one
    that is no scalar."""
    if isinstance(value, Tensor):
        return value if _is_signal(value) else None
    named = getattr(value, "logits", None)
    if isinstance(named, Tensor) and _is_signal(named):
        return named
    return next((x for x in tree_leaves(value) if isinstance(x, Tensor) and _is_signal(x)), None)


def _is_signal(x: Tensor) -> bool:
    return x.dim() > 0 and is_measurable(x)


class Identities:
    """Numbers for tensors. What passes through several modules (the output of a block is the input
    of the next) is one object, and unless it was changed in between it keeps its number."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._given = 0

    def get(self, x: Tensor) -> int | None:
        found = self._known.get(id(x))
        if found is not None and found[0]() is x and found[1] == version(x):
            return found[2]
        return None

    def number(self, x: Tensor) -> int:
        """The number of `x`, the next one if it has none."""
        found = self.get(x)
        if found is None:
            found = self._given
            self._given = self._given + 1
            self.put(x, found)
        return found

    def put(self, x: Tensor, number: int) -> None:
        self._known[id(x)] = (weakref.ref(x), version(x), number)
