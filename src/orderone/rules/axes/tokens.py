"""Training tokens: factors for a training that is m times as long, with the same batch size.

**The SDE rule.** Complete(d)P (Mlodozeniec et al. 2025, arXiv:2512.22382) treats batch and duration
as one number kappa = m_batch / m_tokens, the inverse of the ratio of step counts:

    Adam    lr x kappa^1/2, weight decay x kappa^1/2, eps x kappa^-1/2, (1 - beta) x kappa
    SGD     lr x kappa, weight decay as it is

so that for tokens alone kappa = 1 / m. Every time scale (averages, decay) is the same fraction of
the training, and so is the total noise lr^2 x steps of Adam. This is not the limit of one
differential equation: over more tokens the drift lr x steps grows like m^1/2 while the noise stays,
so that a longer training ends closer to the minimum. The total shrinkage, lr x decay x tokens /
batch, is preserved.

**The power rule.** The best learning rate of language models falls like tokens^-0.32 (Bjorck et al.
2024, arXiv:2409.19913; ArchScale, `pretrain.py`):

    lr x m^-0.32, weight decay x m^-0.68

The sources disagree about weight decay. Here it preserves lr x decay x tokens / batch, as in
nanochat (`base_train.py`: decay ~ 1 / tokens at a rate that does not depend on them). eps and betas
stay.

**L2 penalty of Adam.** The size of gradients does not depend on the number of tokens, so that the
same factors hold.
"""

from orderone.rules.axes.axis import Axis, Memory, ScaledTensor
from orderone.rules.axes.batch import require_power, require_sde
from orderone.rules.factors import Factors

POWER = 0.32


def sde_tokens(tensor: ScaledTensor) -> Factors:
    """Return the factors of kappa = 1 / m."""
    require_sde(tensor)
    kappa = 1 / tensor.ratio
    if not tensor.normalizes:
        return Factors(lr=kappa)
    if tensor.memory == Memory.AVERAGES:
        averages = kappa
    else:
        averages = 1.0
    return Factors(
        lr=kappa**0.5, weight_decay=kappa**0.5, eps=kappa**-0.5, betas=(averages, averages)
    )


def power_tokens(tensor: ScaledTensor) -> Factors:
    """Return the factors of the empirical power."""
    require_power(tensor)
    return Factors(lr=tensor.ratio**-POWER, weight_decay=tensor.ratio ** (POWER - 1))


SDE_TOKENS = Axis(
    "tokens",
    sde_tokens,
    formula="lr x m^-1/2, weight decay x m^-1/2, eps x m^1/2, (1 - beta) / m; SGD: lr / m",
    source="Mlodozeniec et al. 2025, arXiv:2512.22382",
)
POWER_TOKENS = Axis(
    "tokens",
    power_tokens,
    formula="lr x m^-0.32, weight decay x m^-0.68",
    source="Bjorck et al. 2024, arXiv:2409.19913",
)
