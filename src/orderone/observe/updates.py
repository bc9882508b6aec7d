"""What a step changes: copies of tensors from before it, and differences after it.

On the host each tensor is copied and compared while the cache has it; on other devices all of them
together, since there every call costs more than what it does.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from orderone.observe.moments import is_here, local
from orderone.torch_compat import flatten_dense_tensors, foreach_add_, unflatten_dense_tensors

Named = dict[str, Tensor]


class Updates:
    """To be used where no gradients are recorded."""

    def __init__(self) -> None:
        self._here: dict[str, tuple[Tensor, Tensor]] = {}
        self._elsewhere: dict[
            tuple[int, torch.dtype], Named
        ] = {}  # tensors of one device and precision
        self._negative: list[
            tuple[Named, Tensor]
        ] = []  # and what they were, end to end, with the other sign

    def remember(self, name: str, p: Tensor) -> None:
        """On other devices, `copy` does."""
        x = local(p)
        if is_here(x):
            self._here[name] = p, x.clone()
        elif x.numel():
            self._elsewhere.setdefault((x.get_device(), x.dtype), {})[name] = x

    def copy(self) -> None:
        for named in self._elsewhere.values():
            self._negative.append((named, flatten_dense_tensors([*named.values()]).neg_()))
        self._elsewhere = {}

    def changes(self) -> Iterator[tuple[str, Tensor]]:
        """Of every tensor once; afterwards nothing is remembered."""
        here = self._here
        elsewhere = self._negative
        self._here = {}
        self._negative = []
        for named, negative in elsewhere:
            changes = unflatten_dense_tensors(negative, [*named.values()])
            foreach_add_(changes, [*named.values()])
            yield from zip(named, changes, strict=True)
        for name, (p, before) in here.items():
            yield name, torch.sub(local(p), before, out=before)
