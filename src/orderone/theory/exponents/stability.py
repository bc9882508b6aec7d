"""Stability of a parameterization: which conditions hold, which fail, and by how much.

The conditions are S0 (6)-(8), (14) and (18)-(20), in the form of `solver`.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from orderone.core.errors import hint_on_codes, with_code
from orderone.core.exact import ONE, ZERO, power
from orderone.core.inputs import Count
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
from orderone.theory.exponents.updates import (
    AlignmentInput,
    LawInput,
    read_alignment,
    update_law,
)


@dataclass(frozen=True, repr=False)
class Judged:
    """Condition and its margin; a negative margin is the exponent by which it fails."""

    condition: Condition
    margin: Fraction

    @property
    def holds(self) -> bool:
        if self.condition.equality:
            return self.margin == 0
        return self.margin >= 0

    def __str__(self) -> str:
        if self.holds:
            if self.margin == 0:
                slack = ""
            else:
                slack = f", with {self.margin} to spare"
            return f"holds  {self.condition}{slack}"
        if self.condition.code == "(tied)":
            return f"FAILS  {self.condition}: they differ by {power(abs(self.margin))}"
        verb = "shrinks" if self.margin > 0 else "grows"
        return f"FAILS  {self.condition}: {verb} like {power(-self.margin)}"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Verdict:
    """Result of `stability`, true if every condition holds.

    `failed` lists the conditions that do not hold; `notes` adds remarks, each with its code.
    """

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
        return "\n".join([*lines, *hint_on_codes(self.notes)])

    __repr__ = __str__


def stability(
    p: Rule,
    optimizer: LawInput = "adam",
    alignment: AlignmentInput = "full",
    *,
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: AttentionInput = None,
) -> Verdict:
    """Test `p` with the learning rates p.c against (6)-(8), (14), (18)-(20), and so (21)-(24).

    Each condition is tested as if the changes in earlier layers did not grow, so that a failure
    names the cause and not its effects.
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
        if condition.code == "(13)":  # r >= 0: the margins below say the same
            continue
        at = dict(not_growing)
        if condition.change:
            at[condition.change] = ZERO
        judged.append(Judged(condition, condition.value(at)))
    title = f"{p.name}, {optimizer}, {align.name} alignment"
    notes = [*_note_on_rates(p, optimizer), *_notes(net, c_and_r)]
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


def _note_on_rates(p: Rule, optimizer: LawInput) -> Iterator[str]:
    if p.rates_for and update_law(p.rates_for[0]) != update_law(optimizer):
        yield with_code(
            f"the learning rates were derived for {p.rates_for[0]}, not for {optimizer}; use"
            f" rules.get({p.name!r}, optimizer={optimizer!r})",
            "rates-for-another-optimizer",
        )


def _notes(net: Network, r: Exponents) -> Iterator[str]:
    logits = activation_exponents(plain(net.p, net.norm), net.depth)[-1]
    if logits > 0:
        yield with_code(
            f"all causes together: logits of size {power(logits)} at initialization",
            "growing-logits",
        )
    last = r[f"r_{net.depth + 1}"]
    out = r[f"r_{net.depth + 2}"]
    if out < 0:
        yield with_code(
            f"all causes together: a step changes the logits by {power(-out)}", "growing-logits"
        )
    if last > 0:
        yield with_code(
            f"no feature learning: changes of the last hidden layer vanish like {power(-last)}",
            "lazy-training",
        )
    omega = net.alignment.omega[Role.READOUT]
    gap = ONE - net.p.a[Role.READOUT] - net.p.b[Role.READOUT] - max(last, ZERO)
    if omega < 1 and gap > 0:
        yield with_code(
            f"assumes omega = {omega} at the readout; measured on training tokens it is close to 1"
            f" from the first step (erratum S0.5), and then changes of the logits grow like"
            f" {power(gap)}; compare alignment='worst'",
            "readout-alignment",
        )
