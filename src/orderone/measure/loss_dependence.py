"""Find tensors without a gradient whose values do not matter for the loss either.

A layer whose output is cut off from the gradients (`detach`) still changes the loss: that is a
fault. The pooler of an encoder that is trained on masked tokens does not: it is computed, and no
loss reads it.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor


def unused_tensors(tensors: Mapping[str, Tensor], loss: Callable[[], float]) -> frozenset[str]:
    """Return the names of tensors on whose values the loss does not depend.

    `loss` must return the same number for the same values. Tensors get random values, all of them
    at once; if that changes the loss, each half is tried by itself. All values are restored.
    """
    before = loss()
    if loss() != before:  # kernels are not deterministic: nothing can be said
        return frozenset()
    unused: set[str] = set()
    groups = [list(tensors)]
    while groups:
        names = groups.pop()
        if _is_same(before, [tensors[name] for name in names], loss):
            unused.update(names)
        elif len(names) > 1:
            middle = len(names) // 2
            groups += [names[:middle], names[middle:]]
    return frozenset(unused)


def _is_same(before: float, tensors: Sequence[Tensor], loss: Callable[[], float]) -> bool:
    """Return whether the loss stays exactly the same with random values in the tensors."""
    values = [tensor.detach().clone() for tensor in tensors]
    generator = torch.Generator().manual_seed(0)
    try:
        for tensor in tensors:
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
            tensor.data.add_(noise.to(tensor))
        return loss() == before
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data.copy_(value)
