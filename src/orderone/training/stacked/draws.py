"""Random draws of a forward pass that are the same for all members.

In training, members draw different numbers, and other ones than their stand-alone runs. A proof
that a stack equals stand-alone runs needs the same numbers. So there, an operation that draws is
run for one member after another, each time from the same state of the generators, by the kernel of
a stand-alone run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orderone.torch_compat import OpOverload
from orderone.training.stacked.constants import Arguments, NamedArguments, TorchFunction

DROPOUT_OF_ATTENTION = 4  # place of dropout_p among the arguments of attention


@dataclass(frozen=True)
class GeneratorStates:
    """States of torch's generators, and of those that a call was given."""

    cpu: Tensor
    cuda: Tensor | None
    others: tuple[tuple[torch.Generator, Tensor], ...]

    @staticmethod
    def now(arguments: Iterable[object] = ()) -> "GeneratorStates":
        cuda = None
        if torch.cuda.is_initialized():
            cuda = torch.cuda.get_rng_state()
        others = [(x, x.get_state()) for x in arguments if isinstance(x, torch.Generator)]
        return GeneratorStates(torch.get_rng_state(), cuda, tuple(others))

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)
        for generator, state in self.others:
            generator.set_state(state)

    def same(self, other: "GeneratorStates") -> bool:
        """Return whether torch's own generators are in the same state."""
        same_on_gpu = True
        if self.cuda is not None and other.cuda is not None:
            same_on_gpu = torch.equal(self.cuda, other.cuda)
        return same_on_gpu and torch.equal(self.cpu, other.cpu)


def draws(func: TorchFunction, args: Arguments, kwargs: NamedArguments) -> bool:
    """Return whether a call may draw random numbers."""
    if func is functional.scaled_dot_product_attention:
        if len(args) > DROPOUT_OF_ATTENTION:
            return bool(args[DROPOUT_OF_ATTENTION])
        return bool(kwargs.get("dropout_p", 0.0))
    return _is_random(func)


@cache
def _is_random(func: TorchFunction) -> bool:
    name = getattr(func, "__name__", "")
    packet: Any = getattr(torch.ops.aten, name, None)
    if not hasattr(packet, "overloads"):  # no operation, or a method that every object has
        return False
    overloads: list[OpOverload] = [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)
