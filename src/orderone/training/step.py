"""One update of one model, in one process or in several that share the batch.

1. Set the learning rate of every group: its initial rate times the factor of the schedule.
2. Average the gradients of `accumulate` batches.
3. In float16, divide them by the scale of the loss; leave out the update if one is not finite.
4. Clip their norm at `clip`, and let the optimizer make a step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import Loss, loss_of
from orderone.optimizers.equal_strides import make_strides_equal
from orderone.optimizers.registry import set_training_mode
from orderone.training.loss_scale import LossScale
from orderone.training.modes import evaluation_mode
from orderone.training.settings import Settings
from orderone.training.source import Batch, Source, moved
from orderone.training.world import World


@dataclass(frozen=True)
class Step:
    """Model with everything that an update needs."""

    world: World
    settings: Settings
    module: nn.Module  # holds the parameters
    forward: nn.Module  # called for the loss: `module`, or its wrapper for several processes
    optimizer: Optimizer
    rates: tuple[float, ...]  # learning rates of the groups, before the schedule
    source: Source
    data_seed: int
    loss_function: Loss | None
    scale: LossScale | None = None  # in float16

    def backward(self, step: int) -> list[Tensor]:
        """Compute the gradients of update `step`; return the loss of each of its batches."""
        set_training_mode(self.optimizer, True)
        factor = self.settings.factor(step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            set_rate(group, rate * factor)
        self.optimizer.zero_grad(set_to_none=True)
        number = self.settings.accumulate
        losses: list[Tensor] = []
        for part in range(number):
            batch = self.world.share(self.source.at(step * number + part, self.data_seed))
            with self.world.gradient_sync(self.forward, last=part == number - 1):
                losses.append(self.add_gradients(batch))
        return losses

    def add_gradients(self, batch: Batch) -> Tensor:
        """Add the gradients of one of the `accumulate` batches; return its loss."""
        loss = self.loss(batch)
        share = loss
        if self.settings.accumulate > 1:
            share = loss / self.settings.accumulate
        if self.scale is not None:
            share = self.scale.scaled(share)
        share.backward()
        return loss.detach()

    def apply(self) -> Tensor | None:
        """Unscale and clip the gradients and update the parameters; return the norm, if known.

        It is known if `clip` is set and the update was made.
        """
        if self.unscale():
            return self.update()
        return None

    def unscale(self) -> bool:
        """Divide the gradients by the scale of the loss; return whether all are finite.

        Gradients without a scale are not read: the result is True.
        """
        if self.scale is None:
            return True
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        finite = self.scale.unscale(gradients)
        if self.world.size > 1:  # shards of the same gradients may be finite
            finite = torch.tensor(not self.world.any(not bool(finite)), device=finite.device)
        self.scale.update(finite)
        return bool(finite)

    def update(self) -> Tensor | None:
        """Clip the gradients and update the parameters; return the norm if `clip` is set."""
        norm = None
        if self.settings.clip is not None:
            norm = clip_grad_norm_(self.module.parameters(), self.settings.clip)
        make_strides_equal(self.optimizer)
        self.optimizer.step()
        return norm

    def restore_rates(self) -> None:
        """Take the schedule's factor out of the learning rates."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            set_rate(group, rate)

    def loss(self, batch: Batch, argument: str = "data") -> Tensor:
        """Return the loss of a batch, which came from this argument."""
        device = self.world.device
        with self.settings.autocast(device):
            batch = moved(batch, device, self.settings.precision)
            with naming_batch(argument, batch, self.module):
                return loss_of(self.forward, batch, self.loss_function)

    @torch.no_grad()
    def evaluate(self) -> Tensor | None:
        """Return the losses of the held-out batches in double precision; None if there are none."""
        batches = self.source.held_out()
        if not len(batches):
            return None
        losses: list[Tensor] = []
        with evaluation_mode(self.module):
            set_training_mode(self.optimizer, False)
            for batch in batches:
                losses.append(self.loss(self.world.share(batch, insist=False), "held_out"))
            set_training_mode(self.optimizer, True)
        return torch.stack(losses).double()


def compiled_module(module: nn.Module) -> nn.Module:
    """Return the module as torch.compile wraps it; its parameters are those of the module."""
    wrapped: Any = torch.compile(module)
    return wrapped


def current_rates(optimizer: Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group, in place if it is a tensor, as in `torchao`."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
