"""Random draws of a forward pass: every member draws the numbers of its stand-alone run.

A stack runs one forward pass for all members, and torch has one generator. So every member has a
state of that generator, and an operation that draws is run for one member after another, each from
its state, by the kernel of a stand-alone run.

The forward pass may also set a seed, or save a state and restore it (`torch.random.fork_rng`). To
notice that, torch's generator is seeded with a mark between draws, a number that nobody else uses:

    an unknown seed     somebody has set it: from there on, all members have this state
    an earlier mark     somebody has restored it: members have the states of that time again

A captured CUDA graph cannot do this: there, members draw different numbers, and other ones than
their stand-alone runs (`MemberDraws` is then only used in a proof).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orderone.torch_compat import OpOverload
from orderone.training.stacked.constants import Arguments, NamedArguments, TorchFunction

DROPOUT_OF_ATTENTION = 4  # place of dropout_p among the arguments of attention
FIRST_MARK = 0x6F726465726F0000  # far from the seeds that people use
LAST_MARK = FIRST_MARK + (1 << 16) - 1
REMEMBERED = 8  # marks of one forward pass to which its code may return

_marks = count()


@dataclass(frozen=True)
class GeneratorStates:
    """States of torch's generators."""

    cpu: Tensor
    cuda: Tensor | None

    @staticmethod
    def now() -> "GeneratorStates":
        cuda = None
        if torch.cuda.is_initialized():
            cuda = torch.cuda.get_rng_state()
        return GeneratorStates(torch.get_rng_state(), cuda)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)

    def same(self, other: "GeneratorStates") -> bool:
        same_on_gpu = True
        if self.cuda is not None and other.cuda is not None:
            same_on_gpu = torch.equal(self.cuda, other.cuda)
        return same_on_gpu and torch.equal(self.cpu, other.cpu)


