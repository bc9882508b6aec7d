"""Attention scores: what goes into a softmax, watched where Python calls it.

No module gives scores out, and fused attention never forms them; but they are the first thing to
grow when queries and keys align and are divided by too small a power of the head size. Fused
attention is asked for its queries and keys, and the scores are formed beside it. Masked entries are
left out.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from orderone.observe.hooks import as_written, is_own
from orderone.observe.inventory import modules_by_name

_SOFTMAX = {torch.softmax, functional.softmax, Tensor.softmax, torch.special.softmax}
_FUSED = functional.scaled_dot_product_attention
_HIDDEN = {"softmax": functional.softmax, "scaled_dot_product_attention": _FUSED}


@contextmanager
def watching_scores(
    model: nn.Module, sink: Callable[[str, Callable[[], Tensor]], None]
) -> Iterator[None]:
    """The scores of every softmax, and the innermost module that was being called, go to `sink`;
    they are formed when it asks for them."""
    running: list[str] = []
    mode = _Softmaxes(lambda scores: sink(running[-1], scores))
    modes = ExitStack()

    def enter(name: str) -> None:
        if not running:  # only while the model runs: a mode slows every call of torch
            modes.enter_context(mode)
        running.append(name)

    def leave() -> None:
        running.pop()
        if not running:
            modes.close()

    handles = []
    try:
        for name, module in modules_by_name(model).items():
            handles += _around(module, lambda name=name: enter(name), leave)
        with as_written():
            yield
    finally:
        modes.close()
        for handle in handles:
            handle.remove()


def _around(
    module: nn.Module, enter: Callable[[], None], leave: Callable[[], None]
) -> Iterator[RemovableHandle]:
    own = is_own(module)
    yield module.register_forward_pre_hook(
        lambda called, _: enter() if own(called) else None, prepend=True
    )
    yield module.register_forward_hook(
        lambda called, *_: leave() if own(called) else None, always_call=True
    )


class _Softmaxes(TorchFunctionMode):
    def __init__(self, sink: Callable[[Callable[[], Tensor]], None]):
        super().__init__()
        self.sink = sink

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with self._inside():
                return func(*args, **kwargs)
        self._look(func, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        if func in _SOFTMAX:
            self.sink(lambda: _shown(args[0] if args else kwargs["input"]))
        elif func is _FUSED:
            self.sink(lambda: _scores(*args, **kwargs))

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """torch hides from a mode what one of its own Python functions calls: there the names are
        exchanged."""
        before = {
            "softmax": functional.softmax,
            "scaled_dot_product_attention": functional.scaled_dot_product_attention,
        }
        try:
            for name, func in before.items():
                setattr(functional, name, self._shown_to_mode(_HIDDEN[name], func))
            yield
        finally:
            for name, func in before.items():
                setattr(functional, name, func)

    def _shown_to_mode(self, func: Any, action: Any) -> Callable[..., Any]:
        """`func` as `action` does it: another probe may have exchanged it already."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._look(func, args, kwargs)
            return action(*args, **kwargs)

        return call


@torch.no_grad()
def _shown(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Those that are not masked, neither by the lowest number nor as not `allowed`; what is not a
    number stays."""
    if not scores.is_floating_point():
        return scores.new_empty(0)
    if (
        allowed is not None and allowed.dim() == 2
    ):  # the same for all heads: whole columns, which is faster
        places = allowed.expand(scores.shape[-2:]).flatten().nonzero().flatten()
        scores = scores.flatten(-2).index_select(-1, places)
        allowed = None
    seen = scores > torch.finfo(scores.dtype).min / 2
    seen |= scores.isnan()
    if allowed is None and seen.all():
        return scores
    return scores[seen if allowed is None else allowed & seen]


@torch.no_grad()
def _scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What fused attention would put into its softmax."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        return _shown(
            scores, torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        )
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return _shown(scores, attn_mask)
    return _shown(scores + attn_mask)
