"""Forward and backward pass of a stack as one list of tensor operations.

    model, loss, vmap, autocast, autograd  ->  operations of ATen on stacked tensors

The list gives what a CUDA graph needs, and more than a capture of the model itself could give:

* It can be compiled. Chains of elementwise operations (norms, rotary positions, activations and
  their gradients) become single kernels, for any model.
* Models take the same way as without a graph. Some ask whether a graph is captured and then compute
  an attention mask that they would not need otherwise.

A decision on values would be repeated for every batch. So values may be read only if they are the
same in every pass: those of tensors that were made from nothing but numbers, such as positions, and
comparisons of random numbers with a probability of 0 or 1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule

from orderone.torch_compat import (
    OpOverload,
    TorchDispatchMode,
    make_fx,
    operator_schema,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
    untraced,
)
from orderone.training.stacked.capturing import known_by, tracing
from orderone.training.stacked.compiling import compiled, lift_constants
from orderone.training.stacked.errors import NotCapturable, NotStackable
from orderone.training.stacked.groups import Batch
from orderone.training.stacked.host_draws import UniformNumbers, memory, tensors_of

Gradients: TypeAlias = dict[str, Tensor]
Pass: TypeAlias = Callable[[Mapping[str, Tensor], Batch], tuple[Tensor, Gradients]]

INDEX = torch.ops.aten.index.Tensor
MASKS = (torch.bool, torch.uint8)
LARGEST = 2**22  # entries of a tensor of known values


class TracedPass:
    """Traced `Stack.losses_and_gradients`, called like it, for batches of the same shapes.

    Args:
        run: The pass.
        tensors: Tensors of the stack, by name.
        batch: A batch with the shapes of all others.
        as_captured: Tell models that ask for it that a CUDA graph is being captured.
    """

    def __init__(
        self,
        run: Pass,
        tensors: Mapping[str, Tensor],
        batch: Batch,
        as_captured: bool = False,
    ):
        names = list(tensors)
        leaves, spec = tree_flatten(batch)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.gradient_names: list[str] = []

        def flat(*inputs: Tensor) -> list[Tensor]:
            own = dict(zip(names, inputs, strict=False))
            batch_leaves = list(leaves)
            for place, leaf in zip(places, inputs[len(names) :], strict=True):
                batch_leaves[place] = leaf
            with reading_known_values(as_captured):
                losses, gradients = run(own, tree_unflatten(batch_leaves, spec))
            self.gradient_names = list(gradients)
            return [losses, *gradients.values()]

        inputs = [*tensors.values(), *(leaves[place] for place in places)]
        self.operations: GraphModule = operations_of(flat, inputs)
        self.constants: list[Tensor] = lift_constants(self.operations)
        self._run: Callable[..., Sequence[Tensor]] = self.operations

    def compile(self, tensors: Mapping[str, Tensor], batch: Batch) -> None:
        """Compile the operations, and run them once."""
        self._run = compiled(self.operations, self._inputs(tensors, batch))

    @torch.no_grad()
    def __call__(self, tensors: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Gradients]:
        losses, *gradients = self._run(*self._inputs(tensors, batch))
        return losses, dict(zip(self.gradient_names, gradients, strict=True))

    def _inputs(self, tensors: Mapping[str, Tensor], batch: Batch) -> list[Tensor]:
        leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        return [x.detach() for x in (*tensors.values(), *leaves, *self.constants)]


@contextmanager
def reading_known_values(as_captured: bool) -> Iterator[None]:
    """Trace a pass within this context; it may read only values that every pass has."""
    with tracing(as_captured), ReadsOnlyKnownValues() as values, known_by(values.__contains__):
        yield


def operations_of(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> GraphModule:
    """Return the operations that the function runs on these inputs; it worked just before."""
    try:
        return make_fx(function)(*inputs)
    except NotCapturable:
        raise
    except (RuntimeError, NotImplementedError, NotStackable) as error:
        raise NotCapturable(f"this pass cannot be traced: {error}") from error


class ReadsOnlyKnownValues(TorchDispatchMode):
    """Mode that refuses to read values which can differ from pass to pass.

    Known are the values of tensors that were made from numbers, and of what was computed from such
    tensors alone; and of comparisons that have the same result for all random numbers. It keeps
    these tensors, so that no other tensor gets their memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Tensor] = {}  # by memory, which views share
        self._uniform = UniformNumbers()

    def __contains__(self, x: Tensor) -> bool:
        return memory(x) in self._known

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        tensors = tensors_of((args, kwargs))
        known = all(x in self for x in tensors)
        if _reads(func, tensors, kwargs):
            if not known:
                raise NotCapturable(
                    "the forward pass makes a decision that depends on values; a graph would repeat"
                    " the first decision"
                )
            if torch.Tag.data_dependent_output in func.tags:
                with untraced():
                    return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default:
            known = True  # a tensor from numbers in Python
        if torch.Tag.nondeterministic_seeded in func.tags:
            known = False
        if self._uniform.decide(func, args):
            known = True
        self._uniform.follow(func, args, kwargs, result)
        for x in (*_written(func, args, kwargs), *tensors_of(result)):
            if known and x.numel() <= LARGEST:
                self._known[memory(x)] = x
            else:
                self._known.pop(memory(x), None)
        return result


def _reads(func: OpOverload, tensors: Iterable[Tensor], kwargs: Mapping[str, Any]) -> bool:
    """Return whether `func` shows values to Python, or makes a shape of them."""
    if torch.Tag.data_dependent_output in func.tags:
        return True
    if torch.Tag.dynamic_output_shape in func.tags:
        # indexing has this tag because of masks; whole numbers give a shape that is known
        return func is not INDEX or any(x.dtype in MASKS for x in tensors)
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cpu":
        return False
    return any(x.device.type != "cpu" for x in tensors)  # a copy on the CPU can be read


def _written(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the arguments that `func` writes into."""
    written: list[Tensor] = []
    for place, argument in enumerate(operator_schema(func).arguments):
        alias = argument.alias_info
        if alias is None or not alias.is_write:
            continue
        if place < len(args):
            value = args[place]
        else:
            value = kwargs.get(argument.name)
        written += tensors_of(value)
    return written
