"""Batch size: factors for a batch that is m times as large, over the same training tokens.

**The SDE rule.** A step of SGD moves weights by -lr G, where G is the average gradient of B samples
with variance S / B. With the time t = lr x steps this is the stochastic differential equation

    dW = -grad L dt + sqrt(lr / B) S^1/2 dBrownian

Over the same tokens there are m times fewer steps, and the same t and the same noise lr / B need

    SGD     lr x m; weight decay as it is (a step shrinks weights by lr x decay)

(Li, Tai & E 2017, arXiv:1511.06251; Goyal et al. 2017, arXiv:1706.02677). An optimizer that
normalizes gradients divides them by their size, which is S^1/2 / B^1/2 if noise dominates: a step
moves weights by about lr B^1/2 S^-1/2 grad L, with fluctuations of size lr. Over 1 / m as many
steps, drift and noise are the same for

    Adam    lr x m^1/2, eps x m^-1/2, (1 - beta) x m

eps follows the size of gradients. (1 - beta) x m preserves the memory of both averages, counted in
tokens (Malladi et al. 2022, arXiv:2205.10287, square root scaling rule). Lion and Muon normalize
the momentum itself. There a fixed momentum is right: its noise, not that of one gradient, is the
size by which they divide, and with (1 - beta) x m the rate would have to grow by m, not by m^1/2.
Their memory is short beside the training, so that both choices have the same limit.

**Weight decay.** A step shrinks weights by lr x decay, so that over 1 / m as many steps

    decoupled decay    decay x m / (factor of lr), which is m^1/2 for Adam
    Adam's L2 penalty  the same over m^1/2, which is 1: the penalty is divided by the size of
                       gradients, which falls by m^1/2

preserve the total shrinkage: lr x decay x tokens / batch is the same at base and target.

**The power rule.** Learning rate, weight decay and eps follow the batch size as in the SDE rule. Of
the averages, only that of squares follows it, (1 - beta2) x m, as in ArchScale (`pretrain.py`). The
two rules differ more in `tokens`.
"""

from orderone.core.errors import InputError
from orderone.rules.axes.axis import Axis, Memory, ScaledTensor
from orderone.rules.factors import Factors


def sde_batch(tensor: ScaledTensor) -> Factors:
    """Return the factors of the square root rule, or of the linear rule for SGD."""
    require_sde(tensor)
    m = tensor.ratio
    if not tensor.normalizes:
        return Factors(lr=m)
    if tensor.memory == Memory.AVERAGES:
        averages = m
    else:
        averages = 1.0
    return Factors(lr=m**0.5, weight_decay=_decay(tensor), eps=m**-0.5, betas=(averages, averages))


def power_batch(tensor: ScaledTensor) -> Factors:
    """Return the factors of the empirical rule."""
    require_power(tensor)
    m = tensor.ratio
    if tensor.memory == Memory.AVERAGES:
        squares = m
    else:
        squares = 1.0
    return Factors(lr=m**0.5, weight_decay=_decay(tensor), eps=m**-0.5, betas=(1.0, squares))


def _decay(tensor: ScaledTensor) -> float:
    """Return the factor of weight decay that preserves the total shrinkage, if lr grows by
    sqrt(m)."""
    if tensor.coupled_decay:
        return 1.0
    return tensor.ratio**0.5


def require_sde(tensor: ScaledTensor) -> None:
    """Raise an InputError if no stochastic differential equation is known for the optimizer."""
    has_law = tensor.law.gradient in (0, 1) and not tensor.law.weight
    if tensor.memory is None or not has_law:
        raise InputError(
            "horizon: the SDE rule is known for SGD, Adam, AdamW, RMSprop, Lion and Muon, and for"
            " classes that were registered with memory=, and not for this optimizer; pass"
            " horizon=None and set lr and weight_decay for the target yourself",
            "horizon-without-law",
            argument="horizon",
        )


def require_power(tensor: ScaledTensor) -> None:
    """Raise an InputError if the optimizer is not like those that the power was measured with."""
    if tensor.memory is None or not tensor.normalizes or tensor.law.weight:
        raise InputError(
            "horizon: the power 0.32 was measured with AdamW and Muon, and this optimizer has"
            " another update law; pass horizon='sde' for SGD, or horizon=None",
            "horizon-without-law",
            argument="horizon",
        )


SDE_BATCH = Axis(
    "batch",
    sde_batch,
    formula="lr x m^1/2, weight decay x m^1/2, eps x m^-1/2, (1 - beta) x m; SGD: lr x m",
    source="Malladi et al. 2022, arXiv:2205.10287; SGD: Goyal et al. 2017, arXiv:1706.02677",
)
POWER_BATCH = Axis(
    "batch",
    power_batch,
    formula="lr x m^1/2, weight decay x m^1/2, eps x m^-1/2, (1 - beta2) x m",
    source="ArchScale, pretrain.py",
)
