"""Two ways to train the same members: in one program, and one after another.

Both take the same steps: gradients of the batches of an update, then an update with gradients that
the caller passes. So a comparison can give both ways the same gradients, and a gradient that is
zero but for rounding, of which Adam makes a whole update, does not matter.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from orderone.seeding import AllGenerators, set_seed
from orderone.torch_compat import tree_map
from orderone.training.code_state import fresh_caches
from orderone.training.source import Batch, Source, moved
from orderone.training.stacked.clock import seconds_of_work
from orderone.training.stacked.draws import GeneratorStates, MemberDraws
from orderone.training.stacked.stack import Stack
from orderone.training.step import Step

EVALUATED = 100  # steps further, the seeds of an evaluation
MakeStep: TypeAlias = Callable[[], Step]


@dataclass(frozen=True)
class MemberData:
    """Batches of one member: those of each step, and a held-out batch if there is one."""

    batches: Sequence[Batch]  # `accumulate` for each step
    held_out: Sequence[Batch] = ()

    def source(self) -> Source:
        def batch(step: int, seed: int) -> Batch:
            return self.batches[step]

        return Source("batches that were read before", batch, lambda: self.held_out)


class Way(ABC):
    """One way to train all members; results have a leading axis of members."""

    drew: bool = False  # whether a forward pass has drawn random numbers
    states: Sequence[GeneratorStates] = ()  # of the members after the last forward pass

    @abstractmethod
    def gradients(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses and gradients of an update, from a fixed state of random generators."""

    @abstractmethod
    def update(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Clip these gradients, and let the optimizers make a step."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]: ...

    @abstractmethod
    def buffers(self) -> dict[str, Tensor]: ...

    @abstractmethod
    def evaluate(self) -> Tensor | None:
        """Return the losses of the held-out batch; None if there is none."""


@dataclass
class Together(Way):
    """Members of a stack; `data` are batches of all members."""

    stack: Stack
    data: Sequence[Sequence[Batch]]  # for each step, `accumulate` batches
    factors: Sequence[float]  # of the schedule, for each step
    seeds: Sequence[int]  # of random draws, for each member
    held_out: Sequence[Batch] = ()

    def __post_init__(self) -> None:
        self.draws: MemberDraws = self.stack.program.draws or MemberDraws(len(self.seeds))
        self.stack.program.draws = self.draws

    def _seed(self, step: int) -> None:
        set_seed(self.seeds[0] + step)
        self.draws.seed([seed + step for seed in self.seeds])

    def gradients(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        self._seed(step)
        before = GeneratorStates.now()
        losses, gradients = self.stack.gradients(self.data[step])
        self.stack.unscale(gradients)
        self.states: Sequence[GeneratorStates] = self.draws.states
        self.drew: bool = self.drew or not GeneratorStates.now().same(before)
        return losses, gradients

    def update(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        copies = {name: g.clone() for name, g in gradients.items()}
        self.stack.update(copies, self.factors[step])

    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.stack.parameters.items()}

    def buffers(self) -> dict[str, Tensor]:
        return self.stack.buffers

    def evaluate(self) -> Tensor | None:
        if not self.held_out:
            return None
        self._seed(EVALUATED)
        return self.stack.evaluate(self.held_out[0])


@dataclass
class OneByOne(Way):
    """Members that are trained one after another.

    Each is built directly before its first forward pass, the last member first. So a member uses
    what its own construction has left in global variables or in classes, as it does in a
    stand-alone run. `around` is entered for every forward pass, for example to compute it by other
    kernels.
    """

    makers: Sequence[MakeStep]
    seeds: Sequence[int]  # of random draws, for each member
    around: AbstractContextManager[object] = field(default_factory=nullcontext)
    absent: set[tuple[int, str]] = field(default_factory=set)  # members and tensors not reached
    # Whether members draw the same numbers from numpy and `random`. With different seeds they do
    # not, and a stack cannot repeat that: a model that uses such numbers has to deviate from it.
    same_elsewhere: bool = False
    elsewhere: int | None = None  # seed of numpy and `random`, if not that of the member
    drew_elsewhere: bool = False  # whether a pass has drawn from numpy or `random`
    seconds: dict[tuple[int, int], float] = field(default_factory=dict)  # by member and step
    _made: dict[int, Step] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.makers)

    @property
    def steps(self) -> list[Step]:
        return [self.step_of(k) for k in range(len(self))]

    def step_of(self, k: int) -> Step:
        """Return the step of member `k`, which is built at the first call."""
        if k not in self._made:
            self._made[k] = self.makers[k]()
        return self._made[k]

    def _seed(self, k: int, step: int) -> None:
        if self.elsewhere is not None or self.same_elsewhere:
            set_seed(self.seeds[0] + step if self.elsewhere is None else self.elsewhere)
            torch.manual_seed(self.seeds[k] + step)
        else:
            set_seed(self.seeds[k] + step)

    def _passed(self, k: int, after: AllGenerators) -> None:
        """Do something after the passes of member `k`."""

    def gradients(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        losses: list[Tensor] = []
        members: list[dict[str, Tensor]] = []
        states: list[GeneratorStates] = []
        self.absent.clear()
        for k in reversed(range(len(self))):
            one = self.step_of(k)
            self._seed(k, step)
            all_before = AllGenerators.now()
            before = GeneratorStates(all_before.cpu, all_before.cuda)
            started = seconds_of_work()
            caches: AbstractContextManager[None] = nullcontext()
            if step == 0:  # in a process of its own, the first pass would fill its caches
                caches = fresh_caches(one.module, one.loss_function)
            with self.around, caches:
                parts = one.backward(step)
                one.unscale()
            self.seconds[k, step] = seconds_of_work() - started
            after = AllGenerators.now()
            states.append(GeneratorStates(after.cpu, after.cuda))
            self.drew_elsewhere = self.drew_elsewhere or not after.same_outside_torch(all_before)
            self._passed(k, after)
            self.drew: bool = self.drew or not states[-1].same(before)
            losses.append(torch.stack(parts).mean())
            gradients: dict[str, Tensor] = {}
            for name, p in one.module.named_parameters():
                if p.grad is None:
                    self.absent.add((k, name))
                else:
                    gradients[name] = p.grad.detach().clone()
            members.append(gradients)
        self.states: Sequence[GeneratorStates] = states[::-1]
        return torch.stack(losses[::-1]), _stacked(members[::-1])

    def update(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        for k, one in enumerate(self.steps):
            for name, p in one.module.named_parameters():
                p.grad = None  # torch does not update a tensor that a pass has not reached
                if name in gradients and (k, name) not in self.absent:
                    p.grad = gradients[name][k].clone()
            started = seconds_of_work()
            one.update()
            self.seconds[k, step] += seconds_of_work() - started

    def parameters(self) -> dict[str, Tensor]:
        return _stacked([dict(one.module.named_parameters()) for one in self.steps])

    def buffers(self) -> dict[str, Tensor]:
        return _stacked([dict(one.module.named_buffers()) for one in self.steps])

    def evaluate(self) -> Tensor | None:
        losses: list[Tensor] = []
        for k, one in enumerate(self.steps):
            self._seed(k, EVALUATED)
            with self.around:
                found = one.evaluate()
            if found is None:
                return None
            losses.append(found[0])
        return torch.stack(losses)


@dataclass
class StandAlone(OneByOne):
    """Members that draw the random numbers of their real stand-alone runs, from their seeds on."""

    _generators: dict[int, AllGenerators] = field(default_factory=dict)

    def _seed(self, k: int, step: int) -> None:
        if step >= EVALUATED:
            set_seed(self.seeds[k] + step)
        elif k in self._generators:
            self._generators[k].restore()
        else:
            set_seed(self.seeds[k])

    def _passed(self, k: int, after: AllGenerators) -> None:
        self._generators[k] = after


def _stacked(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack tensors that all members have; a gradient that some lack counts as zero for them."""
    stacked: dict[str, Tensor] = {}
    names: dict[str, Tensor] = {}
    for member in members:
        names.update(member)
    for name, example in names.items():
        stacked[name] = torch.stack(
            [member.get(name, torch.zeros_like(example)).detach() for member in members]
        )
    return stacked


def rounded_otherwise(
    makers: Sequence[MakeStep], seeds: Sequence[int], nudges: int, eps: float = 0.0
) -> OneByOne:
    """Change every number that the members hold or read by at most one unit in the last place.

    A computation that rounds elsewhere cannot be expected to differ less than this makes it differ.
    A unit is at least `eps` of the number.
    """
    generator = torch.Generator().manual_seed(nudges)
    return OneByOne([partial(_rounded_otherwise, make, generator, eps) for make in makers], seeds)


def _rounded_otherwise(make: MakeStep, generator: torch.Generator, eps: float) -> Step:
    one = make()
    with torch.no_grad():
        for tensor in [*one.module.parameters(), *one.module.buffers()]:
            tensor.copy_(_nudged(tensor, generator, eps))
    source = one.source

    def batch(step: int, seed: int) -> Batch:
        read = moved(source.at(step, seed), one.world.device, one.settings.precision)
        return tree_map(lambda x: _nudged(x, generator, eps), read)

    return replace(one, source=replace(source, batch=batch))


def _nudged(x: object, generator: torch.Generator, eps: float) -> object:
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        return x
    return nudged(x, generator, max(eps, torch.finfo(x.dtype).eps))


def nudged(x: Tensor, generator: torch.Generator, eps: float) -> Tensor:
    """Return a tensor whose entries are larger or smaller by `eps` of their size."""
    sign = torch.randint(0, 2, x.shape, generator=generator).to(x.device) * 2 - 1
    return x * (1 + sign.to(x.dtype) * eps)  # in the precision of x: 1 + eps is 1 in a coarser one
