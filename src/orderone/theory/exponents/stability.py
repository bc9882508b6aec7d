"""Is a parameterization stable: which condition holds, which fails, by how much, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from orderone.core.exact import ONE, ZERO, power
from orderone.core.inputs import Count, Name
from orderone.theory.exponents.alignment import GivenAlignment, read_alignment
from orderone.theory.exponents.attention import GivenAttention
from orderone.theory.exponents.conditions import (
    Condition,
    Network,
    changes,
    init_conditions,
    update_conditions,
)
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import Rule, read_rule
from orderone.theory.exponents.sizes import activation_exponents, plain


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
        return (
            f"FAILS  {self.condition}: {'shrinks' if self.margin > 0 else 'grows'} like"
            f" {power(-self.margin)}"
        )

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
        return [j for j in self.judged if not j.holds]

    def __str__(self) -> str:
        head = f"{self.title}: {'STABLE' if self else 'UNSTABLE'}"
        lines = [f"  {j}" for j in self.judged] + [f"  note   {note}" for note in self.notes]
        return "\n".join([head, *lines])

    __repr__ = __str__


def stability(
    p: Rule,
    optimizer: Name = "adam",
    alignment: GivenAlignment = "full",
    *,
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: GivenAttention = None,
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
    r = changes(updates, p.c)
    not_growing = {
        name: max(value, ZERO) if name.startswith("r_") else value for name, value in r.items()
    }
    judged = [Judged(k, k.value({})) for k in init_conditions(net)]
    for k in updates:
        if (
            k.code != "(13)"
        ):  # (13) asks every bound on r_{l+1} to be at least 0: its margin is the bound itself
            judged.append(Judged(k, k.value(not_growing | ({k.change: ZERO} if k.change else {}))))
    title = f"{p.name}, {optimizer}, {align.name} alignment"
    return Verdict(title, _worst_layers(judged), [*_foreign_rates(p, optimizer), *_notes(net, r)])


def _worst_layers(judged: list[Judged]) -> list[Judged]:
    """Layers of one role share their conditions; keep the tightest of each."""
    worst: dict[tuple[str, str, str], Judged] = {}
    for j in judged:
        key = (j.condition.code, j.condition.role, j.condition.subject)
        if key not in worst or j.margin < worst[key].margin:
            worst[key] = j
    return list(worst.values())


def _foreign_rates(p: Rule, optimizer: Name) -> Iterator[str]:
    if p.rates_for and update_law(p.rates_for[0]) != update_law(optimizer):
        yield (
            f"these rates were derived for {p.rates_for[0]}; see rules.get({p.name!r},"
            f" optimizer={optimizer!r})"
        )


def _notes(net: Network, r: dict[str, Fraction]) -> Iterator[str]:
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
    omega = net.alignment.omega["readout"]
    gap = ONE - net.p.a["readout"] - net.p.b["readout"] - max(last, ZERO)
    if omega < 1 and gap > 0:
        yield (
            f"this assumes omega = {omega} at the readout; on training tokens it is close to 1 from"
            f" the first step (erratum S0.5), and then the logits' change grows like {power(gap)}:"
            " see alignment='worst'"
        )
