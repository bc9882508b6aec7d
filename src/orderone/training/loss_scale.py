"""Scale of the loss in float16, whose small gradients would underflow to zero.

    gradients of s * loss are computed and divided by s
    one of them is not finite:   no update, s <- s / 2
    2000 updates in a row:       s <- 2 s

These are the rules and numbers of `torch.amp.GradScaler`. All numbers are tensors on the device, so
that a CUDA graph can contain them; in a stack every member has its own.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from orderone.observe.precision import float16_parameters
from orderone.torch_compat import local_tensor, sparse_values

START = 2.0**16
GROWTH = 2.0
BACKOFF = 0.5
INTERVAL = 2000  # updates in a row after which the scale grows


class LossScale:
    """Scale of one training, or of the members of a stack.

    Args:
        members: None for one training; a stack has tensors with one entry per member.
    """

    def __init__(self, device: torch.device, members: int | None = None):
        shape = () if members is None else (members,)
        self.scale: Tensor = torch.full(shape, START, device=device)
        self.in_a_row: Tensor = torch.zeros(shape, device=device)  # updates since the last change
        self.skipped: Tensor = torch.zeros(shape, device=device)  # updates that were not made

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor]) -> Tensor:
        """Divide gradients by the scale, in place; return whether all of them are finite.

        In a stack the result has one entry per member.
        """
        inverse = 1 / self.scale
        finite = torch.ones_like(self.scale, dtype=torch.bool)
        for gradient in gradients:
            g = local_tensor(gradient)
            if g.dtype == torch.float16:
                raise float16_parameters()
            if g.is_sparse:
                g = sparse_values(g)
            shape = (*inverse.shape, *[1] * (g.dim() - inverse.dim()))
            g.mul_(inverse.to(g.dtype).view(shape))
            finite &= g.isfinite().reshape(*finite.shape, -1).all(-1)
        return finite

    @torch.no_grad()
    def update(self, finite: Tensor) -> None:
        """Change the scale after an update, or after one that was not made."""
        in_a_row = torch.where(finite, self.in_a_row + 1, 0.0)
        grows = in_a_row >= INTERVAL
        larger = torch.where(grows, self.scale * GROWTH, self.scale)
        larger = torch.where(larger.isfinite(), larger, self.scale)
        self.scale.copy_(torch.where(finite, larger, self.scale * BACKOFF))
        self.in_a_row.copy_(torch.where(grows, 0.0, in_a_row))
        self.skipped.add_((~finite).to(self.skipped.dtype))

    # --- state ------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that an update changes, by name."""
        return {"scale": self.scale, "in_a_row": self.in_a_row, "skipped": self.skipped}

    def numbers(self) -> dict[str, float]:
        """Return the state of one training as JSON."""
        return {name: float(x) for name, x in self.tensors().items()}

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Continue from what `numbers` returned."""
        for name, x in self.tensors().items():
            x.fill_(numbers[name])

    def keep(self, members: Tensor) -> None:
        """Continue with these members of a stack only."""
        self.scale = self.scale[members].clone()
        self.in_a_row = self.in_a_row[members].clone()
        self.skipped = self.skipped[members].clone()
