"""Predicted sizes: exponents e with RMS = Theta(n^e), for the bigram model (1) of S0 with L hidden layers.

At initialization sums run over independent terms, n^{1/2} each:

    h_1      = n^{-(a_0 + b_0)}          h_{l+1} = n^{1/2 - (a_l + b_l)} h_l                             S0 (3)
    h'_{L+2} = Theta(1),  h'_{L+1} = n^{-(a + b)_{L+1}},   h'_l = n^{1/2 - (a_l + b_l)} h'_{l+1}         S0 (4)
    W'_l     = n^{-a_l} h'_{l+1} h_l                                                                     S0 (5)

The recursion gives Var(W'_l) = n^{L - 1 - 2(S - b_l)} for a hidden layer; the exponent printed in (5) is 2 too large
(erratum S0.1). The softmax gradient h'_{L+2} is bounded, so its second moment is of order one (errata S0.2, S0.10).

RMSNorm after every layer but the last sets RMS(h_l) = 1 and divides the gradient by RMS(u_l) (Lemma D.2). Both at once are
what a multiplier 1/RMS(u_l) would do: a normalized network is the plain one with a_l moved until (6) and (7) hold, and
Lemma D.3 follows without a second calculation.

In training, changes add up along the layers, S0 (12)-(17):

    dh_1     = n^{-(a_0 + e_0)}
    dh_{l+1} = n^{-a_l} (W dh_l + dW h_l + dW dh_l)
             = n^{-(a_l + b_l) + omega} dh_l  +  n^{-(a_l + e_l) + alpha} h_l  +  n^{-(a_l + e_l) + u} dh_l
"""

from dataclasses import replace
from fractions import Fraction

from orderone.theory.exponents.alignment import GivenAlignment, read_alignment
from orderone.theory.exponents.optimizers import HALF, UpdateLaw, update_law
from orderone.theory.exponents.parameterization import Exponents, Parameterization

ZERO = Fraction(0)


def rms(
    p: Parameterization,
    depth: int = 3,
    norm: bool = False,
    *,
    training: bool = False,
    optimizer: str = "adam",
    alignment: GivenAlignment = "full",
) -> Exponents:
    """Exponents of h1..h{L+2}, h'1..h'{L+2}, W'0..W'{L+1}, where L = `depth` is the number of hidden layers.

    With `training=True`, the sizes after an update with this optimizer and alignment, and the changes themselves:
    ΔW0..ΔW{L+1} and Δh1..Δh{L+2}; the last one is the change of the logits.
    """
    p, roles = (normalized(p) if norm else p), layer_roles(depth)
    h, dh = _forward(p, roles), _backward(p, roles)
    if not training:
        return _named("h", h[1:], 1) | _named("h'", dh[1:], 1) | _named("W'", _gradients(p, roles, h, dh), 0)

    law, align = update_law(optimizer), read_alignment(alignment)
    e = update_exponents(p, law, depth)
    change = _changes(p, roles, h, e, law, align)
    # a normalized activation cannot grow, whatever its change
    h = [ZERO if norm and 0 < i < depth + 2 else max(pair) for i, pair in enumerate(zip(h, change, strict=True))]
    dh = _backward(p, roles, e, {role: law.reach(role, align.alpha[role]) for role in ("hidden",)})
    return (
        _named("h", h[1:], 1)
        | _named("Δh", change[1:], 1)
        | _named("h'", dh[1:], 1)
        | _named("W'", _gradients(p, roles, h, dh), 0)
        | _named("ΔW", [-e[role] for role in roles], 0)
    )


def normalized(p: Parameterization) -> Parameterization:
    """The plain network that behaves like `p` with RMSNorm after every layer but the last."""
    target = {"embedding": ZERO, "hidden": HALF}
    return replace(p, a={**p.a, **{role: target[role] - p.b[role] for role in target}})


def gradient_exponents(p: Parameterization, depth: int = 3, tied: bool = False) -> Exponents:
    """g with RMS(W') = Theta(n^{-g}) at initialization, per role: S0 (10) where (6)-(8) hold, and in general otherwise.

    A tied tensor collects the gradients of both uses; the larger one shows.
    """
    roles = layer_roles(depth)
    h, dh = _forward(p, roles), _backward(p, roles)
    g = {role: -size for role, size in zip(roles, _gradients(p, roles, h, dh), strict=True)}
    if tied:
        g["embedding"] = g["readout"] = min(g["embedding"], g["readout"])
    if "vector" in p.a:  # a bias of layer l has the gradient n^{-a} h'_{l+1}; the largest shows
        g["vector"] = p.a["vector"] - max(dh[1:-1])
    return g


def update_exponents(p: Parameterization, law: UpdateLaw, depth: int = 3, tied: bool = False) -> Exponents:
    """e with dW = Theta(n^{-e}): S0 (12), erratum S0.4."""
    g = gradient_exponents(p, depth, tied)
    return {role: p.c[role] + law.offset(role, p.b[role], g[role]) for role in p.roles}


def layer_roles(depth: int) -> list[str]:
    """The roles of W_0 ... W_{L+1}."""
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"depth: expected the number of hidden layers, 1 or more; got {depth!r}")
    return ["embedding", *["hidden"] * depth, "readout"]


def _forward(p: Parameterization, roles: list[str]) -> list[Fraction]:
    h = [ZERO]  # h_0 is one-hot: a single entry of size one
    for role in roles:
        terms = ZERO if role == "embedding" else HALF
        h.append(h[-1] + terms - p.a[role] - p.b[role])
    return h


def _backward(p, roles, e: Exponents | None = None, alpha: Exponents | None = None) -> list[Fraction]:
    """h'_0 ... h'_{L+2} (the first is void). With `e`, the updated weights: the larger of W^T h' and dW^T h'."""
    dh = [ZERO]
    for role in reversed(roles):
        fan = HALF if role == "hidden" else ZERO  # a readout's V outputs do not grow
        size = fan - p.b[role]
        if e is not None:
            size = max(size, (alpha or {}).get(role, ZERO) - e[role])
        dh.append(dh[-1] - p.a[role] + size)
    return dh[::-1]


def _gradients(p, roles, h, dh) -> list[Fraction]:
    return [-p.a[role] + dh[i + 1] + h[i] for i, role in enumerate(roles)]


def _changes(p, roles, h, e, law: UpdateLaw, align) -> list[Fraction]:
    change = [ZERO, -p.a["embedding"] - e["embedding"]]
    for i, role in list(enumerate(roles))[1:]:
        alpha, u = law.reach(role, align.alpha[role]), law.reach(role, align.u[role])
        carried = align.omega[role] - p.b[role] + change[i]
        change.append(-p.a[role] + max(carried, alpha - e[role] + h[i], u - e[role] + change[i]))
    return change


def _named(symbol: str, sizes: list[Fraction], first: int) -> Exponents:
    return {f"{symbol}{first + i}": size for i, size in enumerate(sizes)}