class MemberDraws:
    """States of torch's generators for each member, the present ones if nobody sets others."""

    def __init__(self, members: int, states: Sequence[GeneratorStates] | None = None):
        self.states: list[GeneratorStates] = [GeneratorStates.now()] * members
        if states is not None:
            self.states = list(states)
        self._at_start: list[GeneratorStates] | None = None  # of the pass, if it has drawn
        self._earlier: dict[int, list[GeneratorStates]] = {}  # by mark

    def __len__(self) -> int:
        return len(self.states)

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed the members one by one."""
        for k, seed in enumerate(seeds):
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed(seed)
            self.states[k] = GeneratorStates.now()
        self._set_mark()

    def keep(self, members: Sequence[int]) -> None:
        """Continue with these members only."""
        self.states = [self.states[k] for k in members]

    # --- a pass -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a forward pass."""
        self._at_start = None
        seed = torch.default_generator.initial_seed()
        states = self._earlier.get(seed, list(self.states))
        if FIRST_MARK <= seed <= LAST_MARK:
            self._earlier = {seed: states}
        else:
            self._earlier = {}

    def rewind(self) -> None:
        """Return to the start of the pass, which was interrupted."""
        self._find_states()
        if self._at_start is not None:
            self.states = list(self._at_start)
        self._set_mark()

    def part(self, members: Sequence[int]) -> "MemberDraws":
        """Return the states of these members, for a pass of their own."""
        return MemberDraws(len(members), [self.states[k] for k in members])

    def put(self, members: Sequence[int], part: "MemberDraws") -> None:
        """Take the states of these members from their own pass."""
        for k, state in zip(members, part.states, strict=True):
            self.states[k] = state

    # --- draws ------------------------------------------------------------------------------------

    def find_common(self) -> bool:
        """Return whether all members have the same state."""
        self._find_states()
        first = self.states[0]
        return all(state is first or state.same(first) for state in self.states[1:])

    def once(self, call: Callable[[], object]) -> object:
        """Draw once for all members, which have the same state."""
        self._find_states()
        self.states[0].restore()
        result = call()
        self.states = [GeneratorStates.now()] * len(self)
        self._set_mark()
        return result

    def each(self, calls: Sequence[Callable[[], object]]) -> list[object]:
        """Make the call of every member from its state; it may draw or not."""
        before = GeneratorStates.now()
        self._find_states()
        results: list[object] = []
        states: list[GeneratorStates] = []
        drew = False
        for state, call in zip(self.states, calls, strict=True):
            state.restore()
            results.append(call())
            states.append(GeneratorStates.now())
            drew = drew or not states[-1].same(state)
        if drew:
            self.states = states
            self._set_mark()
        else:
            before.restore()
        return results

    def _find_states(self) -> None:
        """Find out whether somebody has set a seed or restored a state since the last draw."""
        seed = torch.default_generator.initial_seed()
        if seed in self._earlier:
            self.states = list(self._earlier[seed])
        elif not FIRST_MARK <= seed <= LAST_MARK:
            self.states = [GeneratorStates.now()] * len(self)
        if self._at_start is None:
            self._at_start = list(self.states)

    def _set_mark(self) -> None:
        mark = FIRST_MARK + next(_marks) % (LAST_MARK - FIRST_MARK)
        torch.default_generator.manual_seed(mark)
        self._earlier[mark] = list(self.states)
        if len(self._earlier) > REMEMBERED:
            del self._earlier[next(iter(self._earlier))]

    # --- checkpoints ------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the states with a leading axis of members."""
        if not FIRST_MARK <= torch.default_generator.initial_seed() <= LAST_MARK:
            self._find_states()
        tensors = {"cpu": torch.stack([state.cpu for state in self.states])}
        cuda = [state.cuda for state in self.states if state.cuda is not None]
        if len(cuda) == len(self):
            tensors["cuda"] = torch.stack(cuda)
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load what `tensors` returned."""
        rows = zip(tensors["cpu"], tensors.get("cuda", [None] * len(self)), strict=True)
        self.states = [
            GeneratorStates(cpu.clone(), None if cuda is None else cuda.clone())
            for cpu, cuda in rows
        ]
        self._set_mark()


# --- operations that draw -------------------------------------------------------------------------

# place and name of the argument that switches the draws on, and its default
SWITCHES: dict[TorchFunction, tuple[int, str, bool]] = {
    functional.dropout: (2, "training", True),
    functional.alpha_dropout: (2, "training", False),
    functional.feature_alpha_dropout: (2, "training", False),
    torch.dropout: (2, "train", True),
    torch.dropout_: (2, "train", True),
    torch.feature_dropout: (2, "train", True),
    torch.feature_dropout_: (2, "train", True),
    torch.alpha_dropout: (2, "train", True),
    torch.alpha_dropout_: (2, "train", True),
    torch.feature_alpha_dropout: (2, "train", True),
    torch.feature_alpha_dropout_: (2, "train", True),
    torch.native_dropout: (2, "train", True),
}
RATE = 1  # place of p among the arguments of dropout
INPLACE = 3  # place of inplace among the arguments of functional.dropout


def draws(func: TorchFunction, args: Arguments, kwargs: NamedArguments) -> bool:
    """Return whether a call may draw random numbers."""
    if func is functional.scaled_dot_product_attention:
        if len(args) > DROPOUT_OF_ATTENTION:
            return bool(args[DROPOUT_OF_ATTENTION])
        return bool(kwargs.get("dropout_p", 0.0))
    if func in SWITCHES:
        place, name, default = SWITCHES[func]
        if len(args) > place:
            switch = args[place]
        else:
            switch = kwargs.get(name, default)
        if len(args) > RATE:
            rate = args[RATE]
        else:
            rate = kwargs.get("p", 0.5)
        return bool(switch) and rate != 0
    return _is_random(func)


def out_of_place(
    func: TorchFunction, args: Arguments, kwargs: NamedArguments
) -> tuple[TorchFunction, Arguments, dict[str, object]] | None:
    """Return the call of dropout that leaves its input as it is; None if this call does so."""
    if func not in SWITCHES:
        return None
    name = func.__name__
    if name.endswith("_"):
        return getattr(torch, name.removesuffix("_")), args, dict(kwargs)
    if len(args) > INPLACE and args[INPLACE]:
        return func, (*args[:INPLACE], False), dict(kwargs)
    if kwargs.get("inplace"):
        return func, args, {**kwargs, "inplace": False}
    return None


@cache
def _is_random(func: TorchFunction) -> bool:
    name = getattr(func, "__name__", "")
    packet: Any = getattr(torch.ops.aten, name, None)
    if not hasattr(packet, "overloads"):  # no operation, or a method that every object has
        return False
    overloads: list[OpOverload] = [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def generators_of_models(leaves: Iterable[object]) -> list[torch.Generator]:
    """Return the generators among the arguments of a call that are not torch's own."""
    return [
        x for x in leaves if isinstance(x, torch.Generator) and x is not torch.default_generator
    ]
