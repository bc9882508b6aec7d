"""Predicted sizes: exponents e with RMS = Theta(n^e), for the bigram model (1) of S0 with L hidden
layers.

At initialization sums run over independent terms, n^{1/2} each:

    h_1      = n^{-(a_0 + b_0)}          h_{l+1} = n^{1/2 - (a_l + b_l)} h_l
                                         S0 (3)
    h'_{L+2} = Theta(1),  h'_{L+1} = n^{-(a + b)_{L+1}},   h'_l = n^{1/2 - (a_l + b_l)} h'_{l+1}
                                                           S0 (4)
    W'_l     = n^{-a_l} h'_{l+1} h_l
             S0 (5)

The recursion gives Var(W'_l) = n^{L - 1 - 2(S - b_l)} for a hidden layer; the exponent printed in
(5) is 2 too large (erratum S0.1). The softmax gradient h'_{L+2} is bounded, so its second moment is
of order one (errata S0.2, S0.10). For l = 0 and l = L+1 the exponent L - 2(S - b_l) is the same if
b is: the two gradients of a tied tensor match.

RMSNorm after every layer but the last sets RMS(h_l) = 1 and divides the gradient by RMS(u_l) (Lemma
D.2). Both at once are what a multiplier 1/RMS(u_l) would do: a normalized network is the plain one
with a_l moved until (6) and (7) hold, and Lemma D.3 follows without a second calculation.

In training, changes add up along the layers, S0 (12)-(17):

    dh_1     = n^{-(a_0 + e_0)}
    dh_{l+1} = n^{-a_l} (W dh_l + dW h_l + dW dh_l)
             = n^{-(a_l + b_l) + omega} dh_l  +  n^{-(a_l + e_l) + alpha} h_l  +  n^{-(a_l + e_l) +
             u} dh_l

and a normalized h cannot change by more than its own size. Gradients change in the same way, from
the logits down.
"""

from dataclasses import replace
from fractions import Fraction

from orderone.core.exact import HALF, ZERO, count
from orderone.core.inputs import Count, Name
from orderone.theory.exponents.alignment import Alignment, GivenAlignment, read_alignment
from orderone.theory.exponents.optimizers import UpdateLaw, update_law
from orderone.theory.exponents.parameterization import Exponents, Parameterization, Rule, read_rule


def rms(
    p: Rule,
    depth: Count = 3,
    norm: bool = False,
    *,
    training: bool = False,
    optimizer: Name = "adam",
    alignment: GivenAlignment = "full",
) -> Exponents:
    """Exponents of h1..h{L+2}, h'1..h'{L+2}, W'0..W'{L+1}, where L = `depth` is the number of
    hidden layers.

    With `training=True`, the sizes after an update with this optimizer and alignment, and the
    changes themselves: ΔW0..ΔW{L+1} and Δh1..Δh{L+2}; the last one is the change of the logits.
    Where a hidden update outgrows its weight in front of a normalization, gradients depend on
    angles as well as sizes, and are left out.
    """
    p = plain(p, norm)
    roles = layer_roles(depth)
    law = update_law(optimizer)
    align = read_alignment(alignment)
    h = _forward(p, roles)
    dh = _backward(p, roles)
    if not training:
        return (
            _named("h", h[1:], 1)
            | _named("h'", dh[1:], 1)
            | _named("W'", _gradients(p, roles, h, dh), 0)
        )

    e = update_exponents(p, law, depth)
    change, grown = _changes(p, roles, h, e, law, align, norm)
    h = [max(pair) for pair in zip(h, change, strict=True)]
    sizes = (
        _named("h", h[1:], 1)
        | _named("Δh", change[1:], 1)
        | _named("ΔW", [-e[role] for role in roles], 0)
    )
    if any(grown[2:]):
        return sizes
    dh = _backward_after(p, roles, dh, e, law, align, min(change[-1], ZERO))
    u = [
        dh[0],
        dh[1] - grown[1],
        *dh[2:],
    ]  # a first normalization divides by the new size of its input (Lemma D.2)
    return sizes | _named("h'", dh[1:], 1) | _named("W'", _gradients(p, roles, h, u), 0)


def plain(p: Rule, norm: bool) -> Parameterization:
    """`p`, or with `norm` the plain network that behaves like p with RMSNorm after every layer but
    the last."""
    p = read_rule(p)
    target = {"embedding": ZERO, "hidden": HALF}
    if norm:
        return replace(p, a={**p.a, **{role: target[role] - p.b[role] for role in target}})
    return p


