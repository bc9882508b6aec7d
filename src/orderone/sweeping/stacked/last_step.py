"""Check of the last step of a stack: one member takes it alone as well.

The proof of the first steps cannot see what acts later: a number that a model uses from its tenth
call on. So before the last step, one member is built anew and gets the tensors of the stack, and
the attributes that training has changed. Its loss and gradients must be those of the stack. Where
they differ by more than rounding, a third model decides: it is built as the first member, whose
code the stack runs, and gets the same tensors. If these two differ, members hold different things.
Otherwise, the model has state that no attribute shows, and the step is "unclear". The step is made
by the stack first, so that nothing but a held-out loss can follow what the other models do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from orderone.seeding import AllGenerators, preserved
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import make_step
from orderone.sweeping.trial import Trial
from orderone.torch_compat import tree_map
from orderone.training.source import Batch, Source
from orderone.training.stacked.attributes import (
    Attributes,
    changed_attributes,
    copied,
    set_attributes,
)
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.other_kernels import OtherKernels
from orderone.training.stacked.proof import Comparison, Difference, Differences
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.ways import nudged
from orderone.training.step import Step

AGREES = "agrees"
UNCLEAR = "unclear"
NUDGES = 2
HALF_UNITS = 4.0  # units of half precision that are rounding in any case
NEAR = 2.0  # times the distance of a run with other kernels


@dataclass(frozen=True)
class Passes:
    """Loss and gradients of one member, with a leading axis."""

    loss: Tensor
    gradients: dict[str, Tensor]


class LastStep:
    """The last step of a stack; make it before the step, and call `compare` after it.

    Args:
        job: Settings of all trials.
        stack: The stack before the step.
        first: The trial whose model the stack calls.
        member: The trial that takes the step alone.
        row: Its place in the stack.
        step: Number of the step.
        batches: Batches of the stack.
        alone: The member alone, after steps that were made before; by default it is built anew.
    """

    def __init__(
        self,
        job: Job,
        stack: Stack,
        first: Trial,
        member: Trial,
        row: int,
        step: int,
        batches: Sequence[Batch],
        alone: Step | None = None,
    ):
        self.job = job
        self.stack = stack
        self.first = first
        self.member = member
        self.row = row
        self.step = step
        self.batches: list[Batch] = [tree_map(self._row, batch) for batch in batches]
        self.tensors: dict[str, Tensor] = {}
        for name, x in stack.tensors.items():
            self.tensors[name] = x[row].detach().clone()
        self.scale: Tensor | None = None
        if stack.scale is not None:
            self.scale = stack.scale.scale[row].clone()
        self.generators: AllGenerators = AllGenerators.now()
        if stack.program.draws is not None:
            # a copy is aligned: torch reads words of 64 bits
            state = stack.program.draws.tensors()["cpu"][row].clone()
            self.generators = replace(self.generators, cpu=state)
        if alone is None:
            with preserved():
                alone = self._built(member)
        attributes = changed_attributes(stack.program.model, alone.module)
        # the passes may change those that the model has
        self.attributes: Attributes = copied(attributes, alone.module, alone.module)
        self.alone: Step = self._prepared(alone, attributes)

    def _row(self, leaf: object) -> object:
        if isinstance(leaf, Tensor):
            return leaf[self.row].clone()
        return leaf

    def _built(self, trial: Trial) -> Step:
        return make_step(self.job, trial, self.job.member(trial), Step)

    def _prepared(self, one: Step, attributes: Attributes) -> Step:
        """Give a model the tensors of the member, and attributes of the model of the stack."""
        set_attributes(one.module, attributes)
        _load(one.module, self.tensors)
        if one.scale is not None and self.scale is not None:
            one.scale.scale.fill_(float(self.scale))

        def batch(number: int, seed: int) -> Batch:
            part = number - self.step * self.job.accumulate
            return tree_map(_copy, self.batches[part])

        return replace(one, source=Source("the last batches", batch))

    def _another(self, trial: Trial) -> Step:
        """Build another model for the same step."""
        one = self._built(trial)
        return self._prepared(one, copied(self.attributes, self.alone.module, one.module))

    def _passes(self, one: Step) -> Passes:
        """Compute loss and gradients, with the random numbers of the member."""
        self.generators.restore()
        losses = one.backward(self.step)
        one.unscale()
        gradients: dict[str, Tensor] = {}
        for name, p in one.module.named_parameters():
            if p.grad is not None:
                gradients[name] = p.grad.detach()[None].clone()
        return Passes(torch.stack(losses).mean()[None], gradients)

    # --- after the step ---------------------------------------------------------------------------

    def compare(self, losses: Tensor, gradients: Mapping[str, Tensor] | None) -> str:
        """Return whether the step agrees; raise NotStackable if members hold different things.

        `losses` are those of all members, `gradients` those of the member. A captured step has no
        gradients.
        """
        with preserved():
            alone = self._passes(self.alone)
            loss = losses[self.row : self.row + 1]
            together = Passes(loss, alone.gradients if gradients is None else dict(gradients))
            found = self._differences(alone, together)
            if not self._beyond(found, alone):
                return AGREES
            self._must_hold_the_same()
            if self._nudged_explain(found, alone):
                return AGREES
        return UNCLEAR

    def _differences(self, a: Passes, b: Passes, same_kernels: bool = False) -> Differences:
        """Compare passes; with the same kernels, half precision rounds both in the same way."""
        half = None if same_kernels else self.job.settings.half
        comparison = Comparison(self.stack.optimizer.laws, half)
        comparison.add_passes(self.step, a.loss, a.gradients, b.loss, b.gradients)
        return comparison.read(drew=False)

    def _beyond(self, found: Differences, alone: Passes) -> list[Difference]:
        if self.job.settings.half is None:
            return found.beyond()
        with OtherKernels():
            others = self._passes(self._another(self.member))
        expected = self._differences(alone, others)
        left: list[Difference] = []
        for difference in found:
            if difference.place.kind == "gradient":  # compared all together
                continue
            near = HALF_UNITS + NEAR * expected.found[difference.place].units
            if not difference.units <= near:
                left.append(difference)
        return left

    def _must_hold_the_same(self) -> None:
        """Raise NotStackable if a model that is built as the first member computes other numbers.

        Both run the same kernels from the same numbers.
        """
        if self.first.key == self.member.key:
            return
        # both anew: `alone` may have made steps before, which leave something behind
        again, once_more = (self._passes(self._another(self.member)) for _ in range(2))
        # kernels of a GPU may add in any order
        spread = self._differences(again, once_more, same_kernels=True)
        other = self._passes(self._another(self.first))
        left = self._differences(again, other, same_kernels=True).beyond([spread])
        if not left:
            return
        place = left[0].place
        of_tensor = f" of {place.name}" if place.name else ""
        raise NotStackable(
            f"with the same tensors, the models that were built for two members disagree at step"
            f" {self.step}: the {place.kind}{of_tensor} differs by {left[0].relative:.1g} of its"
            " size. So they differ in something that is not a tensor of the model, and that had no"
            " effect on the first steps; trained one after another",
            "stack-deviates",
        )

    def _nudged_explain(self, found: Differences, alone: Passes) -> bool:
        """Return whether runs that round otherwise differ as much."""
        if self.job.settings.half is not None:
            return False
        others: list[Differences] = []
        for number in range(NUDGES):
            generator = torch.Generator().manual_seed(number)
            one = self._another(self.member)
            with torch.no_grad():
                for p in one.module.parameters():
                    if p.is_floating_point() or p.is_complex():
                        p.copy_(nudged(p, generator, torch.finfo(p.dtype).eps))
            others.append(self._differences(alone, self._passes(one)))
        return not found.beyond(others)


@torch.no_grad()
def _load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        x.copy_(tensors[name])


def _copy(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
