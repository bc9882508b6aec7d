"""Weight decay: how torch's `weight_decay` follows the size of the model.

torch's decoupled optimizers, and SGD's penalty, shrink weights by lr x weight_decay in a step. The
weights are then an average of the updates of the last 1 / (lr x weight_decay) steps, the averaging
timescale (Wang & Aitchison 2024, arXiv:2405.13698). With r the growth of the width:

    independent     lr x weight_decay stays: the same timescale in steps at every size (Wortsman et
                    al. 2023, arXiv:2309.14322; Wang & Aitchison). For muP and AdamW, weight_decay
                    of hidden matrices x r
    timescale       the same, and over batch size and tokens the timescale stays the same fraction
                    of the training whatever the rule of the horizon: lr x weight_decay x tokens /
                    batch stays
    sqrt            hidden matrices: lr x weight_decay x r^-1/2, so that weight_decay x r^1/2 if
                    lr / r. The largest singular value in equilibrium is measured to follow
                    (lr / weight_decay)^1/2 r^3/4, which is then constant (Fan et al. 2025,
                    arXiv:2510.15262). Other tensors as in "independent"
    inverse-width   lr x weight_decay / r for all tensors that grow (Qiu et al. 2025,
                    arXiv:2512.05620: nearly optimal where tokens grow with parameters)
    proportional    weight_decay stays (without multipliers): the decay falls with lr. For muP,
                    AdamW and hidden matrices this is "inverse-width"

Adam adds its penalty to the gradient before it normalizes. There, "independent" preserves the ratio
of penalty to gradient, and the other powers of r multiply it in the same way.
"""

from collections.abc import Mapping

from orderone.core.errors import one_of
from orderone.core.inputs import Name
from orderone.core.roles import Role
from orderone.rules.axes.width import width_of
from orderone.rules.factors import Factors, Growth
from orderone.theory.exponents.updates import LawInput, update_law

INDEPENDENT = "independent"
PROPORTIONAL = "proportional"
TIMESCALE = "timescale"
SQRT = "sqrt"
INVERSE_WIDTH = "inverse-width"
DECAY = (INDEPENDENT, PROPORTIONAL, TIMESCALE, SQRT, INVERSE_WIDTH)

# power of the width by which the shrinkage of one step falls, by convention and role
_POWERS: Mapping[str, Mapping[str, float]] = {
    SQRT: {Role.HIDDEN: 0.5},
    INVERSE_WIDTH: dict.fromkeys((Role.EMBEDDING, Role.HIDDEN, Role.READOUT, Role.VECTOR), 1.0),
}
_NO_GROWTH = Growth()


def decay_factor(
    factors: Factors,
    optimizer: LawInput,
    convention: Name = INDEPENDENT,
    coupled: bool | None = None,
    role: Name = Role.FIXED,
    growth: Growth = _NO_GROWTH,
) -> float:
    """Return the factor of torch.optim's `weight_decay` by a convention.

    `coupled` says that an optimizer adds the penalty to the gradient; by default, "adam" does.
    `role` and `growth` count for the conventions that follow the width.
    """
    law = update_law(optimizer)
    if coupled is None:
        coupled = optimizer == "adam"
    is_normalized = coupled and law.gradient != 1  # SGD's penalty shrinks weights by lr times decay
    convention = one_of(convention, DECAY, "decay")
    if convention == PROPORTIONAL:  # the same in every gauge
        return factors.gauge ** float(2 if is_normalized else law.gauge_weight)
    slower = shrinkage(convention, role, growth)
    if is_normalized:
        return factors.gradient / factors.std * slower
    return 1 / factors.lr * slower


def shrinkage(convention: str, role: Name, growth: Growth) -> float:
    """Return the factor of lr x weight_decay that a convention gives to a wider model."""
    power = _POWERS.get(convention, {}).get(role, 0.0)
    if power:
        return width_of(role, growth) ** -power
    return 1.0
