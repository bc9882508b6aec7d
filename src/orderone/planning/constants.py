"""Powers of the width in the forward code of a model without a base (absolute mode).

T5 multiplies the input of its tied head by n^-1/2; Gemma, and optionally BART, the output of the
word embedding by n^1/2. One forward pass under `trace` shows the number. A number that equals
n^(+-1/2) or n^(+-1) counts as that power. Other numbers are constants of order one and are ignored,
and so are numbers that are part of a Hugging Face configuration.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from orderone.core.errors import with_code
from orderone.observe.inventory import Item, Place, unwrap
from orderone.observe.trace import trace
from orderone.planning import huggingface
from orderone.planning.base import Configuration, built, is_configuration
from orderone.planning.forward_constants import constants_by_use
from orderone.planning.options import ExampleBatch

POWERS = (-1.0, -0.5, 0.5, 1.0)


@dataclass(frozen=True)
class Constants:
    """Numbers that multiply the uses of tensors, by keys such as ("words.weight", "lookup")."""

    note: str
    at: Mapping[tuple[str, str], float | None] = field(default_factory=dict)

    def power(self, name: str, kind: str, width: int) -> float:
        """Return the number at this use if it is a power of the width, and 1 otherwise."""
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
        """Add the multipliers of output layers whose class overrides the forward code of Linear.

        This needs no example batch.
        """
        multipliers: dict[tuple[str, str], float | None] = {}
        for item, places in readouts:
            for place in places:
                module = model.get_submodule(place.module)
                if not isinstance(module, nn.Linear):
                    continue
                if type(module).forward is not nn.Linear.forward:
                    multipliers[item.name, "matrix"] = _multiplier(module)
        return replace(self, at=multipliers | dict(self.at))


def _multiplier(module: nn.Linear) -> float | None:
    """Return c if the module computes c W x, else None.

    The module may be on the meta device, so it is called with other weights.
    """
    W = torch.ones(module.out_features, module.in_features)
    x = torch.ones(1, module.in_features)
    parameters = {name: torch.zeros(each.shape) for name, each in module.named_parameters()}
    parameters["weight"] = W
    try:
        with torch.no_grad():
            output = torch.func.functional_call(module, parameters, (x,))
    except Exception:  # the user's forward code may raise anything
        return None
    value = float(output.flatten()[0]) / module.in_features
    if torch.allclose(output, torch.full_like(output, value * module.in_features)):
        return value
    return None


def collect(model: nn.Module, inputs: ExampleBatch | None, probe: bool) -> Constants:
    """Trace the model on the user's batch, or a shallow Hugging Face copy on a random batch."""
    inner = unwrap(model)
    config = getattr(inner, "config", None)
    if not probe:
        return Constants("probe: skipped (probe=False)")
    try:
        if inputs is not None:
            traced = trace(inner, inputs)
            subject = "this model on the example batch"
        elif is_configuration(config):
            traced = trace(*_few_layers(inner, config))
            subject = "a few layers of this width"
        else:
            return Constants("probe: not run in absolute mode")
    except Exception as error:  # the user's forward code may raise anything
        failure = f"probe: not run: the forward pass failed ({type(error).__name__}: {error})"
        return Constants(with_code(failure, "probe-not-run"))
    configured: list[float] = []
    if is_configuration(config):
        configured = [value for value in config.to_dict().values() if type(value) is float]
    constants: dict[tuple[str, str], float | None] = {}
    for at, value in constants_by_use(traced).items():
        if not _is_configured(value, configured):
            constants[at] = value
    note = f"probe: {subject}: powers of the width in the forward code are compensated"
    return Constants(note, constants)


def _is_configured(value: float | None, configured: Sequence[float]) -> bool:
    """Return whether a constant is part of the configuration.

    A logit scale of 1/8 is not a power of the width, although 8 is the root of a width of 64.
    """
    if value is None:
        return False
    for number in configured:
        if math.isclose(value, number) or math.isclose(value * number, 1):
            return True
    return False


def _few_layers(
    model: nn.Module, config: Configuration
) -> tuple[nn.Module, Mapping[str, torch.Tensor]]:
    """Return an instance with few layers and a batch.

    A large instance is on the meta device, where numbers in tensors cannot be read.
    """
    small = huggingface.few_layers(model, config)
    if huggingface.numel(model, small) <= huggingface.LARGEST:
        device = "cpu"
    else:
        device = "meta"
    copy = built(model, small, device=device).float()
    batch = next(huggingface.examples(copy, small))
    return copy, {name: tensor.to(device) for name, tensor in batch.items()}
