"""The precision that a model computes in where it casts its numbers to a coarser one.

Layers of Hugging Face compute norms and losses in float32, also in a model of float64. There two
ways of computing that agree in double precision may still be one unit of float32 apart.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from orderone.torch_compat import CAST_OPERATION, OpOverload, TorchDispatchMode


class Casts(TorchDispatchMode):
    """Mode that records the coarsest type that a floating-point tensor was cast down to."""

    def __init__(self) -> None:
        super().__init__()
        self.coarsest: torch.dtype | None = None

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **kwargs or {})
        if func is CAST_OPERATION and isinstance(result, Tensor) and isinstance(args[0], Tensor):
            self._record(args[0], result)
        return result

    def _record(self, before: Tensor, after: Tensor) -> None:
        if not (before.is_floating_point() and after.is_floating_point()):
            return
        eps = torch.finfo(after.dtype).eps
        if eps <= torch.finfo(before.dtype).eps:
            return
        if self.coarsest is None or eps > torch.finfo(self.coarsest).eps:
            self.coarsest = after.dtype
