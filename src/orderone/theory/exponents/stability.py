"""Is a parameterization stable: which condition holds, which fails, by how much, in words."""

from dataclasses import dataclass
from fractions import Fraction

from orderone.core.exact import power
from orderone.theory.exponents.alignment import GivenAlignment, read_alignment
from orderone.theory.exponents.attention import Attention
from orderone.theory.exponents.conditions import Condition, changes, init_conditions, update_conditions
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import Parameterization


@dataclass(frozen=True)
class Judged:
    """A condition and its margin: what is left of it, negative by as much as it fails."""

    condition: Condition
    margin: Fraction

    @property
    def holds(self) -> bool:
        return self.margin == 0 if self.condition.equality else self.margin >= 0

    def __str__(self) -> str:
        if not self.holds:
            way = "shrinks" if self.margin > 0 else "grows"
            return f"FAILS  {self.condition}: {way} like {power(-self.margin)}"
        slack = "" if self.margin == 0 else f", with {self.margin} to spare"
        return f"holds  {self.condition}{slack}"


@dataclass(frozen=True)
class Verdict:
    """True if every condition holds. `failed` lists the others; `notes` says what a bare yes or no would hide."""

    title: str
    judged: tuple[Judged, ...]
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[Judged, ...]:
        return tuple(j for j in self.judged if not j.holds)

    def __str__(self) -> str:
        head = f"{self.title}: {'STABLE' if self else 'UNSTABLE'}"
        lines = [f"  {j}" for j in self.judged] + [f"  note   {note}" for note in self.notes]
        return "\n".join([head, *lines])


def stability(
    p: Parameterization,
    optimizer: str = "adam",
    alignment: GivenAlignment = "full",
    *,
    depth: int = 3,
    norm: bool = False,
    tied: bool = False,
    attention: Attention | None = None,
) -> Verdict:
    """Judge `p`, with the learning rates p.c, against (6)-(8), (14), (18)-(20), and hence (21)-(24)."""
    law, align = update_law(optimizer), read_alignment(alignment)
    updates = list(update_conditions(p, law, align, depth, norm, tied))
    r = changes(updates, p.c)
    fixed = [Judged(k, k.value({})) for k in init_conditions(p, norm, tied)]
    # (13) asks every bound on r_{l+1} to be at least 0, so a bound's margin is the bound itself
    moving = [Judged(k, k.value({**r, str(k.change): Fraction(0)})) for k in updates if k.code != "(13)"]
    extra = [Judged(k, k.value({})) for k in attention.conditions(p, align)] if attention else []
    title = f"{p.name}, {optimizer}, {align.name} alignment"
    return Verdict(title, _worst_layers([*fixed, *moving, *extra]), tuple(_notes(p, align, r, depth)))


def _worst_layers(judged: list[Judged]) -> tuple[Judged, ...]:
    """Layers of one role share their conditions; keep the tightest of each."""
    worst: dict[tuple[str, str, str], Judged] = {}
    for j in judged:
        key = (j.condition.code, j.condition.role, j.condition.subject)
        if key not in worst or j.margin < worst[key].margin:
            worst[key] = j
    return tuple(worst.values())


def _notes(p: Parameterization, align, r: dict[str, Fraction], depth: int):
    last = r[f"r_{depth + 1}"]
    if last > 0:
        yield f"lazy: the last hidden layer's change vanishes like {power(-last)}; features do not move in the limit"
    size, omega = p.a["readout"] + p.b["readout"], align.omega["readout"]
    gap = Fraction(1) - size - max(last, Fraction(0))
    if omega < 1 and gap > 0:
        yield (
            f"this assumes omega = {omega} at the readout; on training tokens it is close to 1 from the first step "
            f"(errata S0.5), and then the logits' change grows like {power(gap)}: see alignment='worst'"
        )
