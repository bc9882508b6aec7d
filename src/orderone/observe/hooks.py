"""Hooks that show what every module reads and gives; they are removed when the context closes."""

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orderone.observe.device_queue import version
from orderone.observe.inventory import modules_by_name
from orderone.observe.moments import is_measurable
from orderone.observe.quantities import Quantity
from orderone.torch_compat import tree_leaves

Sink = Callable[[str, Quantity, Tensor], None]  # module, input or output, tensor


@contextmanager
def watching(
    model: nn.Module,
    sink: Sink,
    wanted: Callable[[str], bool] = lambda name: True,
    kinds: Collection[Quantity] = (Quantity.INPUT, Quantity.OUTPUT),
    listens: Callable[[Quantity], bool] = lambda quantity: True,
) -> Iterator[None]:
    """Send every call of every module with a `wanted` name to `sink`, while it `listens`.

    Compiled code has no hooks to call, so that inside the context the model runs as it is written.
    """
    handles: list[RemovableHandle] = []
    try:
        for name, module in modules_by_name(model).items():
            if wanted(name):
                handles += _hooks(name, module, sink, kinds, listens)
        with as_written():
            yield
    finally:
        for handle in handles:
            handle.remove()


def as_written() -> AbstractContextManager[object]:
    """Let compiled models run as they are written, inside the context."""
    return torch.compiler.set_stance("force_eager")


def _hooks(
    name: str,
    module: nn.Module,
    sink: Sink,
    kinds: Collection[Quantity],
    listens: Callable[[Quantity], bool],
) -> Iterator[RemovableHandle]:
    """Register the hooks of one module.

    An input is taken before the call: the module may write into it. Modes that watch calls of torch
    are switched off meanwhile; each of them would take longer than the hook.
    """
    is_this = is_own(module)

    def before(called: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if is_this(called) and listens(Quantity.INPUT):
            with torch._C.DisableTorchFunction():
                signal = main_tensor(args[0]) if args else None  # mostly there, and found fast
                if signal is None:
                    signal = main_tensor((args, kwargs))
                if signal is not None:
                    sink(name, Quantity.INPUT, signal)

    def after(called: nn.Module, args: tuple[object, ...], output: object) -> None:
        if is_this(called) and listens(Quantity.OUTPUT):
            with torch._C.DisableTorchFunction():
                signal = main_tensor(output)
                if signal is not None:
                    sink(name, Quantity.OUTPUT, signal)

    if Quantity.INPUT in kinds:
        yield module.register_forward_pre_hook(before, with_kwargs=True)
    if Quantity.OUTPUT in kinds:
        yield module.register_forward_hook(after)


def is_own(module: nn.Module) -> Callable[[nn.Module], bool]:
    """Return a test whether a called module is this one.

    Copies made inside the context carry the hooks on, and are not watched.
    """
    known = weakref.ref(module)
    return lambda called: known() is called


def main_tensor(value: object) -> Tensor | None:
    """Return the tensor that carries the signal.

    This is `logits`, by name, otherwise the first real or complex tensor that is no scalar.
    """
    if isinstance(value, Tensor):
        return value if _is_signal(value) else None
    logits = getattr(value, "logits", None)
    if isinstance(logits, Tensor) and _is_signal(logits):
        return logits
    for x in tree_leaves(value):
        if isinstance(x, Tensor) and _is_signal(x):
            return x
    return None


def _is_signal(x: Tensor) -> bool:
    return x.dim() > 0 and is_measurable(x)


class Identities:
    """Numbers of tensors.

    A tensor that passes through several modules (the output of a block is the input of the next) is
    one object. Unless it was changed in between, it keeps its number.
    """

    def __init__(self) -> None:
        # by id: the tensor, its version and its number
        self._known: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._next = 0

    def get(self, x: Tensor) -> int | None:
        """Return the number of `x`, None if it has none."""
        entry = self._known.get(id(x))
        if entry is None:
            return None
        tensor, known_version, number = entry
        if tensor() is x and known_version == version(x):
            return number
        return None

    def number(self, x: Tensor) -> int:
        """Return the number of `x`, the next one if it has none."""
        number = self.get(x)
        if number is None:
            number = self._next
            self._next += 1
            self.put(x, number)
        return number

    def put(self, x: Tensor, number: int) -> None:
        """Give `x` a number."""
        self._known[id(x)] = (weakref.ref(x), version(x), number)
