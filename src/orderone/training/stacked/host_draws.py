"""Random numbers that a pass draws on the CPU, although a CUDA graph is to repeat the pass.

A graph draws new numbers on the GPU in every replay. What a pass draws on the CPU is drawn once,
before the capture: layers that are skipped at random would be the same ones in every step. Many
models draw a number and compare it with a probability of 0 or 1:

    if torch.rand([]) < self.layerdrop:  # 0 by default

The result does not depend on the number, so a graph may repeat it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orderone.seeding import AllGenerators
from orderone.torch_compat import OpOverload, TorchDispatchMode, storage_id, tree_leaves

aten: Any = torch.ops.aten

UNIFORM = (aten.rand, aten.rand_like)
UNIFORM_BETWEEN = (aten.uniform, aten.uniform_)  # two arguments, by default 0 and 1
UNIT = (0.0, 1.0)
# values of the result are values of the arguments
REARRANGED = (
    *(aten.view, aten._unsafe_view, aten.reshape, aten.squeeze, aten.unsqueeze, aten.expand),
    *(aten.select, aten.slice, aten.alias, aten.detach, aten.clone, aten.stack, aten.cat),
    *(aten.permute, aten.transpose, aten.t, aten.index_select, aten.lift_fresh),
)


def _same_result_of_lt_and_ge(bound: float) -> bool:
    return bound <= 0 or bound > 1


def _same_result_of_le_and_gt(bound: float) -> bool:
    return bound < 0 or bound >= 1


# Whether the comparison has the same result for all numbers from 0 to 1, both included.
DECIDED: dict[Any, Callable[[float], bool]] = {
    aten.lt: _same_result_of_lt_and_ge,
    aten.ge: _same_result_of_lt_and_ge,
    aten.le: _same_result_of_le_and_gt,
    aten.gt: _same_result_of_le_and_gt,
}


def memory(x: Tensor) -> int:
    """Return a number that tensors with the same memory share."""
    return storage_id(x.untyped_storage())


def tensors_of(tree: object) -> list[Tensor]:
    """Return the tensors of nested arguments."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class UniformNumbers:
    """Tensors of random numbers between 0 and 1, found by their memory.

    They are kept, so that no other tensor gets their memory.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, Tensor] = {}

    def __contains__(self, x: Tensor) -> bool:
        return memory(x) in self._tensors

    def decide(self, func: OpOverload, args: Sequence[Any]) -> bool:
        """Return whether `func` compares these numbers, with a result that is always the same."""
        is_decided = DECIDED.get(func.overloadpacket)
        if is_decided is None or len(args) != 2:
            return False
        numbers, bound = args
        if not isinstance(numbers, Tensor) or numbers not in self:
            return False
        if isinstance(bound, (int, float)):
            return is_decided(float(bound))
        return False

    def follow(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: object
    ) -> None:
        """Add or remove the tensors of a result."""
        uniform = False
        if func.overloadpacket in UNIFORM:
            uniform = True
        elif func.overloadpacket in UNIFORM_BETWEEN:
            uniform = args[1:] in ((), UNIT) and not kwargs.keys() & {"from", "to"}
        elif func.overloadpacket in REARRANGED:
            inputs = tensors_of(args)
            uniform = bool(inputs) and all(x in self for x in inputs)
        for x in tensors_of(result):
            if uniform:
                self._tensors[memory(x)] = x
            else:
                self._tensors.pop(memory(x), None)


class HostDraws(TorchDispatchMode):
    """Mode that watches passes for random numbers from the CPU.

    Attributes:
        matter: Whether results may depend on such numbers; known when the mode has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.matter: bool = False
        self._uniform = UniformNumbers()
        self._drawn: dict[int, Tensor] = {}
        self._compared: set[int] = set()  # tensors of `_drawn` that a decided comparison has read

    def __enter__(self) -> "HostDraws":
        self._before = AllGenerators.now()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        now = AllGenerators.now()
        if not now.same_outside_torch(self._before):
            self.matter = True
        if not self._drawn and not torch.equal(now.cpu, self._before.cpu):
            self.matter = True  # drawn by something that is no operation, or in another thread
        # a number that nothing compares may be read without an operation, as by .numpy()
        if self._drawn.keys() - self._compared:
            self.matter = True

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        drawn = [x for x in tensors_of((args, kwargs)) if memory(x) in self._drawn]
        if self._uniform.decide(func, args):
            self._compared |= {memory(x) for x in drawn}
            return result
        self._uniform.follow(func, args, kwargs, result)
        outputs = tensors_of(result)
        if torch.Tag.nondeterministic_seeded in func.tags:
            for x in outputs:
                if x.device.type == "cpu":
                    self._drawn[memory(x)] = x
        elif drawn and func.overloadpacket in REARRANGED:
            copies = {memory(x): x for x in outputs if memory(x) not in self._drawn}
            if copies:
                self._compared |= {memory(x) for x in drawn}
            self._drawn |= copies
        elif drawn:
            self.matter = True
        return result
