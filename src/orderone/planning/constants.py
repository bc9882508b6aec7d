"""Powers of the width that the forward code of a model multiplies with itself, for a model that
stands alone.

T5 multiplies what its tied head reads by n^-1/2; Gemma, and BART if asked, what the words give by
n^1/2. One forward pass under `trace` shows the number, and a number that is n^(+-1/2) or n^(+-1) is
taken for that power. Others are constants of order one, and the model's own business; so are
numbers that stand in a Hugging Face configuration.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from orderone.observe.inventory import Item, Place, unwrap
from orderone.observe.trace import trace
from orderone.planning import huggingface
from orderone.planning.base import built, is_configuration
from orderone.planning.forward_facts import standing
from orderone.torch_compat import tree_map

POWERS = (-1.0, -0.5, 0.5, 1.0)


@dataclass(frozen=True)
class Constants:
    """`at` has the numbers at every use of a tensor, ("words.weight", "lookup") for one."""

    told: str
    at: Mapping[tuple[str, str], float | None] = field(default_factory=dict)

    def power(self, name: str, kind: str, width: int) -> float:
        """The number at this use if it is a power of the width, and 1 otherwise."""
        value = self.at.get((name, kind))
        if value is None or value <= 0 or width < 2:
            return 1.0
        power = math.log(value) / math.log(width)
        if any(abs(power - known) < 1e-3 for known in POWERS):
            return value
        return 1.0

    def of_heads(
        self, model: nn.Module, readouts: Iterable[tuple[Item, Sequence[Place]]]
    ) -> "Constants":
        """With what output layers with a forward code of their own multiply by; this needs no
        batch."""
        own = {
            (item.name, "matrix"): _multiplier(module)
            for item, places in readouts
            for module in (model.get_submodule(place.module) for place in places)
            if isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward
        }
        return replace(self, at=own | dict(self.at))


def _multiplier(module: nn.Linear) -> float | None:
    """c, if the module gives c W x; on numbers of our own, since it may be on the meta device."""
    W = torch.ones(module.out_features, module.in_features)
    x = torch.ones(1, module.in_features)
    settings = {name: torch.zeros(each.shape) for name, each in module.named_parameters()} | {
        "weight": W
    }
    try:
        with torch.no_grad():
            given = torch.func.functional_call(module, settings, (x,))
    except Exception:  # the user's forward code may raise anything
        return None
    value = float(given.flatten()[0]) / module.in_features
    if torch.allclose(given, torch.full_like(given, value * module.in_features)):
        return value
    return None


def look(model: nn.Module, inputs: Any, probe: bool) -> Constants:
    """On the batch given; for a Hugging Face model, on a copy of a few layers and a batch of our
    own."""
    inner = unwrap(model)
    config: Any = getattr(inner, "config", None)
    if not probe or not (is_configuration(config) or inputs is not None):
        return Constants(
            "probe: not run in absolute mode" + ("" if probe else ", as asked (probe=False)")
        )
    try:
        if inputs is None:
            seen = trace(*_few_layers(inner, config))
            what = "a few layers of this width"
        else:
            seen = trace(inner, inputs)
            what = "this model, on the batch given"
    except Exception as error:  # the user's forward code may raise anything
        return Constants(
            f"probe: not run: the forward pass failed ({type(error).__name__}: {error})"
        )
    if is_configuration(config):
        chosen = [value for value in config.to_dict().values() if type(value) is float]
    else:
        chosen = []
    found = {at: value for at, value in standing(seen).items() if not _by_hand(value, chosen)}
    return Constants(
        f"probe: {what}: powers of the width in the forward code are accounted for", found
    )


def _by_hand(value: float | None, chosen: Sequence[float]) -> bool:
    """A logit scale of 1/8 is no power of the width, though it is one at width 64."""
    return value is not None and any(
        math.isclose(value, x) or math.isclose(value * x, 1) for x in chosen
    )


def _few_layers(model: nn.Module, config: Any) -> tuple[nn.Module, Any]:
    """Real where that is cheap; without memory otherwise, where numbers kept in tensors cannot be
    read."""
    small = huggingface.few_layers(model, config)
    if huggingface.numel(model, small) <= huggingface.LARGEST:
        device = "cpu"
    else:
        device = "meta"
    copy = built(model, small, device=device).float()
    batch = next(huggingface.examples(copy, small))
    return copy, tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, batch)
