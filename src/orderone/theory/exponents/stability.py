"""Whether a parameterization is stable: which condition holds, which fails, by how much, in words.

The conditions are S0 (6)-(8), (14) and (18)-(20), as `solver` writes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from orderone.core.exact import ONE, ZERO, power
from orderone.core.inputs import Count, Name
from orderone.core.roles import Role
from orderone.theory.exponents.attention import AttentionInput
from orderone.theory.exponents.parameterization import (
    Exponents,
    Rule,
    activation_exponents,
    plain,
    read_rule,
)
from orderone.theory.exponents.solver import (
    Condition,
    Network,
    changes,
    init_conditions,
    update_conditions,
)
from orderone.theory.exponents.updates import AlignmentInput, read_alignment, update_law


@dataclass(frozen=True, repr=False)
class Judged:
    """A condition and its margin: what is left of it, negative by as much as it fails."""

    condition: Condition
    margin: Fraction

    @property
    def holds(self) -> bool:
        if self.condition.equality:
            return self.margin == 0
        return self.margin >= 0

    def __str__(self) -> str:
        if self.holds:
            slack = "" if self.margin == 0 else f", with {self.margin} to spare"
            return f"holds  {self.condition}{slack}"
        if self.condition.code == "(tied)":
            return f"FAILS  {self.condition}: they differ by {power(abs(self.margin))}"
        verb = "shrinks" if self.margin > 0 else "grows"
        return f"FAILS  {self.condition}: {verb} like {power(-self.margin)}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Verdict:
    """True if every condition holds. `failed` lists the others; `notes` says what a bare yes or no
    would hide."""

    title: str
    judged: list[Judged]
    notes: list[str]

    def __bool__(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> list[Judged]:
        return [judged for judged in self.judged if not judged.holds]

    def __str__(self) -> str:
        lines = [f"{self.title}: {'STABLE' if self else 'UNSTABLE'}"]
        for judged in self.judged:
            lines.append(f"  {judged}")
        for note in self.notes:
            lines.append(f"  note   {note}")
        return "\n".join(lines)

    __repr__ = __str__


def stability(
    p: Rule,
    optimizer: Name = "adam",
    alignment: AlignmentInput = "full",
    *,
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: AttentionInput = None,
) -> Verdict:
    """Judge `p`, with the learning rates p.c, against (6)-(8), (14), (18)-(20), and hence
    (21)-(24).

    A condition is judged as if the changes before it did not grow, so that a failure names its
    cause and not its effects.
    """
    p = read_rule(p)
    align = read_alignment(alignment)
    net = Network(p, update_law(optimizer), align, depth, norm, tied, attention)
    updates = list(update_conditions(net))
    c_and_r = changes(updates, p.c)
    not_growing = dict(c_and_r)
    for name, value in c_and_r.items():
        if name.startswith("r_"):
            not_growing[name] = max(value, ZERO)
    judged = [Judged(condition, condition.value({})) for condition in init_conditions(net)]
    for condition in updates:
        if condition.code == "(13)":  # asks for bounds of at least 0: these are the margins below
            continue
        at = dict(not_growing)
        if condition.change:
            at[condition.change] = ZERO
        judged.append(Judged(condition, condition.value(at)))
    title = f"{p.name}, {optimizer}, {align.name} alignment"
    notes = [*_foreign_rates(p, optimizer), *_notes(net, c_and_r)]
    return Verdict(title, _worst_layers(judged), notes)


def _worst_layers(judged: list[Judged]) -> list[Judged]:
    """Keep the tightest of the conditions that layers of one role share."""
    worst: dict[tuple[str, str, str], Judged] = {}
    for candidate in judged:
        condition = candidate.condition
        key = (condition.code, condition.role, condition.subject)
        if key not in worst or candidate.margin < worst[key].margin:
            worst[key] = candidate
    return list(worst.values())


def _foreign_rates(p: Rule, optimizer: Name) -> Iterator[str]:
    if p.rates_for and update_law(p.rates_for[0]) != update_law(optimizer):
        yield (
            f"these rates were derived for {p.rates_for[0]}; see rules.get({p.name!r},"
            f" optimizer={optimizer!r})"
        )


def _notes(net: Network, r: Exponents) -> Iterator[str]:
    logits = activation_exponents(plain(net.p, net.norm), net.depth)[-1]
    if logits > 0:
        yield f"at initialization the logits have size {power(logits)} in all"
    last = r[f"r_{net.depth + 1}"]
    out = r[f"r_{net.depth + 2}"]
    if out < 0:
        yield f"in all, the logits change by {power(-out)} in a step"
    if last > 0:
        yield (
            f"lazy: the last hidden layer's change vanishes like {power(-last)}; features do not"
            " move in the limit"
        )
    omega = net.alignment.omega[Role.READOUT]
    gap = ONE - net.p.a[Role.READOUT] - net.p.b[Role.READOUT] - max(last, ZERO)
    if omega < 1 and gap > 0:
        yield (
            f"this assumes omega = {omega} at the readout; on training tokens it is close to 1 from"
            f" the first step (erratum S0.5), and then the logits' change grows like {power(gap)}:"
            " see alignment='worst'"
        )
