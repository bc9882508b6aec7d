"""Fast batched forms of the most expensive operations, for `torch.vmap` over members.

vmap can run almost everything for K members at once, but its rules for some operations are slow: a
matrix of each member is copied for every row of the batch, and attention falls back to a loop. This
module puts the member axis where kernels expect a batch:

    linear, addmm, matmul    (K, N, in) (K, in, out): one bmm
    attention                (K, B, heads, T, C) -> (K B, heads, T, C): members are more batch
    embedding                one table of all members, indices offset by the size of a table
                             (`tables.py`)
    cross entropy            (K N, classes), then the mean of each member
    LSTM, GRU, RNN, x[mask]  one member after another (`one_by_one.py`)
    convolution, group norm  if large, one member after another on a CPU (`large_inputs.py`)
    grouped products         experts of all members are the groups of one product (`experts.py`)

Decisions that depend on values are handled by `decisions.py`. Everything else is left to vmap. The
batched forms run outside vmap: they act on the stacked tensors like ordinary torch code. So
ordinary autograd records them, autocast casts them as in a single network, and custom autograd
functions need no vmap rule. To leave vmap and to get the stacked tensors, this module uses the
functions that torch.vmap itself uses; they have no public names (`orderone.torch_compat`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.torch_compat import (
    TENSOR_METHODS_MODULE,
    TENSOR_VERSION,
    add_batch_dim,
    current_vmap_level,
    get_unwrapped,
    grouped_mm_operation,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
    maybe_get_level,
    outside_vmap,
    tree_leaves,
    tree_map,
)
from orderone.training.stacked import mixed_precision
from orderone.training.stacked.constants import (
    Arguments,
    Constants,
    NamedArguments,
    TorchFunction,
    is_constant,
)
from orderone.training.stacked.decisions import NO_ANSWER, QUESTIONS, answer
from orderone.training.stacked.draws import (
    MemberDraws,
    draws,
    generators_of_models,
    out_of_place,
)
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.experts import grouped_mm, histc
from orderone.training.stacked.in_place import NewTensors, is_in_place
from orderone.training.stacked.large_inputs import CONVOLUTIONS, convolution, group_norm
from orderone.training.stacked.one_by_one import (
    SHAPED_BY_VALUES,
    for_each_member,
    indexed,
    one_by_one,
    places_where,
    repeated,
)
from orderone.training.stacked.products import rows_by_weights
from orderone.training.stacked.recurrent import RECURRENCES
from orderone.training.stacked.tables import rows_of_tables

# Modules of torch whose functions are written in Python and call its operations.
WRITTEN_IN_PYTHON = (functional.__name__, "torch.functional", TENSOR_METHODS_MODULE)


class FastPaths(TorchFunctionMode):
    """Mode that replaces operations inside the function that vmap maps.

    `members` is K; `constants` caches constants for CUDA graphs. With `draws`, members draw the
    random numbers of their stand-alone runs (`draws.py`).
    """

    def __init__(
        self, members: int, constants: Constants | None = None, draws: MemberDraws | None = None
    ):
        super().__init__()
        self.members = members
        self.constants = constants
        self.draws = draws
        self.running: list[FunctionType] = []
        self.new_tensors: NewTensors = NewTensors()

    def __enter__(self) -> "FastPaths":
        self.level: int = current_vmap_level()
        return super().__enter__()

    def __torch_function__(
        self,
        func: TorchFunction,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: NamedArguments | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func in QUESTIONS and self.mapped(args[0]):
            decision = answer(func, self.stacked(args[0]))
            if decision is NO_ANSWER:
                return func(*args, **kwargs)
            return decision
        if func is Tensor.requires_grad_ and self._requires_grad_already(*args, **kwargs):
            return args[0]
        if self.constants is not None and is_constant(func, args):
            return self.constants.call(func, args, kwargs)
        if func in TENSOR_VERSION:
            raise NotStackable(
                "the forward pass reads the version counter (_version) of a tensor, which counts"
                " other changes in a stack; trained one after another",
                "reads-version",
            )
        if self.draws is not None and draws(func, args, kwargs):
            return self._draw(self.draws, func, args, kwargs)
        path = PATHS.get(func)
        if path is not None:
            with outside_vmap():
                result = path(self, *args, **kwargs)
            if result is not None:
                return tree_map(self.wrap_tensor, result)
        if (
            isinstance(func, FunctionType)
            and func.__module__ in WRITTEN_IN_PYTHON
            and func not in self.running
        ):
            return self.run(func, args, kwargs)
        self.new_tensors.give_members(self, func, args, kwargs)
        result = mixed_precision.call(self, func, args, kwargs)
        self.new_tensors.add(self, result)
        return result

    def _draw(
        self,
        member_draws: MemberDraws,
        func: TorchFunction,
        args: Arguments,
        kwargs: NamedArguments,
    ) -> object:
        """Run an operation that draws random numbers, for each member from its state.

        A generator that the model holds is refused: in a stack, members would draw from it in turn,
        and none would get the numbers of its stand-alone run.
        """
        other_call = out_of_place(func, args, kwargs)
        if other_call is not None:  # rows of a stack are views, which dropout must not write to
            result = self._draw(member_draws, *other_call)
            return cast(Tensor, args[0]).copy_(cast(Tensor, result))
        leaves = tree_leaves((args, kwargs))
        if generators_of_models(leaves):
            raise NotStackable(
                "the forward pass draws from a torch.Generator of its own, which members of a"
                " stack would share; trained one after another",
                "draws-outside-torch",
            )
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        shared = all(self.plain(x) for x in tensors)
        if shared and member_draws.find_common():
            with outside_vmap():
                result = member_draws.once(lambda: func(*args, **kwargs))
            self.new_tensors.add(self, result)
            return result
        if not shared and not self.known(*tensors):
            return func(*args, **kwargs)  # another vmap maps it
        if is_in_place(func) and not self.mapped(args[0]):
            self.new_tensors.give_members(self, func, args, kwargs, even_alone=True)
            if not self.mapped(args[0]):
                return func(*args, **kwargs)  # vmap says why this is not possible
        with outside_vmap():
            results = for_each_member(func, self, *args, **kwargs)
        if is_in_place(func):
            return args[0]  # its rows were written to
        return tree_map(self.wrap_tensor, results)

    def _requires_grad_already(self, x: Tensor, requires_grad: bool = True) -> bool:
        """Return whether `requires_grad_` would change nothing, so that it can be skipped.

        Hugging Face models call it on embeddings before checkpointed blocks.
        """
        return self.mapped(x) and self.stacked(x).requires_grad == requires_grad

    def run(self, func: FunctionType, args: Arguments, kwargs: NamedArguments) -> object:
        """Run a Python function of torch under this mode.

        The operations that it calls may have a fast path, such as attention inside
        multi_head_attention_forward. Some functions of torch._tensor call a method that arrives
        here under the same name; `running` prevents infinite recursion.
        """
        self.running.append(func)
        try:
            with self:
                return _without_mode_check(func)(*args, **kwargs)
        finally:
            self.running.pop()

    def wrap(self, stacked: Tensor) -> Tensor:
        """Return (K, ...) as the tensor of one member inside vmap."""
        return add_batch_dim(stacked, 0, self.level)

    def wrap_tensor(self, leaf: object) -> object:
        """Wrap a leaf of a result if it is a tensor."""
        if isinstance(leaf, Tensor):
            return self.wrap(leaf)
        return leaf

    def mapped(self, x: object) -> bool:
        """Return whether this vmap maps `x`."""
        return isinstance(x, Tensor) and is_batchedtensor(x) and maybe_get_level(x) == self.level

    def plain(self, x: object) -> bool:
        """Return whether no vmap maps `x`, so that it is the same for all members."""
        return isinstance(x, Tensor) and not is_functorch_wrapped_tensor(x)

    def known(self, *tensors: object) -> bool:
        """Return whether at least one tensor is mapped by this vmap and none by another.

        A vmap inside the model is left to torch.
        """
        if not any(self.mapped(x) for x in tensors):
            return False
        return all(self.mapped(x) or self.plain(x) for x in tensors)

    def stacked(self, x: Tensor) -> Tensor:
        """Return (K, ...); for a tensor that all members share, K views."""
        if self.mapped(x):
            axis = maybe_get_bdim(x)
            if axis == 0:
                return get_unwrapped(x)  # an operation less to record, differentiate and compile
            return get_unwrapped(x).movedim(axis, 0)
        return x.expand(self.members, *x.shape)


@cache
def _without_mode_check(func: FunctionType) -> FunctionType:
    """Return the same function without its check for active modes.

    With that check it would call this mode again, without end.
    """
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    space = func.__globals__ | dict.fromkeys(names, lambda *_: False)
    same = FunctionType(func.__code__, space, func.__name__, func.__defaults__, func.__closure__)
    same.__kwdefaults__ = func.__kwdefaults__
    return same


def _linear(
    mode: FastPaths, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    tensors = [input, weight]
    if bias is not None:
        tensors.append(bias)
    if not mode.known(*tensors) or not mode.mapped(weight) or weight.dim() != 2 or input.dim() < 1:
        return None
    if any(x.is_complex() for x in tensors):
        return None
    x = mode.stacked(input)
    w = mode.stacked(weight)
    rows = x.reshape(len(x), -1, x.shape[-1])
    stacked_bias = None
    if bias is not None:
        stacked_bias = mode.stacked(bias)
    out = rows_by_weights(rows, w, stacked_bias)
    return out.view(*x.shape[:-1], w.shape[1])


def _addmm(
    mode: FastPaths, input: Tensor, mat1: Tensor, mat2: Tensor, **kwargs: object
) -> Tensor | None:
    if kwargs or not mode.known(input, mat1, mat2):
        return None
    if mat1.dim() != 2 or mat2.dim() != 2 or input.dim() not in (1, 2):
        return None
    start = mode.stacked(input)
    if input.dim() == 1:
        start = start.unsqueeze(1)
    return torch.baddbmm(start, mode.stacked(mat1), mode.stacked(mat2))


def _matmul(mode: FastPaths, input: Tensor, other: Tensor, **kwargs: object) -> Tensor | None:
    """Multiply rows by a member's matrix; products of two activations are left to vmap."""
    if kwargs or not mode.known(input, other) or not mode.mapped(other):
        return None
    if other.dim() != 2 or input.dim() < 2:
        return None
    x = mode.stacked(input)
    w = mode.stacked(other)
    return torch.bmm(x.reshape(len(x), -1, x.shape[-1]), w).view(*x.shape[:-1], w.shape[-1])


