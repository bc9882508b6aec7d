"""Weight norm: W = g v / |v|, the length of every row apart from its direction.

A direction is scaled like the matrix itself, whose entries it has. Lengths are sqrt(fan-in) times
the entries, so that in hidden matrices, where entries go like fan-in^-1/2, they stay. A readout's
go with it:

    initial size   sqrt(r_in) times that of the matrix
    rate           what moves the output as the matrix does: sqrt(r_in) times the matrix's where
                   steps are normalized, the same where they are proportional to the gradient, which
                   has the other root; never faster than without

since after a few steps the direction is aligned with what it reads, and v h / |v| is of order
sqrt(fan-in).
"""

from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.weight_norm import WeightNorm

from orderone.planning.draft import Draft
from orderone.rules.factors import Factors
from orderone.theory.exponents.optimizers import UpdateLaw


def scale_lengths(drafts: Mapping[str, Draft], model: nn.Module) -> None:
    """Those of readouts: no dimension of theirs grows, and what they stand for does."""
    for length, direction in _pairs(model):
        own = drafts.get(length)
        matrix = drafts.get(direction)
        trained = own is not None and own.evidence.item.tensor.requires_grad
        if (
            own is not None
            and matrix is not None
            and trained
            and not own.grows
            and matrix.role.role == "readout"
        ):
            own.factors = _factors(matrix.factors, float(matrix.role.growth.fan_in), own.law)
            own.reasons = ["lengths of the rows of a readout (weight norm)"]


def _factors(matrix: Factors, fan_in: float, law: UpdateLaw) -> Factors:
    root = fan_in**0.5
    return Factors(std=matrix.std * root, lr=min(1.0, matrix.lr * root ** float(1 - law.gradient)))


def _pairs(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Names of lengths and directions, of torch's present and of its former weight norm."""
    for name, module in model.named_modules():
        if isinstance(module, ParametrizationList) and any(
            isinstance(p, parametrizations._WeightNorm) for p in module
        ):
            yield f"{name}.original0", f"{name}.original1"
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                yield f"{name}.{hook.name}_g".lstrip("."), f"{name}.{hook.name}_v".lstrip(".")
