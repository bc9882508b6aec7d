"""Record inputs and outputs of every module, and attention scores, while a model runs.

All hooks are removed when the context closes, also after an error.

Attention scores are the inputs of a softmax, recorded where Python calls it. No module returns
scores, and fused attention never computes them. But they are the first quantity to grow when
queries and keys align and are divided by too small a power of the head size. For fused attention,
the scores are computed from its queries and keys. Masked entries are left out.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from orderone.observe.inventory import modules_by_name, unwrap
from orderone.observe.quantities import Quantity
from orderone.observe.tensor_facts import is_here, is_measurable, is_plain, version
from orderone.torch_compat import DisableTorchFunction, tree_leaves

Sink = Callable[[str, Quantity, Tensor], None]  # module, input or output, tensor
TorchFunction = Callable[..., Any]
HookMaker = Callable[[], Iterable[RemovableHandle]]  # registers the hooks of one module
_SOFTMAX = {torch.softmax, functional.softmax, Tensor.softmax, torch.special.softmax}
_FUSED = functional.scaled_dot_product_attention
_CALLED_BY_TORCH = {"softmax": functional.softmax, "scaled_dot_product_attention": _FUSED}
NO_WEIGHT = 80.0  # exp(-80) is 1e-35: scores that are this much lower than the largest are masked


# --- modules --------------------------------------------------------------------------------------


@contextmanager
def watching(
    model: nn.Module,
    sink: Sink,
    wanted: Callable[[str], bool] = lambda name: True,
    kinds: Collection[Quantity] = (Quantity.INPUT, Quantity.OUTPUT),
    listens: Callable[[Quantity], bool] = lambda quantity: True,
    begin: Callable[[], None] = lambda: None,
) -> Iterator["ModuleHooks"]:
    """Send every call of every module with a `wanted` name to `sink`, while `listens` is true.

    `begin` is called first, before each pass of the whole model. Compiled code calls no hooks:
    inside the context the model runs eagerly.
    """
    makers: dict[str, HookMaker] = {"": partial(_begin_hook, unwrap(model), begin)}
    for name, module in modules_by_name(model).items():
        if wanted(name):
            maker = partial(_hooks, name, module, sink, kinds, listens)
            if name in makers:
                makers[name] = partial(_both, makers[name], maker)
            else:
                makers[name] = maker
    hooks = ModuleHooks(makers)
    try:
        hooks.register(makers)
        with as_written():
            yield hooks
    finally:
        hooks.remove(makers)


def _begin_hook(root: nn.Module, begin: Callable[[], None]) -> Iterator[RemovableHandle]:
    is_root = is_own(root)

    def before(called: nn.Module, args: object) -> None:
        if is_root(called):
            begin()

    yield root.register_forward_pre_hook(before)


def _both(first: HookMaker, second: HookMaker) -> Iterator[RemovableHandle]:
    yield from first()
    yield from second()


class ModuleHooks:
    """Hooks on modules by their names; `paused` removes them for a while."""

    def __init__(self, makers: Mapping[str, HookMaker]):
        self._makers = makers
        self._handles: dict[str, list[RemovableHandle]] = {}

    def register(self, names: Iterable[str]) -> None:
        """Register the hooks of these modules."""
        for name in names:
            self._handles[name] = []
            self._handles[name] += self._makers[name]()

    def remove(self, names: Iterable[str]) -> None:
        """Remove the hooks of these modules."""
        for name in names:
            for handle in self._handles.pop(name, ()):
                handle.remove()

    @contextmanager
    def paused(self, keep: str | None = None) -> Iterator[None]:
        """Remove all hooks inside the context, except those on one module."""
        names = [name for name in self._handles if name != keep]
        self.remove(names)
        try:
            yield
        finally:
            self.register(names)


def as_written() -> AbstractContextManager[object]:
    """Run compiled models eagerly inside the context."""
    return torch.compiler.set_stance("force_eager")


def _hooks(
    name: str,
    module: nn.Module,
    sink: Sink,
    kinds: Collection[Quantity],
    listens: Callable[[Quantity], bool],
) -> Iterator[RemovableHandle]:
    """Register the hooks of one module.

    An input is recorded before the call, because the module may write to it. Modes that intercept
    calls of torch are off inside the hook; each of them would take longer than the hook.
    """
    is_this = is_own(module)

    def before(called: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if is_this(called) and listens(Quantity.INPUT):
            with DisableTorchFunction():
                signal = main_tensor(args[0]) if args else None  # usually here, and quick to find
                if signal is None:
                    signal = main_tensor((args, kwargs))
                if signal is not None:
                    sink(name, Quantity.INPUT, signal)

    def after(called: nn.Module, args: tuple[object, ...], output: object) -> None:
        if is_this(called) and listens(Quantity.OUTPUT):
            with DisableTorchFunction():
                signal = main_tensor(output)
                if signal is not None:
                    sink(name, Quantity.OUTPUT, signal)

    if Quantity.INPUT in kinds:
        yield module.register_forward_pre_hook(before, with_kwargs=True)
    if Quantity.OUTPUT in kinds:
        yield module.register_forward_hook(after)


def is_own(module: nn.Module) -> Callable[[nn.Module], bool]:
    """Return a test whether a called module is this one.

    Copies of a module that are made inside the context have its hooks too; they are not recorded.
    """
    known = weakref.ref(module)
    return lambda called: known() is called


def main_tensor(value: object) -> Tensor | None:
    """Return the tensor that carries the signal.

    This is `logits`, by name, otherwise the first real or complex tensor that is no scalar.
    """
    if isinstance(value, Tensor):
        if _is_signal(value):
            return value
        return None
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
    """A number for every tensor.

    A tensor that passes through several modules (the output of a block is the input of the next) is
    one object with one number, unless it is written to in between.
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


