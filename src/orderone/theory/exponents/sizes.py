"""Predicted sizes: exponents e with RMS = Theta(n^e), for the bigram model (1) of S0.

The model has L hidden layers.

At initialization they follow S0 (3)-(5), see `parameterization`. In training, changes add up along
the layers, S0 (12)-(17):

    dh_1     = n^{-(a_0 + e_0)}
    dh_{l+1} = n^{-a_l} (W dh_l + dW h_l + dW dh_l)
             = n^{-(a_l + b_l) + omega} dh_l
             + n^{-(a_l + e_l) + alpha} h_l
             + n^{-(a_l + e_l) + u} dh_l

and a normalized h cannot change by more than its size. Gradients change in the same way, from the
logits down.
"""

from fractions import Fraction
from typing import NamedTuple

from orderone.core.errors import switch
from orderone.core.exact import HALF, ZERO
from orderone.core.inputs import Count
from orderone.core.roles import Role
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.parameterization import (
    Exponents,
    Parameterization,
    Rule,
    activation_exponents,
    backward_exponents,
    gradient_exponents,
    layer_roles,
    plain,
    weight_gradients,
)
from orderone.theory.exponents.updates import (
    Alignment,
    AlignmentInput,
    LawInput,
    read_alignment,
    update_law,
)


def rms(
    p: Rule,
    depth: Count = 3,
    norm: bool = False,
    *,
    training: bool = False,
    optimizer: LawInput = "adam",
    alignment: AlignmentInput = "full",
) -> Exponents:
    """Return exponents of h1..h{L+2}, h'1..h'{L+2}, W'0..W'{L+1}, where L = `depth`.

    L is the number of hidden layers. With `training=True`, return the sizes after an update with
    this optimizer and alignment, and the changes themselves: ΔW0..ΔW{L+1} and Δh1..Δh{L+2}, where
    Δh{L+2} is the change of the logits. Where a hidden update outgrows its weight before a
    normalization, gradients depend on angles as well as sizes, and are left out.
    """
    norm = switch(norm, "norm")
    p = plain(p, norm)
    roles = layer_roles(depth)
    step = _Step(p, roles, update_law(optimizer), read_alignment(alignment))
    h = activation_exponents(p, depth)
    dh = backward_exponents(p, depth)
    if not switch(training, "training"):
        gradients = weight_gradients(p, h, dh, depth)
        return _named("h", h[1:], 1) | _named("h'", dh[1:], 1) | _named("W'", gradients, 0)

    change, grown = step.changes(h, norm)
    h = [max(before, changed) for before, changed in zip(h, change, strict=True)]
    updates = [-step.update_exponents()[role] for role in roles]
    sizes = _named("h", h[1:], 1) | _named("Δh", change[1:], 1) | _named("ΔW", updates, 0)
    if any(grown[2:]):
        return sizes
    dh = step.backward(dh, min(change[-1], ZERO))
    # a first normalization divides by the new size of its input (Lemma D.2)
    divided = [dh[0], dh[1] - grown[1], *dh[2:]]
    gradients = weight_gradients(p, h, divided, depth)
    return sizes | _named("h'", dh[1:], 1) | _named("W'", gradients, 0)


class _Step(NamedTuple):
    """One update of every layer, with the learning rates p.c."""

    p: Parameterization
    roles: list[str]
    law: UpdateLaw
    alignment: Alignment

    def update_exponents(self) -> Exponents:
        """Return e with dW = Theta(n^{-e}): S0 (12), erratum S0.4."""
        p = self.p
        g = gradient_exponents(p, len(self.roles) - 2)
        return {role: p.c[role] + self.law.offset(role, p.b[role], g[role]) for role in p.roles}

    def changes(self, h: list[Fraction], norm: bool) -> tuple[list[Fraction], list[Fraction]]:
        """Return Δh_0 ... Δh_{L+2}, and the growth of each layer's output before a normalization.

        The growth is the exponent of the new size over the old one.
        """
        p = self.p
        e = self.update_exponents()
        change = [ZERO]
        grown = [ZERO]
        for i, role in enumerate(self.roles):
            size = -p.a[role] - e[role]
            if role != Role.EMBEDDING:
                alpha = self.law.reach(role, self.alignment.alpha[role])
                u = self.law.reach(role, self.alignment.u[role])
                carried = self.alignment.omega[role] - p.a[role] - p.b[role] + change[i]
                size = max(carried, size + alpha + h[i], size + u + change[i])
            if norm and role != Role.READOUT:
                change.append(min(size, ZERO))
                grown.append(max(size, ZERO))
            else:
                change.append(size)
                grown.append(ZERO)
        return change, grown

    def backward(self, dh: list[Fraction], change: Fraction) -> list[Fraction]:
        """Return h' after the update, for a `change` of the logits' gradient.

        The changes W^T Δh' + ΔW^T h' + ΔW^T Δh' add up from the logits down, as Δh does upwards.
        """
        p = self.p
        e = self.update_exponents()
        after = [dh[-1]]
        for i, role in reversed(list(enumerate(self.roles))):
            terms = ZERO
            alpha = ZERO
            u = ZERO
            if role == Role.HIDDEN:
                terms = HALF
                alpha = self.law.reach(role, self.alignment.alpha[role])
                u = self.law.reach(role, self.alignment.u[role])
            updated = max(alpha - e[role] + dh[i + 1], u - e[role] + change)
            change = -p.a[role] + max(terms - p.b[role] + change, updated)
            after.append(max(dh[i], change))
        return after[::-1]


def _named(symbol: str, sizes: list[Fraction], first: int) -> Exponents:
    return {f"{symbol}{first + i}": size for i, size in enumerate(sizes)}
