"""The survey of a pass: a list of `Event`s, one for each call of a hook on a module.

It says where the main tensor is in the arguments or in the output of a module, and whether an
earlier event had the same tensor. A program that records passes (`PassProgram`) follows it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from orderone.core.unchecked import no_type_check
from orderone.observe.hooks import Identities, main_tensor
from orderone.observe.quantities import Quantity
from orderone.observe.tensor_facts import is_plain
from orderone.torch_compat import tree_flatten, tree_leaves, tree_unflatten


class Event(NamedTuple):
    """One call of a hook in a pass."""

    module: str
    quantity: Quantity
    leaves: tuple[int, ...] = ()  # where the tensor is
    size: int | None = None  # number of its sizes; None without a tensor to record
    is_new: bool = False  # whether no earlier event has its sizes
    row: int | None = None  # number of the sizes of its gradient
    taps: bool = False  # whether this event inserts the tap


class Choice(NamedTuple):
    """Choice of modules, inputs and gradients that a program records."""

    modules: frozenset[str]
    inputs: bool
    gradients: bool


class PassedOn(NamedTuple):
    """A tensor that a module returned as it came, and the alias that replaced it in the survey."""

    module: str
    origin: Node
    output_number: int
    alias: Node | None


class Survey:
    """The events of a pass that is not compiled."""

    def __init__(self, choice: Choice):
        self.events: list[Event] = []
        self.reason: str | None = None  # why a program cannot record this module
        self.device: torch.device | None = None
        self.rows: int = 0
        self._choice = choice
        self._identities = Identities()
        self._size_count = 0
        self._sizes: dict[int, int] = {}  # numbers of sizes by the identity of a tensor
        self._rows: dict[int, int] = {}
        self._inputs: set[int] = set()  # identities
        self._passed_on: list[PassedOn] = []

    def hooks(self, module: str) -> tuple[Callable[..., None], Callable[..., Any]]:
        """Return the hooks before and after a module."""

        def before(called: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if args:
                x = main_tensor(args[0])
            else:
                x = None
            if x is None:
                x = main_tensor((args, kwargs))
            if x is not None:
                self._inputs.add(self._identities.number(x))
            if self._choice.inputs:
                self._add(module, Quantity.INPUT, (args, kwargs), x)

        def after(called: nn.Module, args: tuple[Any, ...], output: object) -> Any:
            x = main_tensor(output)
            event = self._add(module, Quantity.OUTPUT, output, x)
            if x is not None and event.taps and self._identities.number(x) in self._inputs:
                return self._pass_on(event, x, output)
            return None

        return before, after

    def _add(self, module: str, quantity: Quantity, value: object, x: Tensor | None) -> Event:
        """Add the call of a hook; `x` is the main tensor of `value`."""
        event = Event(module, quantity)
        if x is not None:
            event = self._event(module, quantity, value, x)
        self.events.append(event)
        return event

    def _event(self, module: str, quantity: Quantity, value: object, x: Tensor) -> Event:
        if not is_plain(x) or x.device.type == "mps":
            self.reason = f"{module} has tensors of a type that cannot be recorded there"
        elif self.device is not None and x.device != self.device:
            self.reason = "its tensors are on several devices"
        self.device = x.device
        number = self._identities.number(x)
        is_new = number not in self._sizes
        size = self._sizes.setdefault(number, self._size_count)
        if is_new:
            self._size_count += 1
        row = None
        taps = False
        if quantity == Quantity.OUTPUT and self._choice.gradients and x.requires_grad:
            taps = number not in self._rows
            row = self._rows.setdefault(number, self.rows)
            if taps:
                self.rows += 1
        leaves: tuple[int, ...] = ()
        if taps or is_new:
            leaves = tuple(i for i, leaf in enumerate(tree_leaves(value)) if leaf is x)
            if not leaves:
                self.reason = f"{module} returns its tensor in an object that torch cannot open"
        return Event(module, quantity, leaves, size, is_new, row, taps)

    # --- modules that return their input ----------------------------------------------------------

    def _pass_on(self, event: Event, x: Tensor, output: object) -> Any:
        """Return the output with an alias of `x`, to tell its use from other uses of `x`."""
        if x.grad_fn is None or not event.leaves:
            self.reason = f"{event.module} returns its input, which nothing computes"
            return None
        alias = x.view_as(x)
        self._passed_on.append(PassedOn(event.module, x.grad_fn, x.output_nr, alias.grad_fn))
        number = self._identities.number(x)
        same = self._identities.number(alias)
        self._sizes[same] = self._sizes[number]
        self._rows[same] = self._rows[number]
        return replaced(output, event.leaves, alias)

    def end(self, output: object) -> None:
        """Check that tensors which modules passed on are not used in other ways."""
        if not self._passed_on:
            return
        users = _users(x.grad_fn for x in tree_leaves(output) if isinstance(x, Tensor))
        for module, origin, number, alias in self._passed_on:
            if users.get((origin, number), set()) - {alias}:
                self.reason = f"{module} returns its input, which other code uses too"


def _users(roots: Iterable[Node | None]) -> dict[tuple[Node, int], set[Node]]:
    """Return the nodes of autograd that use each output of each node."""
    users: dict[tuple[Node, int], set[Node]] = {}
    waiting = [node for node in roots if node is not None]
    visited = set(waiting)
    while waiting:
        node = waiting.pop()
        for origin, number in node.next_functions:
            if origin is None:
                continue
            users.setdefault((origin, number), set()).add(node)
            if origin not in visited:
                visited.add(origin)
                waiting.append(origin)
    return users


@no_type_check
def replaced(value: object, places: Sequence[int], x: Tensor) -> Any:
    """Return the value with another tensor in these places."""
    leaves, form = tree_flatten(value)
    for place in places:
        leaves[place] = x
    return tree_unflatten(leaves, form)