def gradient_exponents(p: Rule, depth: Count = 3) -> Exponents:
    """g with RMS(W') = Theta(n^{-g}) at initialization, per role: S0 (10) where (6)-(8) hold, and
    in general otherwise."""
    p = read_rule(p)
    roles = layer_roles(depth)
    h = _forward(p, roles)
    dh = _backward(p, roles)
    g = {role: -size for role, size in zip(roles, _gradients(p, roles, h, dh), strict=True)}
    if "vector" in p.a:  # a bias of layer l has the gradient n^{-a} h'_{l+1}; the largest shows
        g["vector"] = p.a["vector"] - max(dh[1:-1])
    return g


def update_exponents(p: Parameterization, law: UpdateLaw, depth: Count = 3) -> Exponents:
    """e with dW = Theta(n^{-e}): S0 (12), erratum S0.4."""
    g = gradient_exponents(p, depth)
    return {role: p.c[role] + law.offset(role, p.b[role], g[role]) for role in p.roles}


def layer_roles(depth: Count) -> list[str]:
    """The roles of W_0 ... W_{L+1}."""
    return [
        "embedding",
        *["hidden"] * count(depth, "depth (the number of hidden layers)", most=1000),
        "readout",
    ]


def activation_exponents(p: Parameterization, depth: Count = 3) -> list[Fraction]:
    """h_0 ... h_{L+2} at initialization."""
    return _forward(p, layer_roles(depth))


def _forward(p: Parameterization, roles: list[str]) -> list[Fraction]:
    h = [ZERO]  # h_0 is one-hot: a single entry of size one
    for role in roles:
        terms = ZERO if role == "embedding" else HALF
        h.append(h[-1] + terms - p.a[role] - p.b[role])
    return h


def _backward(p: Parameterization, roles: list[str]) -> list[Fraction]:
    """h'_0 ... h'_{L+2} at initialization (the first is void)."""
    dh = [ZERO]
    for role in reversed(roles):
        terms = HALF if role == "hidden" else ZERO  # a readout's V outputs do not grow
        dh.append(dh[-1] + terms - p.a[role] - p.b[role])
    return dh[::-1]


def _gradients(
    p: Parameterization, roles: list[str], h: list[Fraction], dh: list[Fraction]
) -> list[Fraction]:
    return [-p.a[role] + dh[i + 1] + h[i] for i, role in enumerate(roles)]


def _changes(
    p: Parameterization,
    roles: list[str],
    h: list[Fraction],
    e: Exponents,
    law: UpdateLaw,
    align: Alignment,
    norm: bool,
) -> tuple[list[Fraction], list[Fraction]]:
    """Δh_0 ... Δh_{L+2}, and by how much each layer's output outgrew its old size in front of a
    normalization."""
    change = [ZERO]
    grown = [ZERO]
    for i, role in enumerate(roles):
        size = -p.a[role] - e[role]
        if role != "embedding":
            alpha = law.reach(role, align.alpha[role])
            u = law.reach(role, align.u[role])
            carried = align.omega[role] - p.a[role] - p.b[role] + change[i]
            size = max(carried, size + alpha + h[i], size + u + change[i])
        normalized = norm and role != "readout"
        change.append(min(size, ZERO) if normalized else size)
        grown.append(max(size, ZERO) if normalized else ZERO)
    return change, grown


def _backward_after(
    p: Parameterization,
    roles: list[str],
    dh: list[Fraction],
    e: Exponents,
    law: UpdateLaw,
    align: Alignment,
    change: Fraction,
) -> list[Fraction]:
    """h' after the update: the changes W^T Δh' + ΔW^T h' + ΔW^T Δh' added up from the logits down,
    as Δh is upwards."""
    after = [dh[-1]]
    for i, role in reversed(list(enumerate(roles))):
        terms = ZERO
        alpha = ZERO
        u = ZERO
        if role == "hidden":
            terms = HALF
            alpha = law.reach(role, align.alpha[role])
            u = law.reach(role, align.u[role])
        updated = max(alpha - e[role] + dh[i + 1], u - e[role] + change)
        change = -p.a[role] + max(terms - p.b[role] + change, updated)
        after.append(max(dh[i], change))
    return after[::-1]


def _named(symbol: str, sizes: list[Fraction], first: int) -> Exponents:
    return {f"{symbol}{first + i}": size for i, size in enumerate(sizes)}
