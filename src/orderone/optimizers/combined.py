"""Two optimizers as one: Muon for the hidden matrices, AdamW for the rest.

For schedulers, checkpoints and training loops it is one `torch.optim.Optimizer`: its groups are the
groups of its parts, and its state dictionary has the usual form.
"""

from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.core.errors import InputError

ParamGroup: TypeAlias = dict[str, Any]
StateDict: TypeAlias = dict[str, Any]


class CombinedOptimizer(Optimizer):
    """An optimizer that consists of other optimizers, its `parts` by name."""

    def __init__(self, parts: Mapping[str, Optimizer]):
        self.parts: dict[str, Optimizer] = {}
        groups: list[ParamGroup] = []
        for part in parts.values():
            groups.extend({**group} for group in part.param_groups)
        super().__init__(groups, {})
        self.parts = dict(parts)
        self._share_with_parts()

    def _share_with_parts(self) -> None:
        """Share groups and states with the parts: what a scheduler writes reaches the parts."""
        self.param_groups: list[ParamGroup] = []
        for part in self.parts.values():
            self.param_groups.extend(part.param_groups)
        states = [part.state for part in self.parts.values()]
        self.state: defaultdict[Tensor, Any] = ChainMap(*states)  # type: ignore[assignment]

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts.values():
            part.step()
        return loss

    def add_param_group(self, param_group: ParamGroup) -> None:
        if self.parts:
            raise InputError(
                "param_group: add it to one of the optimizers in optimizer.parts, which has"
                f" {', '.join(self.parts)}",
                argument="param_group",
            )
        return super().add_param_group(param_group)

    def state_dict(self) -> StateDict:
        """Return the state dictionary of one optimizer; parameters are numbered across parts."""
        state: dict[int, object] = {}
        groups: list[ParamGroup] = []
        first = 0
        for part in self.parts.values():
            part_state = part.state_dict()
            for number, value in part_state["state"].items():
                state[first + number] = value
            for group in part_state["param_groups"]:
                numbers = [first + number for number in group["params"]]
                groups.append({**group, "params": numbers})
            first = sum(len(group["params"]) for group in groups)
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: StateDict) -> None:
        groups = list(state_dict["param_groups"])
        state = state_dict["state"]
        if len(groups) != len(self.param_groups):
            raise InputError(
                f"state_dict: expected {len(self.param_groups)} groups, got {len(groups)}",
                argument="state_dict",
            )
        for part in self.parts.values():
            part_groups = groups[: len(part.param_groups)]
            groups = groups[len(part.param_groups) :]
            numbers: set[int] = set()
            for group in part_groups:
                numbers.update(group["params"])
            part_state = {number: value for number, value in state.items() if number in numbers}
            part.load_state_dict({"state": part_state, "param_groups": part_groups})
        self._share_with_parts()

    def __getstate__(self) -> StateDict:
        return {"parts": self.parts}

    def __setstate__(self, state: StateDict) -> None:
        CombinedOptimizer.__init__(self, state["parts"])
