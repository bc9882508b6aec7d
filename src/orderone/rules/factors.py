"""Factors of one tensor, ratios of target to base: what rules and axes of scale return."""

from dataclasses import dataclass, replace

from orderone.core.inputs import Number
from orderone.theory.exponents.laws import UpdateLaw


@dataclass(frozen=True)
class Factors:
    """Ratios of target to base for one tensor.

    Attributes:
        multiplier: Factor in the forward pass.
        std: Factor of the initial size.
        lr: Factor of the learning rate.
        gradient: Predicted ratio of gradients. eps follows it, as the record of the optimizer says.
        gauge: Product of the multipliers that were moved in front of the tensor since the folded
            form of the rule.
        weight_decay: Factor of weight decay beyond the convention of `axes.decay`.
        eps: Factor of eps beyond that of the gradient.
        betas: Factors of 1 - beta, for the average of the gradient and the average of its square.
    """

    multiplier: float = 1.0
    std: float = 1.0
    lr: float = 1.0
    gradient: float = 1.0
    gauge: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    betas: tuple[float, float] = (1.0, 1.0)

    def __mul__(self, other: "Factors") -> "Factors":
        return Factors(
            self.multiplier * other.multiplier,
            self.std * other.std,
            self.lr * other.lr,
            self.gradient * other.gradient,
            self.gauge * other.gauge,
            self.weight_decay * other.weight_decay,
            self.eps * other.eps,
            (self.betas[0] * other.betas[0], self.betas[1] * other.betas[1]),
        )

    def with_multiplier(self, multiplier: float, law: UpdateLaw) -> "Factors":
        """Return the factors of the same network with one more multiplier in front of the tensor.

        This is the gauge shift of S0 1.2.1, as a number.
        """
        return replace(
            self,
            multiplier=self.multiplier * multiplier,
            std=self.std / multiplier,
            lr=self.lr / multiplier**law.gauge_weight,
            gradient=self.gradient * multiplier,
            gauge=self.gauge * multiplier,
        )

    def folding(self, multiplier: float, law: UpdateLaw) -> "Factors":
        """Return the factors of the tensor after a multiplier is folded into it."""
        return replace(self.with_multiplier(1 / multiplier, law), multiplier=self.multiplier)


@dataclass(frozen=True)
class Growth:
    """Ratios of the dimensions of a tensor, target over base; in absolute mode, the dimensions
    themselves."""

    fan_in: Number = 1.0
    fan_out: Number = 1.0
