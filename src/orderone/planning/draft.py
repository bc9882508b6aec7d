"""A row in the making: a tensor, its role, and factors that several considerations change in
turn."""

from dataclasses import dataclass, field, replace

from orderone.core.roles import Role
from orderone.optimizers.table import Algorithm
from orderone.planning.initial import Initial
from orderone.planning.roles.evidence import Evidence
from orderone.planning.roles.resolve import ResolvedRole
from orderone.rules.factors import Factors
from orderone.theory.exponents.optimizers import UpdateLaw, update_law


@dataclass
class Draft:
    evidence: Evidence
    role: ResolvedRole
    algorithm: Algorithm
    factors: Factors
    base: Initial
    base_name: str
    depth: float  # layers of its stack, target over base
    seen_as: str  # the tensor that was looked at in its place
    multiplier: float = 1.0
    reasons: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.evidence.item.name

    @property
    def law(self) -> UpdateLaw:
        return update_law(self.algorithm.law)

    @property
    def grows(self) -> bool:
        return self.role.role != Role.FIXED

    @property
    def can_be_multiplied(self) -> bool:
        """Frozen tensors cannot, nor can a gain that is stored as an offset from one and starts at
        zero."""
        shift = self.name.endswith("bias")
        gain = self.evidence.item.tensor.dim() == 1 and not shift
        return self.evidence.item.tensor.requires_grad and not (gain and self.base.rms == 0)

    def fold(self, multiplier: float, reason: str) -> None:
        self.factors = self.factors.folding(multiplier, self.law)
        self.reasons.append(f"takes {multiplier:.4g}: {reason}")

    def stands_behind(self, multiplier: float) -> None:
        """The forward code multiplies already: only what the tensor itself needs changes."""
        self.factors = replace(self.factors.behind(multiplier, self.law), multiplier=1.0)