# --- attention scores -----------------------------------------------------------------------------


@contextmanager
def watching_scores(
    model: nn.Module, sink: Callable[[str, Callable[[], Tensor]], None]
) -> Iterator[None]:
    """Send the scores of every softmax to `sink`, with the innermost module that is being called.

    The scores are computed when `sink` calls its second argument.
    """
    running: list[str] = []  # names of the modules that are being called
    mode = _SoftmaxMode(lambda scores: sink(running[-1], scores))
    modes = ExitStack()

    def enter(name: str) -> None:
        if not running:  # only while the model runs: a mode slows every call of torch
            modes.enter_context(mode)
        running.append(name)

    def leave() -> None:
        running.pop()
        if not running:
            modes.close()

    handles: list[RemovableHandle] = []
    try:
        for name, module in modules_by_name(model).items():
            handles += _around_calls(module, lambda name=name: enter(name), leave)
        with as_written():
            yield
    finally:
        modes.close()
        for handle in handles:
            handle.remove()


def _around_calls(
    module: nn.Module, enter: Callable[[], None], leave: Callable[[], None]
) -> Iterator[RemovableHandle]:
    """Run `enter` before each call of a module, and `leave` after it."""
    is_this = is_own(module)

    def before(called: nn.Module, args: object) -> None:
        if is_this(called):
            enter()

    def after(called: nn.Module, args: object, output: object) -> None:
        if is_this(called):
            leave()

    yield module.register_forward_pre_hook(before, prepend=True)
    yield module.register_forward_hook(after, always_call=True)


class _SoftmaxMode(TorchFunctionMode):
    """Send the scores of every softmax to `sink`."""

    def __init__(self, sink: Callable[[Callable[[], Tensor]], None]):
        super().__init__()
        self.sink = sink

    def __torch_function__(
        self,
        func: TorchFunction,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with self._replaced_functions():
                return func(*args, **kwargs)
        self._watch(func, args, kwargs)
        return func(*args, **kwargs)

    def _watch(self, func: TorchFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if func in _SOFTMAX:
            self.sink(lambda: _unmasked(args[0] if args else kwargs["input"]))
        elif func is _FUSED:
            self.sink(lambda: _scores_of_fused(*args, **kwargs))

    @contextmanager
    def _replaced_functions(self) -> Iterator[None]:
        """Replace functions of torch.nn.functional by recording ones, inside the context.

        A mode does not receive the calls that torch's own Python functions make. If another probe
        has replaced them already, its replacement is called.
        """
        before = {name: getattr(functional, name) for name in _CALLED_BY_TORCH}
        try:
            for name, func in _CALLED_BY_TORCH.items():
                setattr(functional, name, self._watched(func, before[name]))
            yield
        finally:
            for name, func in before.items():
                setattr(functional, name, func)

    def _watched(self, func: TorchFunction, action: TorchFunction) -> TorchFunction:
        """Return a function that records a call as one of `func`, and calls `action`."""

        def call(*args: Any, **kwargs: Any) -> object:
            self._watch(func, args, kwargs)
            return action(*args, **kwargs)

        return call


@torch.no_grad()
def _unmasked(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the scores that are not masked, neither by a low number nor by `allowed`.

    Masks add numbers such as -1e9, -1e4 or -100: the softmax of such an entry is zero. NaNs stay.
    """
    if not scores.is_floating_point() or not scores.numel():
        return scores.new_empty(0)
    if allowed is not None and allowed.dim() == 2:
        # the same for all heads: select whole columns, which is faster
        places = allowed.expand(scores.shape[-2:]).flatten().nonzero().flatten()
        scores = _columns(scores.flatten(-2), places)
        allowed = None
    lowest = torch.finfo(scores.dtype).min / 2
    floor = torch.nan_to_num(scores.amax() - NO_WEIGHT, lowest, lowest, lowest)
    if allowed is None and scores.amin() > floor:  # not true if one entry is NaN
        return scores
    unmasked = scores > floor
    unmasked |= scores.isnan()
    if allowed is not None:
        return scores[allowed & unmasked]
    return scores[unmasked]


def _columns(x: Tensor, places: Tensor) -> Tensor:
    """Select entries of the last axis; on the host numpy is several times faster than torch."""
    if not is_here(x) or not is_plain(x) or x.dtype not in (torch.float32, torch.float64):
        return x.index_select(-1, places)
    return torch.from_numpy(x.numpy().take(places.numpy(), axis=-1))


@torch.no_grad()
def _scores_of_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the scores that fused attention would pass to its softmax."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    factor = scale
    if factor is None:
        factor = query.shape[-1] ** -0.5
    scores = query @ key.mT
    scores *= factor  # in place: fresh memory would take longer than the product
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return _unmasked(scores, allowed)
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return _unmasked(scores, attn_mask)
    return _unmasked(scores + attn_mask)
