"""What a step changes: copies of tensors from before it, and differences after it.

On the host each tensor is copied and compared while the cache has it; on other devices all of them together, since there
every call costs more than what it does.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from orderone.measure.moments import is_here, local


class Updates:
    """To be used where no gradients are recorded."""

    def __init__(self) -> None:
        self._copies: dict[str, tuple[Tensor, Tensor]] = {}

    def remember(self, name: str, p: Tensor) -> None:
        """On other devices there is room for a copy now, and `copy` makes it."""
        x = local(p)
        self._copies[name] = p, x.clone() if is_here(x) else torch.empty_like(x)

    def copy(self) -> None:
        if elsewhere := self._elsewhere():
            torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                [self._copies[name][1] for name in elsewhere], [*elsewhere.values()]
            )

    def changes(self) -> Iterator[tuple[str, Tensor]]:
        """Of every tensor once; afterwards nothing is remembered."""
        elsewhere, copies = self._elsewhere(), self._copies
        self._copies = {}
        if elsewhere:
            before = [copies.pop(name)[1] for name in elsewhere]
            changes = torch._foreach_sub([*elsewhere.values()], before)  # pyright: ignore[reportPrivateImportUsage]
            yield from zip(elsewhere, changes, strict=True)
        for name, (p, before) in copies.items():
            yield name, torch.sub(local(p), before, out=before)

    def _elsewhere(self) -> dict[str, Tensor]:
        return {name: x for name, (p, _) in self._copies.items() if not is_here(x := local(p))}