def _folded(stacked: Tensor, axes: int) -> Tensor:
    """Merge the member axis into the batch axis, if there is one."""
    if axes == 4:
        return stacked.flatten(0, 1)
    return stacked


def _attention(
    mode: FastPaths,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    tensors = [query, key, value]
    if attn_mask is not None:
        tensors.append(attn_mask)
    axes = query.dim()
    if not mode.known(*tensors) or axes < 2 or key.dim() != axes or value.dim() != axes:
        return None
    q = _folded(mode.stacked(query), axes)
    k = _folded(mode.stacked(key), axes)
    v = _folded(mode.stacked(value), axes)
    if attn_mask is not None and (
        mode.mapped(attn_mask) or (attn_mask.dim() == 4 and attn_mask.shape[0] != 1)
    ):
        missing_axes = (None,) * (axes - attn_mask.dim())
        rows = mode.stacked(attn_mask)[(slice(None), *missing_axes)]
        attn_mask = _folded(rows.expand(-1, query.shape[0], *rows.shape[2:]), axes)
    options: dict[str, bool] = {}
    if enable_gqa:
        options["enable_gqa"] = True
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, **options
    )
    if axes == 4:
        return out.unflatten(0, (mode.members, query.shape[0]))
    return out


def _embedding(
    mode: FastPaths,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    if not mode.known(input, weight) or not mode.mapped(weight):
        return None
    tables = mode.stacked(weight)
    ids = mode.stacked(input)
    rows = rows_of_tables(tables, ids)
    if padding_idx is None:
        return rows
    # padding rows get no gradient; torch would treat only those of the first table as padding
    padded = ids == padding_idx % tables.shape[1]
    return torch.where(padded.unsqueeze(-1), rows.detach(), rows)


def _cross_entropy(
    mode: FastPaths,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    tensors = [input, target]
    if weight is not None:
        tensors.append(weight)
    if not mode.known(*tensors) or size_average is not None or reduce is not None:
        return None
    logits = mode.stacked(input)
    classes = mode.stacked(target)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    usual = weight is None and reduction == "mean" and input.dim() == 2 and target.dim() == 1
    if not usual or logits.device.type == "cpu":
        # separate calls are cheap on a CPU, and round as in a stand-alone run
        weights: Iterable[Tensor | None] = [None] * mode.members
        if weight is not None:
            weights = mode.stacked(weight)
        losses: list[Tensor] = []
        for x, y, w in zip(logits, classes, weights, strict=True):
            losses.append(functional.cross_entropy(x, y, w, reduction=reduction, **options))
        return torch.stack(losses)
    return mean_of_each(logits, classes, options)


def mean_of_each(logits: Tensor, classes: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return the cross entropies (K,) of (K, N, classes) in one call."""
    each = functional.cross_entropy(
        logits.flatten(0, 1), classes.flatten(), reduction="none", **options
    )
    return each.view(classes.shape).sum(1) / (classes != options["ignore_index"]).sum(1)


PATHS: dict[TorchFunction, Callable[..., object]] = {
    **{func: partial(one_by_one, func) for func in (*RECURRENCES, *SHAPED_BY_VALUES)},
    **{func: partial(convolution, func) for func in CONVOLUTIONS},
    torch.group_norm: group_norm,
    Tensor.__getitem__: indexed,
    torch.where: places_where,
    torch.histc: histc,
    Tensor.histc: histc,
    grouped_mm_operation: grouped_mm,
    torch.repeat_interleave: repeated,
    Tensor.repeat_interleave: repeated,
    functional.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    functional.scaled_dot_product_attention: _attention,
    functional.embedding: _embedding,
    functional.cross_entropy: _cross_entropy,
}
