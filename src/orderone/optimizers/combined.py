"""Two optimizers as one: Muon for the hidden matrices, AdamW for the rest.

Schedulers, checkpoints and training loops see one `torch.optim.Optimizer`: its groups are the
groups of its parts, and its state dictionary looks like any other.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer


class CombinedOptimizer(Optimizer):
    def __init__(self, parts: Mapping[str, Optimizer]):
        self.parts: dict[str, Optimizer] = {}
        super().__init__([{**group} for part in parts.values() for group in part.param_groups], {})
        self.parts = dict(parts)
        self._show_parts()

    def _show_parts(self) -> None:
        """Groups and states of the parts themselves: a scheduler that writes here writes there."""
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]
        self.state = ChainMap(*(part.state for part in self.parts.values()))  # type: ignore[assignment]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts.values():
            part.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.parts:
            raise ValueError(
                "add the group to one of the optimizers that step: optimizer.parts has"
                f" {', '.join(self.parts)}"
            )
        return super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """As one optimizer's: parameters are numbered through."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        for part in self.parts.values():
            own = part.state_dict()
            first = sum(len(group["params"]) for group in groups)
            state |= {first + number: value for number, value in own["state"].items()}
            groups += [
                {**group, "params": [first + number for number in group["params"]]}
                for group in own["param_groups"]
            ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        groups = list(state_dict["param_groups"])
        state = state_dict["state"]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"expected a state of {len(self.param_groups)} groups, got {len(groups)}"
            )
        for part in self.parts.values():
            own = groups[: len(part.param_groups)]
            groups = groups[len(part.param_groups) :]
            numbers = {number for group in own for number in group["params"]}
            part.load_state_dict(
                {"state": {n: v for n, v in state.items() if n in numbers}, "param_groups": own}
            )
        self._show_parts()

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        CombinedOptimizer.__init__(self, state["parts"])
